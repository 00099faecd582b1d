"""A classifier trained on texts in shards against the same one on texts in memory: losses, scores, weights, overlap."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anaphor.cli.main import main
from anaphor.data import labeled_text, streamed_rows, streamed_text, text
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.metrics.accuracy import Outcomes, find_outcomes, score_classes, score_outcomes
from anaphor.models import bag_of_words
from anaphor.tasks.classify.page import look, text_losses
from anaphor.training.load import load_run
from faults.runs import hashes

WORDS = ["the", "film", "is", "not", "so", "bad", "it's", "über", "good"]


def write_rows(path, count, seed):
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(WORDS, size=generator.integers(1, 12))) for _ in range(count)]
    rows = [f"{one}\t{'good' if one.split()[0] in 'the film is' else 'bad'}" for one in texts]
    path.write_text("".join(f"{row}\n" for row in ["text\tlabel", *rows]), encoding="utf-8")


@pytest.fixture
def files(tmp_path, monkeypatch, own_cache):
    monkeypatch.setattr(text, "PART", 700)
    monkeypatch.setattr(streamed_text, "PART", 700)
    monkeypatch.setattr(streamed_text, "SHARD", 3000)
    monkeypatch.setattr(streamed_rows, "ROWS", 20)
    monkeypatch.setattr(labeled_text, "REPORTED", 50)
    monkeypatch.setattr(bag_of_words, "HELD", 100)
    monkeypatch.setattr("anaphor.data.parallel_parts.count_cores", lambda: 1)
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "all.tsv", 600, 0)
    write_rows(tmp_path / "other.tsv", 300, 1)
    return tmp_path


TRAIN = "train classify --data all.tsv --steps 20 --eval-every 10 --batch-size 8 --device cpu"
RUNS = {
    "lstm": "--width 8 --layers 1 --class-weights balanced --max-length 6",
    "bag": "--model bag-of-words --max-examples 150",
    "bpe": "--width 8 --layers 1 --tokenizer bpe --vocabulary 270 --max-examples 150",
    "attention": "--model transformer --width 8 --heads 2 --tokenizer character --dropout 0.1",
}


def facts(out):
    result = json.loads((out / "result.json").read_text())
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [{key: row[key] for key in row if "loss" in key or key == "valid"} for row in rows]
    weights = {name: one for name, one in hashes(out)["files"].items() if name.endswith(".safetensors")}
    assert weights
    return result["valid"], result["test"], losses, weights, (out / "samples.txt").read_text()


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("bpe", "attention")]


@pytest.mark.parametrize("name", ["lstm", "bag", *SLOW])
def test_a_run_from_shards_is_the_run_from_memory(name, files, monkeypatch, capsys, single_precision):
    words = [*TRAIN.split(), *RUNS[name].split()]
    assert main([*words, "--out", "plain"]) == 0
    assert "prepared once" not in capsys.readouterr().err
    monkeypatch.setenv(MEMORY_VARIABLE, "100")
    assert main([*words, "--out", "stored"]) == 0
    assert capsys.readouterr().err.count("prepared once") == 3  # for each split
    plain, stored = facts(files / "plain"), facts(files / "stored")
    assert plain == stored
    assert 0 < plain[1]["overlap"]["in_train"] < plain[1]["overlap"]["test"]
    # A run of the one kind is resumed as one of the other: the digests of the data are the same.
    longer = ["25" if word == "20" else word for word in words]
    assert main([*longer, "--out", "plain", "--resume", "--force"]) == 0
    assert "prepared once" not in capsys.readouterr().err


@pytest.fixture
def run(files):
    assert main([*TRAIN.split(), *RUNS["lstm"].split(), "--no-test", "--out", "run"]) == 0
    return files / "run"


def test_other_data_are_scored_as_in_memory(run, monkeypatch, answer_of, capsys):
    evaluate = ["evaluate", "run", "--data", "other.tsv", "--device", "cpu", "--json"]
    expected = answer_of(evaluate)
    assert expected[0]["overlap"]["in_train"] > 0
    monkeypatch.setenv(MEMORY_VARIABLE, "100")
    assert answer_of(evaluate) == expected
    assert answer_of(evaluate) == expected  # from the cache
    row = run.parent / "other.tsv"
    row.write_text(row.read_text(encoding="utf-8") + "a film\tneutral\n", encoding="utf-8")
    assert main(evaluate) == 2
    assert "row 302 of other.tsv has the label 'neutral', which is not in train (bad, good)" in capsys.readouterr().err


def test_a_run_is_used_without_its_data(run, monkeypatch, answer_of):
    monkeypatch.setenv(MEMORY_VARIABLE, "100")
    (run.parent / "all.tsv").unlink()
    assert answer_of(["predict", "run", "the film", "--device", "cpu", "--json"])[0]["label"] in ("bad", "good")
    assert answer_of(["look", "run", "the film", "--out", "look", "--device", "cpu", "--json"])["label"] in (
        "bad",
        "good",
    )


def test_the_page_shows_the_texts_of_memory(run, monkeypatch):
    plain = load_run(run).experiment
    expected = text_losses(plain, "valid"), look(plain, example=7).plain
    monkeypatch.setenv(MEMORY_VARIABLE, "100")
    stored = load_run(run).experiment
    found = text_losses(stored, "valid"), look(stored, example=7).plain
    np.testing.assert_array_equal(found[0].losses, expected[0].losses)
    assert [found[0].show(index, 0) for index in (0, 5)] == [expected[0].show(index, 0) for index in (0, 5)]
    assert found[1] == expected[1]
    assert found[0].mismatch(expected[0], ("one", "other")) == ""


@pytest.mark.parametrize("classes", [2, 7])
def test_scores_of_batches_are_those_of_all_logits_at_once(classes):
    """Oracle: the formulas on all log probabilities."""
    logits, labels = 3 * torch.randn(301, classes), torch.randint(0, classes, (301,))
    parts = [find_outcomes(*part) for part in zip(logits.split(8), labels.split(8), strict=True)]
    found = score_outcomes(Outcomes(*map(torch.cat, zip(*parts, strict=True))), labels, classes)
    log_p = logits.double().log_softmax(-1)
    assert found.loss == float(F.nll_loss(log_p, labels))
    assert found.accuracy == float((log_p.argmax(-1) == labels).double().mean())
    whole = score_classes(logits, labels)
    assert (found.values, found.confusion.tolist()) == (whole.values, whole.confusion.tolist())
