"""What is compared in the benchmark of BLEU gives the same number, and the ratio is told with its promise."""

import pytest

from anaphor.bench import overhead


def test_both_give_the_same_score():
    lines = overhead.draw_lines(200)
    assert [len(side) for side in lines] == [200, 200]
    assert overhead.run_ours(*lines) == pytest.approx(overhead.run_sacrebleu(*lines), abs=1e-9)
    assert 20 < overhead.run_ours(*lines) < 60, "a translation neither perfect nor hopeless"


def test_a_ratio_below_one_breaks_the_promise(monkeypatch):
    monkeypatch.setattr(overhead, "SENTENCES", 20)
    monkeypatch.setattr(overhead, "time_alternately", lambda first, second, pairs, tick: [(2.0, 1.0)] * pairs)
    (found,) = overhead.measure_bleu(3, print)
    assert (found.value, found.kept) == (pytest.approx(0.5), False)
    assert "2.00 s against 1.00 s" in found.detail
