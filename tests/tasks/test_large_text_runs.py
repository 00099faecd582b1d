"""A run on a text in shards against the same run on the text in memory: losses, scores and weights are equal."""

import json

import numpy as np
import pytest

from anaphor.cli.main import main
from anaphor.data import bpe, streamed_text
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.tasks.lm import recall_tokens
from faults.runs import hashes

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "and", "it's", "é", "saw"]


@pytest.fixture
def long_text(tmp_path, monkeypatch, own_cache):
    generator = np.random.default_rng(0)
    lines = [" ".join(generator.choice(WORDS, size=generator.integers(1, 9))) for _ in range(900)]
    ends = generator.choice(["\n", "\n\n"], size=len(lines))
    path = tmp_path / "text.txt"
    often = "\n\nthe cat ran\n\n"
    path.write_text("".join(f"{line}{end}{often}" for line, end in zip(lines, ends, strict=True)), encoding="utf-8")
    monkeypatch.setattr(streamed_text, "PART", 700)
    monkeypatch.setattr(streamed_text, "SHARD", 3000)
    monkeypatch.setattr("anaphor.data.parallel_parts.count_cores", lambda: 1)
    monkeypatch.setattr(bpe, "MIN_SEGMENT", 20)
    monkeypatch.setattr(recall_tokens, "BLOCK", 256)
    monkeypatch.setattr(recall_tokens, "BIGRAMS", 512)
    monkeypatch.chdir(tmp_path)
    return path


TRAIN = "train lm --data text.txt --width 8 --layers 1 --steps 25 --eval-every 10 --batch-size 4 --device cpu --lr 0.01"
RUNS = {
    "word": "--bptt 7",
    "bpe": "--bptt 7 --tokenizer bpe --vocabulary 270",
    "character": "--bptt 20 --tokenizer character --partial-shuffle --random-offset",
    "example": "--bptt 7 --protocol example --tokenizer byte",
    "padded": "--batching padded",
    "padded-limit": "--batching padded --max-examples 30 --tokenizer bpe --vocabulary 270",
}


def facts(out):
    result = json.loads((out / "result.json").read_text())
    for name in ("seconds", "minutes", "started", "ended", "speed", "time"):
        result.pop(name, None)
    losses = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    weights = {name: one for name, one in hashes(out)["files"].items() if name.endswith(".safetensors")}
    kept = [{key: row[key] for key in row if "loss" in key or "perplexity" in key} for row in losses]
    return {split: result[split] for split in ("valid", "test")}, kept, weights


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("bpe", "example", "padded-limit")]
OF_EXTRAS = pytest.param("character", marks=[pytest.mark.slow, pytest.mark.needs("extras")])


@pytest.mark.parametrize("name", ["word", "padded", *SLOW, OF_EXTRAS])
def test_a_run_from_shards_is_the_run_from_memory(name, long_text, monkeypatch, tmp_path, capsys, single_precision):
    words = [*TRAIN.split(), *RUNS[name].split()]
    assert main([*words, "--out", "plain"]) == 0
    assert "prepared once" not in capsys.readouterr().err
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    assert main([*words, "--out", "sharded"]) == 0
    assert capsys.readouterr().err.count("prepared once") == 3  # for each split
    plain, sharded = facts(tmp_path / "plain"), facts(tmp_path / "sharded")
    assert plain == sharded
    assert plain[2]
    assert plain[0]["test"]["overlap"]["in_train"] > 0
    assert main(["evaluate", "plain", "--split", "valid", "--json"]) == 0  # a run may be read by the other way
    longer = ["30" if word == "25" else word for word in words]
    assert main([*longer, "--out", "plain", "--resume", "--force"]) == 0
    assert "prepared once" not in capsys.readouterr().err
