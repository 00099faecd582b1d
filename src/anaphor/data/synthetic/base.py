"""What synthetic tasks have in common: sequences of words, and the right answer after some of them.

The same options and seed give the same sequences everywhere. `times` are lengths beyond training: sequences so many
times as long as those of train, valid and test.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from anaphor.config import check_range
from anaphor.data.dataset import SPLITS, Dataset, encode_lines
from anaphor.errors import ConfigError

Ids = NDArray[np.int64]
NO_ANSWER = -100
"""Where no answer is asked; losses and accuracy leave these positions out."""
MAX_LENGTH = 1 << 16
MAX_SEQUENCES = 1 << 20
MAX_WORDS = 1 << 16
MAX_TOKENS = 1 << 28
"""Of one split."""


@dataclass(frozen=True)
class Answered:
    """Sequences, and the answers to what they ask."""

    tokens: Ids
    """[N, T]: indices into the words of the task."""
    answers: Ids
    """[N, T]: the word that is the right answer after each token, or NO_ANSWER."""

    @classmethod
    def within(cls, tokens: Ids, is_answer: NDArray[np.bool_]) -> Answered:
        """Sequences that hold their answers: those are predicted from what stands before them."""
        answers = np.full_like(tokens, NO_ANSWER)
        answers[:, :-1] = np.where(is_answer[:, 1:], tokens[:, 1:], NO_ANSWER)
        return cls(tokens, answers)

    def first(self, count: int) -> Answered:
        """The first sequences."""
        return Answered(self.tokens[:count], self.answers[:count])


@dataclass(kw_only=True, eq=False)
class SyntheticDataset(Dataset):
    """Base class: a subclass has options as fields, `words` and `draw`."""

    longer: ClassVar[tuple[int, ...]] = (2, 4)
    """How many times as long as in training the sequences are on which a run is scored as well."""

    sequences: int = 10_000
    """Sequences of train; valid and test have a tenth as many each."""
    seed: int = 0
    """Seed of the sequences, not of a run."""

    def __post_init__(self) -> None:
        check_range(1, MAX_SEQUENCES, sequences=self.sequences)
        self.check()
        sizes = {"sequences": self.sequences, "length": self.count_tokens(1)}
        if sizes["sequences"] * sizes["length"] > MAX_TOKENS:
            raise ConfigError(
                f"{self.name} has {sizes['sequences']:,} sequences of {sizes['length']:,} tokens: a split may have at "
                f"most {MAX_TOKENS:,} tokens"
            )

    @abstractmethod
    def check(self) -> None:
        """Raise for options that do not fit together."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """The vocabulary."""

    @abstractmethod
    def count_tokens(self, times: int) -> int:
        """Tokens of a sequence."""

    @abstractmethod
    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        """So many sequences. NumPy promises that a `RandomState` draws the same in every version."""

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def signature(self) -> Mapping[str, Any]:
        """What a score on it depends on, for its signature."""
        return {name: value for name, value in self.options.items() if name != "sequences"}

    def make_sequences(self, split: str, times: int = 1) -> Answered:
        """The sequences of a split with their answers."""
        if not 1 <= times <= self.longer[-1]:
            raise ConfigError(f"{self.name} has sequences up to {self.longer[-1]} times as long as in training")
        split = self.check_split(split)
        rows = self.sequences if split == SPLITS[0] else self.sequences // 10 or 1
        return _draw(type(self), tuple(self.options.items()), split, rows, times)

    def read(self, split: str, column: str | None = None) -> bytes:
        self.column_index(column)
        names = np.array(self.words, object)
        return encode_lines(" ".join(row) for row in names[self.make_sequences(split).tokens].tolist())


@lru_cache(maxsize=8)
def _draw(kind: type[SyntheticDataset], options: tuple[tuple[str, Any], ...], split: str, rows: int, times: int) -> (
    Answered
):  # fmt: skip
    dataset = kind(**dict(options))
    key = f"{dataset.name}/{split}/{times}/{options}"
    random = np.random.RandomState(np.frombuffer(hashlib.sha256(key.encode()).digest(), np.uint32))
    found = dataset.draw(random, rows, times)
    for part in (found.tokens, found.answers):
        part.setflags(write=False)  # they are shared
    return found


def letters(count: int) -> tuple[str, ...]:
    """Names of so many words: a to z, then w26, w27, …"""
    return tuple(chr(ord("a") + number) if number < 26 else f"w{number}" for number in range(count))
