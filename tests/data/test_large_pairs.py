"""Sentence pairs that are larger than memory: the same tokens, batches and runs from shards on the disk."""

import json

import numpy as np
import pytest
import torch

from anaphor.cli.main import main
from anaphor.data import streamed_rows, streamed_text, text
from anaphor.data.dataset import PAIR_COLUMNS
from anaphor.data.datasets import open_dataset
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.data.padded_batches import batch_pairs
from anaphor.data.pairs import PairSampler, build_pair_tokenizers, encode_pair_split
from anaphor.data.stored_pairs import StoredSentences
from anaphor.data.streamed_rows import StreamedRows
from anaphor.errors import ConfigError, DataError
from faults.runs import hashes

WORDS = {
    "en": ["the", "cat", "sat", "dog", "it's", "blue"],
    "de": ["die", "Katze", "saß", "Hund", "ist", "blau", "ein"],
}


def write_pairs(folder, rows, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 9, size=rows)
    is_blank = generator.random(rows) < 0.1
    for language, words in WORDS.items():
        chosen = [" ".join(generator.choice(words, size=length)) for length in lengths]
        lines = ["" if blank else line for line, blank in zip(chosen, is_blank, strict=True)]
        for split, some in (("train", slice(None)), ("valid", slice(20)), ("test", slice(20, 40))):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\r\n" for line in lines[some]), "utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(streamed_text, "PART", 500)
    monkeypatch.setattr(text, "PART", 500)
    monkeypatch.setattr(streamed_text, "SHARD", 2000)
    monkeypatch.setattr(streamed_rows, "ROWS", 9)
    monkeypatch.setattr("anaphor.data.parallel_parts.count_cores", lambda: 1)
    (tmp_path / "pairs").mkdir()
    write_pairs(tmp_path / "pairs", 200)
    return tmp_path / "pairs"


def open_pairs(folder, **languages):
    return open_dataset(str(folder), PAIR_COLUMNS, **(languages or {"source": "en"}))


def encode_both(folder, kind, monkeypatch, *, joint=False, split="train", **languages):
    """The pairs in memory, and those in shards, with the tokenizers of each."""
    plain = open_pairs(folder, **languages)
    size = 300 if kind == "bpe" else None
    tokenizers = build_pair_tokenizers(plain, kind, size, joint=joint)
    in_memory = encode_pair_split(plain, split, tokenizers)
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    large = open_pairs(folder, **languages)
    streamed = build_pair_tokenizers(large, kind, size, joint=joint)
    assert streamed == tokenizers
    stored = encode_pair_split(large, split, streamed)
    assert isinstance(stored.target, StoredSentences)
    return in_memory, stored


def assert_same_batches(one, other):
    assert len(one) == len(other) > 1
    for batch, twin in zip(one, other, strict=True):
        for name, value in vars(twin).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(getattr(batch, name), value), name
            else:
                assert getattr(batch, name) == value


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("kind", ["word", "character", "byte", "bpe"])
def test_batches_from_shards_are_those_from_memory(kind, joint, folder, monkeypatch):
    plain, stored = encode_both(folder, kind, monkeypatch, joint=joint)
    for name in ("lines", "target_bytes", "indices"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(plain, name))
    assert (stored.digest, stored.blank, len(stored)) == (plain.digest, plain.blank, len(plain))
    assert stored.blank > 0
    for limit in (None, 12):
        one, other = (pairs if limit is None else pairs.drop_longer(limit).first(60) for pairs in (stored, plain))
        assert one.dropped == other.dropped
        assert one.source.count_tokens() == other.source.count_tokens()
        assert one.target.count_tokens() == other.target.count_tokens()
        for epoch in range(2):
            options = {"max_tokens": 60, "pad_to": 2, "seed": 3, "epoch": epoch}
            assert_same_batches(batch_pairs(one, **options), batch_pairs(other, **options))


def test_the_other_direction(folder, monkeypatch):
    plain, stored = encode_both(folder, "word", monkeypatch, source="de")
    assert_same_batches(batch_pairs(stored, rows=5), batch_pairs(plain, rows=5))


def test_texts_are_read_again_where_they_are_asked_for(folder):
    dataset = open_pairs(folder)
    expected = dataset.rows("train").values
    texts = StreamedRows(dataset, "train", len(expected))
    assert list(texts) == expected
    assert texts[3:9:2] == expected[3:9:2]
    assert texts[-1] == expected[-1]
    assert texts[5:5] == []


def damage(folder, kind):
    path = folder / "train.de"
    raw = path.read_bytes()
    if kind == "line":
        path.write_bytes(raw + b"more\r\n")
    elif kind == "empty":
        lines = raw.split(b"\r\n")
        filled = next(number for number, line in enumerate(lines) if number > 50 and line)
        lines[filled] = b" "
        path.write_bytes(b"\r\n".join(lines))
    elif kind == "byte":
        path.write_bytes(raw[:2000] + b"\xff" + raw[2001:])


@pytest.mark.parametrize("kind", ["line", "empty", "byte"])
def test_what_does_not_fit_is_told_as_in_memory(kind, folder):
    damage(folder, kind)
    dataset = open_pairs(folder)
    with pytest.raises(DataError) as plain:
        dataset.rows("train")
    with pytest.raises(DataError) as streamed:
        list(dataset.stream_rows("train"))
    assert str(streamed.value) == str(plain.value)


def test_a_word_that_marks_the_end_is_refused(folder, monkeypatch):
    tokenizers = build_pair_tokenizers(open_pairs(folder), "word", joint=False)
    lines = (folder / "train.de").read_bytes().split(b"\r\n")
    place = next(number for number, line in enumerate(lines) if number > 50 and line)
    lines[place] = b"das <eos> hier"
    (folder / "train.de").write_bytes(b"\r\n".join(lines))
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    with pytest.raises(DataError, match=f"line {place + 1} of .*train.de contains '<eos>', which marks the end"):
        encode_pair_split(open_pairs(folder), "train", tokenizers)


def test_pairs_that_change_in_every_epoch_need_memory(folder, monkeypatch):
    _, stored = encode_both(folder, "bpe", monkeypatch, joint=True)
    with pytest.raises(ConfigError, match=r"larger than memory.*leave out --bpe-dropout"):
        PairSampler(stored, 0.1, 0)
    with pytest.raises(ConfigError, match=r"larger than memory.*--bidirectional-epochs"):
        stored.swap_half(0, 0)


def test_a_run_from_shards_is_the_run_from_memory(folder, monkeypatch, tmp_path, single_precision, capsys):
    monkeypatch.chdir(tmp_path)
    words = "train translate --data pairs --source en --width 8 --layers 1 --steps 6 --eval-every 3 --batch-size 5"
    words += " --max-length 7 --device cpu --beam 2"
    assert main([*words.split(), "--out", "plain"]) == 0
    monkeypatch.setenv(MEMORY_VARIABLE, "3000")  # train is larger, valid and test are not
    assert main([*words.split(), "--out", "stored"]) == 0
    assert capsys.readouterr().err.count("train is prepared once") == 1
    results = [json.loads((tmp_path / out / "result.json").read_text()) for out in ("plain", "stored")]
    assert results[0]["test"] == results[1]["test"]
    weights = [
        {name: one for name, one in hashes(tmp_path / out)["files"].items() if name.endswith(".safetensors")}
        for out in ("plain", "stored")
    ]
    assert weights[0] == weights[1] != {}


def test_files_of_empty_lines_hold_no_sentences(folder, monkeypatch):
    tokenizers = build_pair_tokenizers(open_pairs(folder), "word", joint=False)
    for language in WORDS:
        (folder / f"train.{language}").write_bytes(b"\r\n" * 900)
    with pytest.raises(DataError) as plain:
        open_pairs(folder).rows("train")
    monkeypatch.setenv(MEMORY_VARIABLE, "1000")
    with pytest.raises(DataError) as stored:
        encode_pair_split(open_pairs(folder), "train", tokenizers)
    assert str(stored.value) == str(plain.value)
