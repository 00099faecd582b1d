"""One token for each character."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from anaphor.data.reading import PIECE
from anaphor.data.tokenizer import UNKNOWN, Ids, Listed, most_frequent
from anaphor.errors import DataError

BOUNDARY = "\n"


class Character(Listed):
    """Characters in the order of their code points, then `<unk>` for those that training text has not."""

    kind = "character"
    special: ClassVar[tuple[str, ...]] = (BOUNDARY, UNKNOWN)

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__(tokens)
        for token in self.tokens:
            if len(token) != 1 and token != UNKNOWN:
                raise DataError(f"the vocabulary of a character tokenizer holds {token!r}, which is not one character")
        self.boundary = self.pad = self._ids[BOUNDARY]
        self.unknown: int = self._ids[UNKNOWN]

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        counts = Counter(dict.fromkeys(set(text), 1) if size is None else text)
        kept = most_frequent(counts, cls.special, size)
        return cls([*sorted(token for token in kept if token != UNKNOWN), UNKNOWN])

    def encode(self, text: str) -> Ids:
        ids = np.empty(len(text), np.int32)
        for start in range(0, len(text), PIECE):
            part = text[start : start + PIECE]
            points = np.frombuffer(part.encode("utf-32-le", "surrogatepass"), np.uint32)
            ids[start : start + len(part)] = self._number_of_point[points]
        return ids

    def encode_sentence(self, text: str) -> Ids:
        return self.encode(text)

    def parts(self, text: str) -> Iterable[str]:
        return text

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The characters; U+FFFD, the replacement character, where one is unknown."""
        return "".join("\ufffd" if number == self.unknown else self.tokens[number] for number in ids)

    @cached_property
    def _number_of_point(self) -> NDArray[np.int32]:
        table = np.full(0x110000, self.unknown, np.int32)
        for token, number in self._ids.items():
            if token != UNKNOWN:
                table[ord(token)] = number
        return table
