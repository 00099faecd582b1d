"""Words between white space, and `<eos>` after each line, as in the well-known word language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import ClassVar, Self

import numpy as np

from anaphor.data.reading import pieces
from anaphor.data.tokenizer import UNKNOWN, Ids, Listed, most_frequent

END = "<eos>"


class Word(Listed):
    """White space separates words. Numbers go by first appearance, `<unk>` comes last where the text has none."""

    kind = "word"
    special: ClassVar[tuple[str, ...]] = (END, UNKNOWN)

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__(tokens)
        self.boundary = self.pad = self._ids[END]
        self.unknown: int = self._ids[UNKNOWN]

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        counts: Counter[str] = Counter()
        for words in words_of(text):
            counts.update(words)
        return cls(most_frequent(counts, cls.special, size))

    def encode(self, text: str) -> Ids:
        blocks = [self._numbers(words) for words in words_of(text)]
        return np.concatenate(blocks) if blocks else np.empty(0, np.int32)

    def encode_sentence(self, text: str) -> Ids:
        return self._numbers(_words(text))

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Words joined by single spaces, a newline for each `<eos>`."""
        lines: list[list[str]] = [[]]
        for number in ids:
            if number == self.boundary:
                lines.append([])
            else:
                lines[-1].append(self.tokens[number])
        return "\n".join(map(" ".join, lines))

    def _numbers(self, words: list[str]) -> Ids:
        return np.fromiter(map(self._ids.get, words, repeat(self.unknown)), np.int32, len(words))


def words_of(text: str) -> Iterator[list[str]]:
    """The words of a text with `<eos>` after each line, the last one included whether it is ended or not."""
    for piece in pieces(text):
        yield _words(piece)
    if text and not text.endswith("\n"):
        yield [END]


def _words(text: str) -> list[str]:
    return text.replace("\n", f" {END} ").split()
