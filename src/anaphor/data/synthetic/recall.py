"""The data set `recall`: multi-query associative recall (MQAR; Arora et al., 2023, "Zoology").

Keys are read with their values; then each key is asked for its value: `k3 v1 k0 v7 … . k0 v7 . . k3 v1`. A model must
keep all pairs, so that accuracy falls once they are more than its state holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anaphor.config import check_range
from anaphor.data.synthetic.base import MAX_LENGTH, MAX_WORDS, Answered, Ids, SyntheticDataset
from anaphor.errors import ConfigError

FILLER = "."
ROWS_AT_ONCE = 512


@dataclass(kw_only=True, eq=False)
class Recall(SyntheticDataset):
    """Keys with values, then each key once more, asked for its value."""

    name = "recall"

    pairs: int = 8
    """Keys with values in a sequence."""
    vocabulary: int = 128
    """Words: half of them are keys, half values. The paper has 8,192."""
    length: int = 0
    """Tokens of a sequence: fillers stand between the questions. 0: no fillers."""

    def check(self) -> None:
        check_range(4, MAX_WORDS, vocabulary=self.vocabulary)
        check_range(1, MAX_LENGTH // (4 * self.longer[-1]), pairs=self.pairs)
        check_range(0, MAX_LENGTH // self.longer[-1], length=self.length)
        if self.pairs * self.longer[-1] > self.vocabulary // 2:
            raise ConfigError(
                f"pairs={self.pairs}: sequences {self.longer[-1]} times as long need {self.pairs * self.longer[-1]} "
                f"keys, and vocabulary={self.vocabulary} has {self.vocabulary // 2}: give a vocabulary of at least "
                f"{2 * self.pairs * self.longer[-1]}"
            )
        if self.length and self.length < 4 * self.pairs:
            raise ConfigError(f"length={self.length}: {self.pairs} pairs and as many questions take {4 * self.pairs}")

    @property
    def words(self) -> tuple[str, ...]:
        half = self.vocabulary // 2
        return (FILLER, *(f"k{number}" for number in range(half)), *(f"v{number}" for number in range(half)))

    def count_tokens(self, times: int) -> int:
        return times * (self.length or 4 * self.pairs)

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        pairs, half, length = times * self.pairs, self.vocabulary // 2, self.count_tokens(times)
        keys = 1 + _choose(random, rows, half, pairs)
        values = 1 + half + random.randint(half, size=(rows, pairs))
        order = _choose(random, rows, pairs, pairs)
        # Questions take two tokens each: of the places after the pairs some are chosen, in order.
        places = np.sort(_choose(random, rows, (length - 2 * pairs) // 2, pairs), axis=1)
        tokens = np.zeros((rows, length), np.int64)
        tokens[:, : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
        is_answer = np.zeros((rows, length), bool)
        asked = 2 * pairs + 2 * places
        np.put_along_axis(tokens, asked, np.take_along_axis(keys, order, 1), 1)
        np.put_along_axis(tokens, asked + 1, np.take_along_axis(values, order, 1), 1)
        np.put_along_axis(is_answer, asked + 1, True, 1)
        return Answered.within(tokens, is_answer)


def _choose(random: np.random.RandomState, rows: int, of: int, count: int) -> Ids:
    """In each row `count` different numbers below `of`, in random order."""
    parts = [
        random.random_sample((min(ROWS_AT_ONCE, rows - start), of)).argsort(1, kind="stable")[:, :count]
        for start in range(0, rows, ROWS_AT_ONCE)
    ]
    return np.concatenate(parts)
