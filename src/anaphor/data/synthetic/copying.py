"""The data sets `copy`, `selective-copy` and `induction`: words are to be repeated.

    copy            c a d b | c a d b
    selective-copy  . c . . a . d . b . | c a d b     (Jing et al., 2019; Gu and Dao, 2023)
    induction       d b ! a c b d a ! a               (Olsson et al., 2022; Gu and Dao, 2023)

To copy, all of a sequence must be kept; to copy selectively, what is kept depends on the content; an induction head
finds what stood after the last `!`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anaphor.config import check_range
from anaphor.data.synthetic.base import MAX_LENGTH, MAX_WORDS, Answered, SyntheticDataset, letters
from anaphor.errors import ConfigError

NOISE, START, MARK = ".", "|", "!"


@dataclass(kw_only=True, eq=False)
class Copy(SyntheticDataset):
    """A row of words, and the same row again."""

    name = "copy"

    length: int = 16
    """Words of a row."""
    vocabulary: int = 16
    """Different words."""

    def check(self) -> None:
        check_range(2, MAX_WORDS, vocabulary=self.vocabulary)
        check_range(1, MAX_LENGTH // self.longer[-1], length=self.length)

    @property
    def words(self) -> tuple[str, ...]:
        return (START, *letters(self.vocabulary))

    def count_tokens(self, times: int) -> int:
        return 2 * times * self.length + 1

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        row = 1 + random.randint(self.vocabulary, size=(rows, times * self.length))
        tokens = np.concatenate((row, np.zeros((rows, 1), np.int64), row), 1)
        is_answer = np.broadcast_to(np.arange(tokens.shape[1]) > row.shape[1], tokens.shape)
        return Answered.within(tokens, is_answer)


@dataclass(kw_only=True, eq=False)
class SelectiveCopy(SyntheticDataset):
    """A few words among noise, and these words alone."""

    name = "selective-copy"

    items: int = 8
    """Words to copy, however long the sequence is."""
    length: int = 32
    """Words and noise together."""
    vocabulary: int = 16
    """Different words."""

    def check(self) -> None:
        check_range(2, MAX_WORDS, vocabulary=self.vocabulary)
        check_range(1, MAX_LENGTH // self.longer[-1], length=self.length, items=self.items)
        if self.items > self.length:
            raise ConfigError(f"items={self.items}: length={self.length} must have room for them")

    @property
    def words(self) -> tuple[str, ...]:
        return (NOISE, START, *letters(self.vocabulary))

    def count_tokens(self, times: int) -> int:
        return times * self.length + 1 + self.items

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        row = 2 + random.randint(self.vocabulary, size=(rows, self.items))
        chosen = random.random_sample((rows, times * self.length)).argsort(1, kind="stable")[:, : self.items]
        noisy = np.zeros((rows, times * self.length), np.int64)
        np.put_along_axis(noisy, np.sort(chosen, 1), row, 1)
        tokens = np.concatenate((noisy, np.ones((rows, 1), np.int64), row), 1)
        is_answer = np.broadcast_to(np.arange(tokens.shape[1]) > noisy.shape[1], tokens.shape)
        return Answered.within(tokens, is_answer)


@dataclass(kw_only=True, eq=False)
class Induction(SyntheticDataset):
    """Random words with one mark; after the mark at the end comes what came after the first."""

    name = "induction"

    length: int = 32
    """Words before the mark at the end."""
    vocabulary: int = 16
    """Different words."""

    def check(self) -> None:
        check_range(2, MAX_WORDS, vocabulary=self.vocabulary)
        check_range(3, MAX_LENGTH // self.longer[-1], length=self.length)

    @property
    def words(self) -> tuple[str, ...]:
        return (MARK, *letters(self.vocabulary))

    def count_tokens(self, times: int) -> int:
        return times * self.length + 2

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        tokens = 1 + random.randint(self.vocabulary, size=(rows, self.count_tokens(times)))
        every, place = np.arange(rows), random.randint(times * self.length - 1, size=rows)
        tokens[every, place] = tokens[:, -2] = 0
        tokens[:, -1] = tokens[every, place + 1]
        is_answer = np.broadcast_to(np.arange(tokens.shape[1]) == tokens.shape[1] - 1, tokens.shape)
        return Answered.within(tokens, is_answer)
