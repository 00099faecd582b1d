"""The example of the echo: the weight on the right token, a sentence as text and picture."""

import runpy

import pytest
import torch

from anaphor.cli.main import main
from anaphor.inspect.alignment import Alignment
from anaphor.shipped_files import EXAMPLES

ECHO = runpy.run_path(str(EXAMPLES / "echo.py"))


def test_it_prints_the_mean_weight_and_a_sentence_and_draws_it(tmp_path, capsys, own_cache, single_precision):
    lines = ["a b a b a b", "a b c d e f", "b a"]
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    run = tmp_path / "run"
    words = ["train", "translate", "--data", str(tmp_path), "--source", "en", "--width", "8", "--steps", "1"]
    assert main([*words, "--beam", "1", "--no-test", "--device", "cpu", "--out", str(run), "--json"]) == 0
    capsys.readouterr()
    mean = ECHO["show_alignment"](run, tmp_path / "figure.png", "valid", None)
    counted, weight, parts, _, *text = capsys.readouterr().out.splitlines()
    assert counted.startswith("valid: 3 sentences, 14 tokens")
    assert weight == f"mean weight on the token to be predicted: {mean:.3f}"
    assert parts.startswith("  of first tokens 0.")
    assert 0.1 < mean < 0.4, "hardly anything was learnt: a weight is one over the length of its sentence"
    assert [line.partition(":")[0] for line in text[:7]] == ["a", "b", "c", "d", "e", "f", "<eos>"], "no token twice"
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_largest_weight_is_told_by_its_distance():
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    found = ECHO["largest"]([Alignment(("a", "b", "c"), ("a", "b", "c", "<eos>"), weights)])
    assert found == pytest.approx({"on it": 1 / 3, "one later": 1 / 3, "one earlier": 0, "elsewhere": 1 / 3})
