"""`evaluate` on text of the grammar: the bound that `train` tells stands beside the scores."""

import dataclasses
import math

import pytest
import torch

from anaphor.cli.main import main
from anaphor.data.grammar_dataset import GrammarDataset
from anaphor.registry import DATASETS


@pytest.mark.parametrize("batching", [["--bptt", "5"], ["--batching", "padded"]], ids=["stream", "padded"])
def test_the_entropy_of_the_grammar_is_reported_as_by_train(batching, tmp_path, monkeypatch, capsys, answer_of):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    short = dataclasses.replace(DATASETS["grammar"], open=lambda: GrammarDataset(tokens=2000))
    monkeypatch.setitem(DATASETS._entries, "grammar", short)
    torch.set_default_dtype(torch.float32)
    run = str(tmp_path / "run")
    words = ["train", "lm", "--data", "grammar", "--width", "8", "--steps", "1", "--no-test", "--out", run, *batching]
    known = answer_of([*words, "--device", "cpu", "--json"])["valid"]["source_loss"]
    several = ["--bptt", "5", "7"] if "--bptt" in batching else []
    rows = answer_of(["evaluate", run, *several, "--device", "cpu", "--json"])
    assert [row["source_loss"] for row in rows] == [known] * len(rows)
    assert main(["evaluate", run, *several, "--device", "cpu"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "lower bound" in line]
    assert told == [f"lower bound (entropy of the grammar): perplexity {math.exp(known):.2f}"]
