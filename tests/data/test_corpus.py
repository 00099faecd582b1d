"""Encoded texts are kept by content, mapped into memory, and made again when they are damaged."""

import json
import os
import time
import warnings

import numpy as np
import pytest
import torch

from anaphor.data.corpus import build_tokenizer, encode_split
from anaphor.data.datasets import open_dataset
from anaphor.data.tokenizer import TOKENIZERS, Tokenizer
from anaphor.errors import ConfigError, DataError

TEXT = "the cat sat on the mat .\nthe dog <unk> too .\n"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "train.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "valid.txt").write_text("the zebra sat .\n", encoding="utf-8")
    return open_dataset(str(tmp_path))


@pytest.fixture
def work(monkeypatch):
    """Counts what is trained and encode_split."""
    done = []
    train, encode = Tokenizer.train_bytes.__func__, Tokenizer.encode_bytes

    def counted_train(cls, *arguments, **keywords):
        done.append("train")
        return train(cls, *arguments, **keywords)

    def counted_encode(self, *arguments, **keywords):
        done.append("encode")
        return encode(self, *arguments, **keywords)

    monkeypatch.setattr(Tokenizer, "train_bytes", classmethod(counted_train))
    monkeypatch.setattr(Tokenizer, "encode_bytes", counted_encode)
    return done


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_corpus_is_what_the_tokenizer_reads(source, kind):
    tokenizer = build_tokenizer(source, kind)
    for _ in range(2):
        corpus = encode_split(source, "valid", tokenizer)
        np.testing.assert_array_equal(corpus.tokens, tokenizer.encode("the zebra sat .\n"))
        assert corpus.tokens.dtype == np.int32
        assert corpus.bytes == len("the zebra sat .\n")
        assert corpus.digest == source.digest("valid")


def test_unknown_tokens_are_counted(source):
    tokenizer = build_tokenizer(source, "word")
    assert encode_split(source, "train", tokenizer).unknowns == 1
    assert encode_split(source, "valid", tokenizer).unknowns == 1
    assert encode_split(source, "valid", build_tokenizer(source, "bpe")).unknowns == 0


def test_the_second_call_does_no_work_and_maps_a_file(source, work):
    first = build_tokenizer(source, "word")
    encode_split(source, "train", first)
    assert work == ["train", "encode"]
    second = build_tokenizer(source, "word")
    corpus = encode_split(source, "train", second)
    assert work == ["train", "encode"]
    assert second == first
    assert isinstance(corpus.tokens, np.memmap)
    assert not corpus.tokens.flags.writeable


def test_another_text_size_or_kind_is_another_entry(source, work, tmp_path):
    build_tokenizer(source, "word")
    build_tokenizer(source, "word", 8)
    build_tokenizer(source, "character")
    (tmp_path / "train.txt").write_text(TEXT + "more\n", encoding="utf-8")
    assert "more" in build_tokenizer(source, "word").tokens
    assert work == ["train"] * 4


def test_the_tokenizer_sees_train_only(source):
    assert "zebra" not in build_tokenizer(source, "word").tokens


def test_a_tensor_is_a_copy_on_the_device(source):
    corpus = encode_split(source, "train", build_tokenizer(source, "word"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = corpus.tensor()
    assert tensor.dtype == torch.int64
    np.testing.assert_array_equal(tensor.numpy(), corpus.tokens)
    tensor[0] = 3


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b"null"),
        lambda path: path.write_bytes(b"{}"),
        lambda path: path.unlink(),
    ],
    ids=["one bit", "cut", "empty", "deep", "null", "mapping", "gone"],
)
@pytest.mark.parametrize("ending", ["tokens", "json"])
def test_a_damaged_entry_is_made_again(source, cache, work, damage, ending):
    tokenizer = build_tokenizer(source, "word")
    whole = np.array(encode_split(source, "train", tokenizer).tokens)
    (path,) = (cache / "corpora").glob(f"*.{ending}")
    damage(path)
    np.testing.assert_array_equal(encode_split(source, "train", tokenizer).tokens, whole)
    if damage is not flip or ending == "tokens":  # a flipped bit of the facts may leave JSON that says the same
        assert work == ["train", "encode", "encode"]
    encode_split(source, "train", tokenizer)
    assert work.count("encode") <= 2, "made again once"


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes().replace(b'"cat"', b'"cau"')),
        lambda path: path.write_bytes(b"{}"),
        lambda path: path.write_bytes(b"[" * 100_000),
    ],
    ids=["one bit", "one letter", "mapping", "deep"],
)
def test_a_damaged_tokenizer_is_trained_again(source, cache, damage):
    whole = build_tokenizer(source, "word")
    (path,) = (cache / "tokenizers").glob("*.json")
    damage(path)
    assert build_tokenizer(source, "word") == whole


def test_a_kill_while_writing_leaves_no_half_entry(source, cache, monkeypatch):
    tokenizer = build_tokenizer(source, "word")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            encode_split(source, "train", tokenizer)
    assert not list((cache / "corpora").iterdir()), "no litter"
    assert len(encode_split(source, "train", tokenizer).tokens) == 14


def test_entries_hold_plain_numbers_and_json(source, cache):
    encode_split(source, "train", build_tokenizer(source, "word"))
    kinds = {path.suffix for path in cache.rglob("*") if path.is_file()}
    assert kinds == {".json", ".tokens"}
    for path in cache.rglob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))


def test_a_cache_that_was_chosen_must_work_and_the_platform_s_own_need_not(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write .*point \$ANAPHOR_CACHE at a folder"):
        build_tokenizer(source, "word")
    monkeypatch.delenv("ANAPHOR_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "file"))
    assert len(encode_split(source, "train", build_tokenizer(source, "word")).tokens) == 14


def test_an_unknown_tokenizer_gets_the_nearest_guess(source):
    with pytest.raises(ConfigError, match="unknown tokenizer 'wrod'; did you mean 'word'"):
        build_tokenizer(source, "wrod")


def test_the_second_call_on_wikitext_is_ten_times_faster(real_data):
    source = open_dataset("wikitext-2")
    tokenizer = build_tokenizer(source, "word")

    def seconds():
        start = time.process_time()
        encode_split(source, "train", tokenizer)
        return time.process_time() - start

    first = seconds()
    assert min(seconds() for _ in range(3)) < first / 10
