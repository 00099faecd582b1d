"""Language models on synthetic tasks: only answers are learned and scored, and a run is used like any other."""

import json
import math
import re

import pytest
import torch
from torch.nn import functional as F

import anaphor
from anaphor.cli.main import main
from anaphor.data.batches import IGNORE_INDEX
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.build import build

SMALL = {"model": "lstm", "width": 16, "layers": 1, "dtype": "float32", "device": "cpu", "batch_size": 8}
DATA = {
    "recall": "recall:pairs=2,vocabulary=16,sequences=80",
    "parity": "parity:length=5,sequences=80",
    "flip-flop": "flip-flop:length=4,sequences=80,ignore=0.5",
}


def experiment_on(data, **changes):
    return build(LanguageRunSpec(data=data, **SMALL | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model that has learned to keep a bit."""
    torch.set_default_dtype(torch.float32)
    out = tmp_path_factory.mktemp("answers") / "run"
    data = "flip-flop:length=3,sequences=2000,ignore=0.3"
    settings = SMALL | {"model": "gru", "batch_size": 16}
    return anaphor.train("lm", out=out, data=data, steps=250, lr=0.03, **settings)


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_loss_and_scores_count_the_answers_alone(data):
    experiment = experiment_on(data)
    batch = experiment.batches(0)[0]
    logits, _ = experiment.model(batch.input_ids)
    chosen = batch.targets != IGNORE_INDEX
    assert 0 < chosen.sum() < chosen.numel()
    expected = F.cross_entropy(logits[chosen], batch.targets[chosen], reduction="sum")
    loss, _ = experiment.loss(batch, None)
    torch.testing.assert_close(loss.objective, expected)
    assert int(batch.denominator) == batch.count == int(chosen.sum())

    valid = experiment.split("valid").in_rows(100)[0]
    logits = experiment.model(valid.input_ids)[0]
    has_answer = valid.targets != IGNORE_INDEX
    right = (logits.argmax(-1) == valid.targets)[has_answer]
    result = experiment.evaluate("valid")
    assert result.values["accuracy"] == pytest.approx(right.double().mean().item())
    assert result.values["loss"] == pytest.approx(
        F.cross_entropy(logits[has_answer].double(), valid.targets[has_answer]).item()
    )
    assert f"tokens:{int(has_answer.sum())}|" in result.signature


def test_answers_are_those_of_the_data_set():
    experiment = experiment_on(DATA["parity"])
    batch = experiment.split("train").in_rows(80)[0]
    names = experiment.tokenizer.tokens
    for tokens, targets in zip(batch.input_ids.tolist(), batch.targets.tolist(), strict=True):
        bits = [names[token] for token in tokens[1:]]
        assert [names[target] for target in targets[1:]] == [
            ("even", "odd")[bits[: place + 1].count("1") % 2] for place in range(5)
        ]


def test_every_sequence_is_once_in_an_epoch_in_an_order_of_its_own():
    experiment = experiment_on(DATA["recall"])
    orders = [[index for batch in experiment.batches(epoch) for index in batch.indices] for epoch in (0, 1, 0)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(80))
    assert orders[0] == orders[2] != orders[1]


def test_a_trained_model_answers_on_longer_sequences_too(run):
    valid, test = run.result["valid"], run.result["test"]
    assert valid["accuracy"] == valid["sequence_accuracy"] == test["accuracy"] == 1
    assert test["accuracy_2x"] == 1
    assert test["accuracy_4x"] > 0.8
    assert [place for place, value in enumerate(valid["accuracy_by_position"]) if value == 1] == [3, 5]
    assert valid["perplexity"] == pytest.approx(math.exp(valid["loss"]))
    assert valid["bits_per_byte"] is None
    assert run.generate("w 1 i 0 i 0 r", tokens=1, top_k=1) == "1"


def test_its_verbs_work_on_the_run(run, tmp_path, capsys, error_of):
    folder = str(run.folder)
    assert main(["evaluate", folder, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["accuracy"] == 1
    assert "batching:answers" in row["signature"]
    assert main(["look", folder, "w 1 r 1", "--out", str(tmp_path / "look")]) == 0
    assert main(["score", folder, "w 1 r 1"]) == 0
    capsys.readouterr()
    assert "--bptt needs a stream of text" in error_of(["evaluate", folder, "--bptt", "5"])
    sample = (run.folder / "samples.txt").read_text()
    assert re.search(r"r \(([01]), right: \1\)", sample)


def test_positions_that_end_are_refused_for_training_and_leave_longer_scores_out():
    learned = {"model": "transformer", "position": "learned", "width": 8, "heads": 2}
    experiment = experiment_on(DATA["parity"], **learned, max_positions=12)
    assert experiment.evaluate_longer("valid", 2).metadata["longer"] == 2
    assert experiment.evaluate_longer("valid", 4) is None
    assert experiment.score("valid").values["accuracy_4x"] is None
    with pytest.raises(anaphor.ConfigError, match="6 tokens, but the model has 5 learned positions"):
        experiment_on(DATA["parity"], **learned, max_positions=5).batches(0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data recall --tokenizer bpe", "tokenizer=bpe: recall has words of its own"),
        ("--data recall --vocabulary 50", "vocabulary=50: recall has words of its own"),
        ("--data parity --bptt 9", "bptt=9 applies to segments of a text: parity has none"),
        ("--data grammar --batching answers", "batching=answers: data='grammar' has no answers"),
        ("--data parity:lenght=9", "unknown option of parity 'lenght'; did you mean 'length'?"),
        ("--data parity --select bits_per_byte", "data=parity does not measure it; use loss, perplexity, accuracy"),
        ("--data grammar --select accuracy", "data=grammar does not measure it; use loss, perplexity, bits_per_byte"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(words, message, tmp_path, error_of):
    line = error_of(["train", "lm", *words.split(), "--model", "lstm", "--width", "8", "--out", str(tmp_path / "run")])
    assert message in line
