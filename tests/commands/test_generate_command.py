"""`anaphor generate`: text that is printed while it is written."""

from functools import cache
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphor.cli.generate import decode_stream
from anaphor.data.tokenizer import TOKENIZERS

TEXT = "the cat sat on the mât .\n\nthe 🐈 sat too , naïve ﷺ � .\n" * 3


@cache
def tokenizer_of(kind):
    return TOKENIZERS[kind].train(TEXT, 300 if kind == "bpe" else None)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_what_is_printed_piece_by_piece_is_the_whole_text(kind, data):
    tokenizer = tokenizer_of(kind)
    sound = tokenizer.encode(TEXT).tolist()
    some = st.integers(0, len(sound)).flatmap(lambda start: st.just(sound[start : start + 9]))
    anything = st.lists(st.integers(0, len(tokenizer) - 1), max_size=9)
    ids = list(chain.from_iterable(data.draw(st.lists(some | anything, max_size=5))))
    printed = list(decode_stream(tokenizer, ids))
    assert "".join(printed) == tokenizer.decode(ids)
    for place in range(len(ids)):
        so_far = tokenizer.decode(ids[: place + 1])
        assert "".join(printed[: place + 1]) == so_far.removesuffix("\ufffd"), "only what may yet change is held back"


def letters_as_bytes(count):
    """Leading and following bytes of UTF-8, more often in order than not: every way in which a character can break."""
    odd = st.sampled_from([0x00, 0x41, 0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xED, 0xEF, 0xBD, 0xF0, 0x9F, 0x90, 0xF4, 0xFF])
    whole = st.characters(exclude_categories=["Cs"]).map(str.encode)
    return st.lists(whole | odd.map(lambda value: bytes([value])), max_size=count).map(b"".join)


@given(letters_as_bytes(20), st.integers(0, 3))
def test_characters_of_several_bytes_come_out_whole(values, missing):
    tokenizer = tokenizer_of("byte")
    ids = values[: len(values) - missing]
    assert "".join(decode_stream(tokenizer, ids)) == ids.decode("utf-8", "replace")


def test_a_character_is_printed_once_it_is_complete():
    printed = list(decode_stream(tokenizer_of("byte"), "a🐈b".encode()))
    assert [text for text in printed if text] == ["a", "🐈", "b"]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_each_token_costs_the_same_however_long_the_text_has_become(kind, monkeypatch):
    tokenizer, asked = tokenizer_of(kind), []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids: asked.append(len(ids)) or decode(ids))
    ids = [*(tokenizer.encode(TEXT).tolist() * 5), *([len(tokenizer) - 1] * 100)]
    for _ in decode_stream(tokenizer, ids):
        pass
    assert len(asked) <= 2 * len(ids) + 1
    assert max(asked) <= 5
