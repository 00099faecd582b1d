"""Classes of tokens, to see on which kind of token a model is better: words, numbers, punctuation, unknown ones."""

from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from anaphor.data.tokenizer import Ids, Tokenizer
from anaphor.errors import AnaphorError
from anaphor.inspect.split_losses import Groups

WORD_CLASSES = ("word", "capitalized word", "number", "punctuation", "mixed", "unknown", "end of line")
PIECE_CLASSES = ("start of a word", "inside a word", "number", "punctuation", "space", "unknown", "end of line")
_NUMBER = re.compile(r"[^\w]*\d[\d\W]*")


def group_by_class(tokenizer: Tokenizer, ids: Ids) -> Groups:
    """Words by what they are; pieces of words by whether they start one."""
    labels = PIECE_CLASSES if tokenizer.is_joined else WORD_CLASSES
    classify = classify_piece if tokenizer.is_joined else classify_word
    classes = [labels.index(classify(token)) for token in pieces_of(tokenizer)]
    classes[tokenizer.boundary] = labels.index("end of line")
    if tokenizer.unknown is not None:
        classes[tokenizer.unknown] = labels.index("unknown")
    codes = np.array(classes, np.int16)[ids]
    if tokenizer.is_joined:
        continues = np.array([piece[:1].isalnum() for piece in pieces_of(tokenizer)])[ids]
        ends = np.array([piece[-1:].isalnum() for piece in pieces_of(tokenizer)])[ids]
        is_inside = continues & np.concatenate(([False], ends[:-1])) & (codes == labels.index("start of a word"))
        codes = np.where(is_inside, labels.index("inside a word"), codes)
    return Groups("Class of the token", labels, codes)


def pieces_of(tokenizer: Tokenizer) -> list[str]:
    """The tokens as text. Of bytes that are no character the letter U+FFFD would say nothing: they count as letters."""
    if not tokenizer.is_joined:
        return list(tokenizer.tokens)
    texts = []
    for number, token in enumerate(tokenizer.tokens):
        with suppress(AnaphorError, ValueError):
            token = tokenizer.decode([number])
        texts.append(token.replace("\ufffd", "é"))
    return texts


def classify_word(word: str) -> str:
    """The class of a word, by its letters and digits."""
    if not any(letter.isalnum() for letter in word):
        return "punctuation"
    if _NUMBER.fullmatch(word):
        return "number"
    if not word.replace("-", "").replace("'", "").isalpha():
        return "mixed"
    return "capitalized word" if word[0].isupper() else "word"


def classify_piece(piece: str) -> str:
    """The class of a token: end of line, space, punctuation, number, or start of a word."""
    if piece == "\n":
        return "end of line"
    if not piece.strip():
        return "space"
    if not any(letter.isalnum() for letter in piece):
        return "punctuation"
    return "number" if _NUMBER.fullmatch(piece.strip()) else "start of a word"


def group_pieces(text: bytes, ends: NDArray[np.int64], is_unknown: NDArray[np.bool_]) -> Groups:
    """The class of each piece of a text: word, number, punctuation, end of line and so on.

    Args:
        text: The text that the pieces are parts of.
        ends: Where each piece ends, in bytes.
        is_unknown: Which pieces have an unknown token.
    """
    codes: dict[bytes, int] = {}
    found, start = np.empty(len(ends), np.int16), 0
    for item, end in enumerate(ends.tolist()):
        piece, start = text[start:end], end
        if piece not in codes:
            name = classify_word(piece.decode("utf-8", "replace").strip())
            codes[piece] = WORD_CLASSES.index("end of line" if piece.endswith(b"\n") else name)
        found[item] = codes[piece]
    found[is_unknown] = WORD_CLASSES.index("unknown")
    return Groups("Class of the piece", WORD_CLASSES, found)
