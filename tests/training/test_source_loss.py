"""The loss of the grammar itself on a text drawn from it, per token that the model was scored on."""

import dataclasses

import pytest

from anaphor.data.grammar_dataset import GrammarDataset
from anaphor.registry import DATASETS
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training.build import build_experiment

TINY = {"data": "grammar", "model": "lstm", "width": 4, "layers": 1, "batch_size": 2, "device": "cpu"}


@pytest.fixture(autouse=True)
def _short_text(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path))
    monkeypatch.setitem(
        DATASETS._entries, "grammar", dataclasses.replace(DATASETS["grammar"], open=lambda: GrammarDataset(tokens=2000))
    )


def scored(**settings):
    return build_experiment(LanguageRunSpec(**TINY, **settings)).score("valid").to_plain()


def source_total():
    source = GrammarDataset(tokens=2000)
    return source.loss(source.text("valid"))[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer": "word"},
        {"tokenizer": "treebank"},
        {"tokenizer": "character"},
        {"tokenizer": "byte"},
        {"tokenizer": "bpe", "vocabulary": 300},
        {"tokenizer": "word", "batching": "padded"},
        {"tokenizer": "byte", "batching": "padded"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_the_source_loss_is_per_token_that_is_scored(settings):
    score = scored(**settings)
    assert score["source_loss"] * score["tokens"] == pytest.approx(source_total())


def test_the_source_loss_is_that_of_the_whole_text_where_the_protocol_drops_its_end():
    whole, part = (scored(tokenizer="byte", protocol=protocol) for protocol in ("complete", "example"))
    assert part["tokens"] < whole["tokens"]
    assert part["source_loss"] == whole["source_loss"]


@pytest.mark.parametrize("batching", ["stream", "padded"])
def test_there_is_no_source_loss_with_unknown_words(batching):
    assert "source_loss" not in scored(tokenizer="word", vocabulary=4, batching=batching)
