"""A `tokenizer.json` that came from elsewhere: ids, replacements and expressions without bounds, and what makes the
library panic, are one line."""

import json
import time

import pytest

from anaphor.data import tokenizer_limits
from anaphor.data.pretrained_tokenizer import PretrainedTokenizer
from anaphor.errors import DataError

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2}, "unk_token": "<unk>"}
BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}
NESTED = {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [GROWING] * 10}] * 10}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def build(**parts):
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    empty = {"version": "1.0", "added_tokens": [], "model": WORDS, **dict.fromkeys(names)}
    return PretrainedTokenizer(json.dumps({**empty, **parts}), 0, 0, where="tokenizer.json")


def split(expression):
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


BOMBS = {
    "an id of four billions": {"model": {**WORDS, "vocab": {"a": 4_000_000_000, "<unk>": 0}}},
    "an added id of four billions": {"added_tokens": [{"id": 4_000_000_000, "content": "zz", **ADDED}]},
    "replacements": {"normalizer": {"type": "Sequence", "normalizers": [GROWING] * 30}},
    "replacements in replacements": {"normalizer": NESTED},
    "replacements of nothing": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 1000},
    },
    "replacements in the decoder": {"decoder": {"type": "Sequence", "decoders": [GROWING] * 30}},
    "a panic": {"model": {**BPE, "continuing_subword_prefix": "##éé"}},
    "a process that is aborted": {
        "model": {**BPE, "vocab": {"é": 0, "a": 1, "aé": 2}, "merges": [["a", "é"]], "continuing_subword_prefix": "#"}
    },
    "an expression that is none": {"pre_tokenizer": split("((")},
    "a missing token": {"model": {**WORDS, "unk_token": "zz"}, "normalizer": None, "version": 7},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_one_line(name, capfd):
    start = time.process_time()
    with pytest.raises(DataError, match=r"tokenizer\.json") as refused:
        build(**BOMBS[name])
    assert "\n" not in str(refused.value)
    assert time.process_time() - start < 5
    assert "panicked" not in capfd.readouterr().err


def test_depth_is_bounded():
    text = '{"normalizer": ' + '{"type": "Sequence", "normalizers": [' * 100_000 + "]}" * 100_000 + "}"
    with pytest.raises(DataError, match="not a tokenizer"):
        PretrainedTokenizer(text, 0, 0, where="tokenizer.json")


def test_an_expression_that_panics_is_an_error(capfd):
    tokenizer = build(pre_tokenizer=split("(x+x+)+y"))
    with pytest.raises(DataError, match=r"tokenizer\.json fails on this text"):
        tokenizer.encode("x" * 40)
    assert "panicked" not in capfd.readouterr().err
    assert tokenizer.encode("a").tolist() == [0]


def test_an_expression_that_takes_too_long_is_an_error(monkeypatch):
    tokenizer = build(pre_tokenizer=split("(x+x+)+y"))
    monkeypatch.setattr(tokenizer_limits, "SECONDS", 0.02)
    with pytest.raises(DataError, match="take too long"):
        tokenizer.encode("b " + "x" * 18 + " " * 10 + ("x" * 18 + " ") * 200)


def test_a_text_that_the_model_cannot_encode_is_an_error():
    tokenizer = build(model={"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None})
    with pytest.raises(DataError, match="unk_id"):
        tokenizer.encode("xyz")


def test_ordinary_files_are_loaded():
    tokenizer = build(
        model=BPE,
        normalizer={"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
        pre_tokenizer=split(r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"),
    )
    assert tokenizer.encode("ab ba").tolist() == [2, 1, 0]
    assert tokenizer.decode([2, 1]) == "ab b"
