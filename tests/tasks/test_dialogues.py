"""Separate dialogues, padded: what is learnt from, what is not, and that a small GPT learns it."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from anaphor.cli.main import main
from anaphor.data.batches import IGNORE_INDEX
from anaphor.data.padded_batches import batch_examples
from anaphor.data.text import split_examples
from anaphor.data.treebank import Treebank
from anaphor.errors import DataError
from anaphor.models import build
from anaphor.registry import TOKENIZERS
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.lm.experiment import PaddedExperiment
from anaphor.training.build import build_experiment

BESIDE = Path(__file__).parents[3] / "shared" / "data"
CHOSEN = os.environ.get("ANAPHOR_DATA")
SMALL = {"model": "dialogue-gpt", "width": 32, "layers": 2, "heads": 2, "feedforward": 64}
PADDED = {"tokenizer": "treebank", "batching": "padded", "device": "cpu", **SMALL}


pytestmark = pytest.mark.usefixtures("own_cache", "single_precision")


@pytest.fixture
def shakespeare(monkeypatch):
    folder = Path(CHOSEN) if CHOSEN else BESIDE
    if not (folder / "tinyshakespeare").is_dir():
        pytest.skip("tinyshakespeare is neither in $ANAPHOR_DATA nor in shared/data beside the project")
    monkeypatch.setenv("ANAPHOR_DATA", str(folder))
    return "tinyshakespeare"


THINGS, PLACES = ("crown", "letter", "sword", "ring", "horse", "lantern"), ("hall", "garden", "tower", "cellar")


@pytest.fixture
def talk(tmp_path):
    """Questions and answers of several lengths; one of them looks as if it held our own tokens."""
    parts = ["HERALD:\nWrite <start> and <pad>, he said, and <unk>."]
    for number in range(120):
        thing, place = THINGS[number % 6], PLACES[number % 4]
        parts.append(f"HERALD:\n{'' if number % 3 else 'Good morrow! Tell me, my queen: '}Where is the {thing}?")
        parts.append(f"QUEEN:\nThe {thing} is in the {place}." if number % 2 else f"QUEEN:\nIn the {place}.")
    return written(tmp_path / "talk.txt", parts)


def written(path, parts):
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return str(path)


def prepared(data, **more):
    return build_experiment(LanguageRunSpec(data=data, **{**PADDED, "batch_size": 16, **more}))


def train(out, **settings):
    """Run the command; the losses on valid after each epoch, and what it says at the end."""
    words = ["--json"]
    for name, value in {**PADDED, **settings, "out": out}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    assert main(["train", "lm", *words]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["valid"]["loss"] for line in lines]


def falls(losses, vocabulary):
    return len(losses) == 3 and math.log(vocabulary) > losses[0] > losses[1] > losses[2]


def test_the_loss_falls_in_each_of_three_epochs(talk, tmp_path, capsys):
    losses = train(tmp_path / "run", data=talk, epochs=3, batch_size=16, lr=3e-3)
    assert falls(losses, vocabulary=len(prepared(talk).tokenizer))
    assert json.loads(capsys.readouterr().out)["valid"]["loss"] == losses[-1]


@pytest.mark.slow
def test_the_loss_falls_in_each_of_three_epochs_of_shakespeare(shakespeare, tmp_path):
    losses = train(
        tmp_path / "run", data=shakespeare, vocabulary=1000, max_examples=1000, epochs=3, batch_size=32, lr=3e-3,
    )  # fmt: skip
    assert falls(losses, vocabulary=1000)


def gradients(made, batch):
    """The loss of a batch and the gradient of every weight."""
    made.model.zero_grad()
    loss, _ = made.loss(batch, None)
    loss.total.backward()
    return loss.total.item(), {name: weight.grad.clone() for name, weight in made.model.named_parameters()}


def test_bits_per_byte_are_those_of_the_examples_without_what_parts_them(tmp_path):
    parts = ["No.", "Nay, my good lord!", "Ay, très bien."] * 40
    made = prepared(written(tmp_path / "few.txt", parts), tokenizer="character")
    score = made.evaluate("valid")
    texts = [text for text in made.source.text("valid").split("\n\n") if text.strip()]
    size = sum(len(text.strip("\n").encode()) for text in texts)
    assert score.total.bytes == size
    assert score.to_plain()["bits_per_byte"] == pytest.approx(score.total.total / math.log(2) / size, rel=1e-12)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_bits_per_byte_count_what_is_predicted_whether_examples_or_a_stream_are_read(talk, kind):
    made = [prepared(talk, tokenizer=kind, batching=batching, model="transformer") for batching in ("stream", "padded")]
    stream, padded = (one.evaluate("valid").total for one in made)
    text = made[0].source.text("valid")
    between = len(text) - sum(map(len, split_examples(text)))  # newlines between dialogues, and those at both ends
    assert stream.bytes - padded.bytes == between
    assert stream.tokens - padded.tokens == (len(split_examples(text)) if kind == "treebank" else between)


def test_pad_positions_get_no_gradient(talk):
    made = prepared(talk)
    batch = max(made.batches(0), key=lambda batch: int((~batch.input_mask).sum()))
    assert not batch.input_mask.all()
    assert (batch.input_ids[~batch.input_mask] == made.tokenizer.pad).all()
    loss, found = gradients(made, batch)
    assert not found["embedder.embedding.weight"][made.tokenizer.pad].any()
    assert found["embedder.embedding.weight"][made.tokenizer.boundary].any()
    # Nor do they give any: whatever stands there, nothing changes.
    other = torch.randint_like(batch.input_ids, len(made.tokenizer))
    batch.input_ids.copy_(torch.where(batch.input_mask, batch.input_ids, other))
    loss_then, found_then = gradients(made, batch)
    assert loss_then == pytest.approx(loss, rel=1e-6)
    for name, gradient in found.items():
        torch.testing.assert_close(found_then[name], gradient, rtol=1e-5, atol=1e-7)
    unseen = other[~batch.input_mask]
    absent = unseen[~torch.isin(unseen, batch.input_ids[batch.input_mask])]
    assert not found_then["embedder.embedding.weight"][absent].any()


@pytest.mark.parametrize("split", ["train", "valid"])
def test_the_start_token_is_never_a_target_and_every_other_token_is_one_once(talk, split):
    made = prepared(talk)
    start, pad = made.tokenizer.boundary, made.tokenizer.pad
    examples = made.split(split)
    for epoch in range(3):
        real = rows = 0
        for batch in examples.at_epoch(epoch):
            assert (batch.input_ids[:, 0] == start).all()
            assert not (batch.input_ids[:, 1:] == start).any()
            wanted = batch.targets[batch.targets != IGNORE_INDEX]
            assert not ((wanted == start) | (wanted == pad)).any()
            assert torch.equal(batch.targets != IGNORE_INDEX, batch.input_mask)
            # Logits at a place are for the token after it.
            following = batch.input_mask[:, 1:]
            assert torch.equal(batch.targets[:, :-1][following], batch.input_ids[:, 1:][following])
            real, rows = real + len(wanted), rows + len(batch.input_ids)
        assert real == len(made.tokenizer.encode(made.source.text(split))) - rows


def test_a_few_examples_are_learnt_by_heart(tmp_path, answer_of):
    """Which of them comes nobody can know; all that follows its first word is certain."""
    lines = [f"{thing.upper()}:\nI was in the {place}, and nobody saw me." for thing in THINGS for place in PLACES]
    data, out, limit = written(tmp_path / "text.txt", lines[::4] + lines), tmp_path / "run", 4
    train(out, data=data, max_examples=limit, steps=120, eval_every=120, batch_size=limit, lr=1e-2)
    (row,) = answer_of(["evaluate", str(out), "--split", "train", "--json"])
    assert row["tokens"] == 13 * limit
    certain = row["loss"] - limit * math.log(limit) / row["tokens"]
    assert 0 <= certain < 0.02


def test_the_model_is_the_courses():
    """Six layers with three heads of width 64, learned positions, an output of its own with a constant."""
    model = build("dialogue-gpt", vocabulary=100)
    assert model.max_positions == 1024
    assert not model.spec.tied
    assert model.head.bias is not None
    assert [tuple(mixer.out.weight.shape) for mixer in model.layers.mixers] == [(128, 3 * 64)] * 6
    tokens = torch.randint(0, 100, (2, 7))
    logits, _ = model(tokens)
    assert logits.shape == (2, 7, 100)
    earlier, _ = model(tokens[:, :4])
    torch.testing.assert_close(logits[:, :4], earlier, rtol=1e-4, atol=1e-5)


def test_padding_is_told(talk, tmp_path, capsys, answer_of):
    settings = ["--data", talk, "--tokenizer", "treebank", "--batching", "padded", "--model", "dialogue-gpt"]
    share = prepared(talk, batch_size=20).statistics()["padding_share"]
    assert 0 < share < 0.5
    found = answer_of(["train", "lm", *settings, "--dry-run", "--json"])
    assert found["padding_share"] == pytest.approx(share, abs=1e-4)
    words = [
        *settings,
        "--width",
        "8",
        "--layers",
        "1",
        "--steps",
        "1",
        "--device",
        "cpu",
    ]
    assert main(["train", "lm", *words, "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert f"padding: {share:.1%} of all positions" in told
    assert json.loads((tmp_path / "run" / "result.json").read_text())["padding_share"] == share


def test_an_example_longer_than_the_model_reaches_is_refused_before_the_first_step(talk, tmp_path):
    with pytest.raises(DataError, match=r"talk\.txt has \d+ tokens, but the model has 4 learned positions"):
        prepared(talk, max_positions=4).batches(0)
    out = tmp_path / "run"
    words = ["--data", talk, "--tokenizer", "treebank", "--batching", "padded", "--model", "dialogue-gpt"]
    assert main(["train", "lm", *words, "--max-positions", "4", "--out", str(out), "--device", "cpu"]) == 2
    assert not (out / "spec.yaml").exists()


def test_a_score_says_whether_there_were_unknown_words():
    tokenizer = Treebank.train("to be or not", None)
    model = build("dialogue-gpt", vocabulary=len(tokenizer), width=8, layers=1, heads=2)
    for text, told in (("to be", "none"), ("to sleep", "kept")):
        ids = np.concatenate(([tokenizer.boundary], tokenizer.encode_sentence(text)))
        examples = batch_examples([ids], pad=tokenizer.pad, rows=1)
        experiment = PaddedExperiment(LanguageRunSpec(batching="padded"), model, tokenizer, lambda: None)
        experiment.split = lambda name, examples=examples: examples
        score = experiment.evaluate("valid")
        assert score.metadata["unk"] == told
