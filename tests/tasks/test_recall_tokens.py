"""The perplexity of recall tokens is that of a slow loop, for a stream under every protocol and for examples."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anaphor.cli.main import main
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.build import build
from anaphor.tasks.lm.recall_tokens import find_repeated
from anaphor.tasks.lm.token_losses import score_tokens, token_losses
from anaphor.training.load import load_run

TEXT = "the cat sat on the mat\nthe dog sat on the cat\n\n" * 4 + "a cat ran\nthe dog ran on\n"


def repeated_slowly(ids, boundary):
    seen, found, previous = set(), [], boundary
    for token in ids:
        found.append((previous, token) in seen)
        seen.add((previous, token))
        previous = token
    return found


@given(st.lists(st.integers(0, 3), max_size=30))
def test_a_bigram_is_repeated_if_it_occurred_before(ids):
    assert find_repeated(np.array(ids, np.int32), 3).tolist() == repeated_slowly(ids, 3)


@pytest.fixture
def experiment(tmp_path):
    """A function that makes an untrained model for the text."""
    (tmp_path / "text.txt").write_text(TEXT)

    def make(**settings):
        spec = {"data": str(tmp_path / "text.txt"), "model": "lstm", "width": 8, "layers": 1, "device": "cpu"}
        return build(LanguageRunSpec(**spec | settings))

    return make


@pytest.mark.parametrize("settings", [{"bptt": 4}, {"bptt": 3, "eval_batch_size": 3, "carry": False}])
def test_of_a_stream_the_whole_text_counts(experiment, settings):
    made = experiment(**settings)
    losses, result = score_tokens(made, "train")
    repeated = find_repeated(made.split("train").tokens.numpy(), made.tokenizer.boundary)
    found = made.score("train")
    assert found.details["recall_tokens"] == repeated.sum() > 10
    assert found.values["recall_perplexity"] == pytest.approx(math.exp(losses[repeated].mean()), rel=1e-5)
    assert found.values["loss"] == result.values["loss"]
    assert found.signature == result.signature


def test_under_the_protocol_of_the_example_its_targets_count(experiment):
    made = experiment(bptt=4, protocol="example", eval_batch_size=2)
    tokens = made.split("train").tokens
    rows = tokens[: len(tokens) // 2 * 2].view(2, -1)
    repeated = torch.from_numpy(find_repeated(tokens.numpy(), made.tokenizer.boundary))[: rows.numel()].view(2, -1)
    found = made.score("train")
    assert found.details["recall_tokens"] == int(repeated[:, 1:].sum())


def test_of_examples_each_counts_by_itself(experiment):
    made = experiment(batching="padded", batch_size=2)
    expected = 0
    for batch in made.split("train"):
        for row, targets in zip(batch.input_ids.tolist(), batch.targets.tolist(), strict=True):
            expected += sum(repeated_slowly([token for token in targets if token >= 0], row[0]))
    found = made.score("train")
    assert found.details["recall_tokens"] == expected > 0
    groups = token_losses(made, "train").groups["bigram"]
    assert int(groups.codes.sum()) == expected


def test_without_a_repeated_bigram_there_is_no_perplexity(tmp_path):
    (tmp_path / "text.txt").write_text("one two three four five six\n" * 1)
    made = build(
        LanguageRunSpec(data=str(tmp_path / "text.txt"), tokenizer="character", width=8, layers=1, device="cpu")
    )
    made.use_data(str(tmp_path / "text.txt"))
    found = made.score("valid")
    assert found.values["recall_perplexity"] is None
    assert found.details["recall_tokens"] == 0


def test_evaluate_shows_them_for_every_length(tmp_path, capsys):
    words = ["train", "lm", "--data", "grammar", "--model", "lstm", "--width", "8", "--layers", "1", "--steps", "2"]
    words += ["--device", "cpu", "--no-test"]
    run = str(tmp_path / "run")
    assert main([*words, "--out", run]) == 0
    capsys.readouterr()
    assert main(["evaluate", run, "--bptt", "5", "70", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    expected = load_run(run, device="cpu").experiment.score("valid")
    assert [row["recall_tokens"] for row in rows] == [expected.details["recall_tokens"]] * 2
    assert main(["evaluate", run]) == 0
    shown = capsys.readouterr().out
    assert f"on recall tokens (92%) perplexity {expected.values['recall_perplexity']:.2f}" in shown
