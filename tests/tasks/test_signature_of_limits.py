"""What a score was made with is in its signature: data that were trained on, and how many examples."""

import pytest

import anaphor
from anaphor.data.embedded import Echo
from anaphor.tasks.metrics import BITS_PER_BYTE
from anaphor.tasks.translate.study import STUDY


@pytest.mark.parametrize("limit", [None, 8])
def test_a_score_on_training_data_says_so_with_a_limit_too(tmp_path, limit, monkeypatch):
    few, generate = 40, Echo.generate  # all sentences would be translated
    monkeypatch.setattr(Echo, "generate", lambda self, split: generate(self, split)[:few])
    settings = {} if limit is None else {"max_examples": limit}
    run = anaphor.train(
        "translate", data="echo-fit", width=8, steps=1, beam=1, device="cpu", no_test=True, progress=False,
        out=tmp_path / "run", **settings,
    )  # fmt: skip
    parts = run.result["valid"]["signature"].split("|")
    assert "data:fit" in parts
    assert ("max_examples:8" in parts) == (limit is not None)
    valid, trained_on = (run.experiment.split(name).pairs.indices.tolist() for name in ("valid", "train"))
    assert valid == trained_on, "no more than was trained on"
    assert len(valid) == (few if limit is None else limit)


@pytest.mark.parametrize("vocabulary", [None, 12])
def test_a_translation_with_unknown_words_says_so_and_its_bits_are_not_compared(tmp_path, monkeypatch, vocabulary):
    """The characters of an unknown word are not predicted: with a smaller vocabulary there are fewer bits."""
    generate = Echo.generate
    monkeypatch.setattr(Echo, "generate", lambda self, split: generate(self, split)[:40])
    run = anaphor.train(
        "translate", data="echo-fit", vocabulary=vocabulary, width=8, steps=1, beam=1, device="cpu", no_test=True,
        progress=False, out=tmp_path / "run",
    )  # fmt: skip
    whole = {"signature": "tokens:9|tokenizer:word|vocab:50"}
    for result in (run.result["valid"], run.metrics[-1]["valid"]):
        assert ("unk:kept" in result["signature"].split("|")) == (vocabulary is not None)
        units = [STUDY.unit(run.spec, {"train": "a", "valid": "b"}, one, BITS_PER_BYTE) for one in (whole, result)]
        assert (units[0] == units[1]) == (vocabulary is None)


def test_the_number_of_examples_of_a_language_model_is_told(tmp_path):
    (tmp_path / "text.txt").write_text("a b c\n\nb c d\n\nc d e\n\n" * 20)
    run = anaphor.train(
        "lm", data=str(tmp_path / "text.txt"), batching="padded", max_examples=3, width=8, steps=1, device="cpu",
        no_test=True, progress=False, out=tmp_path / "run",
    )  # fmt: skip
    assert "max_examples:3" in run.result["valid"]["signature"].split("|")
