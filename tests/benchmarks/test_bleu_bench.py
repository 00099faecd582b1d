"""What is compared in the benchmark of BLEU gives the same number, and the ratio is told with its promise."""

import pytest
import torch

from benchmarks import bleu


def test_both_give_the_same_score():
    lines = bleu.draw_lines(200)
    assert [len(side) for side in lines] == [200, 200]
    assert bleu.run_ours(*lines) == pytest.approx(bleu.run_sacrebleu(*lines), abs=1e-9)
    assert 20 < bleu.run_ours(*lines) < 60, "a translation neither perfect nor hopeless"


def test_a_ratio_below_one_breaks_the_promise(monkeypatch):
    monkeypatch.setattr(bleu, "SENTENCES", 20)
    monkeypatch.setattr(bleu, "time_alternately", lambda first, second, pairs, tick: [(2.0, 1.0)] * pairs)
    (found,) = bleu.measure(3, torch.device("cpu"), print)
    assert (found.value, found.kept) == (pytest.approx(0.5), False)
    assert "2.00 s against 1.00 s" in found.detail
