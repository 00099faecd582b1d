"""The data set `flip-flop`: one bit of memory (Liu et al., 2023, "Exposing attention glitches with flip-flop language
modeling").

    w 1 i 0 i 0 w 0 i 1 r 0

`w` writes the bit that follows, `i` is ignored, and after `r` comes the bit that was written last. Recurrent networks
learn it without an error; attention makes a few, far from the last `w`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anaphor.config import check_range
from anaphor.data.synthetic.base import MAX_LENGTH, Answered, SyntheticDataset
from anaphor.errors import ConfigError

WRITE, IGNORE, READ = 0, 1, 2
FIRST_BIT = 3


@dataclass(kw_only=True, eq=False)
class FlipFlop(SyntheticDataset):
    """Instructions to write, ignore and read a bit."""

    name = "flip-flop"

    length: int = 32
    """Instructions of a sequence, each with a bit; the first writes and the last reads."""
    ignore: float = 0.8
    """Share of the instructions that are ignored; half of the others write, half read."""

    def check(self) -> None:
        check_range(2, MAX_LENGTH // (2 * self.longer[-1]), length=self.length)
        if not 0 <= self.ignore < 1:
            raise ConfigError(f"ignore={self.ignore}: it must be at least 0 and below 1")

    @property
    def words(self) -> tuple[str, ...]:
        return ("w", "i", "r", "0", "1")

    def count_tokens(self, times: int) -> int:
        return 2 * times * self.length

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        count = times * self.length
        drawn = random.random_sample((rows, count))
        kinds = np.where(drawn < self.ignore, IGNORE, np.where(drawn < (1 + self.ignore) / 2, WRITE, READ))
        kinds[:, 0], kinds[:, -1] = WRITE, READ
        bits = random.randint(2, size=(rows, count))
        writes = np.maximum.accumulate(np.where(kinds == WRITE, np.arange(count), 0), axis=1)
        bits = np.where(kinds == READ, np.take_along_axis(bits, writes, 1), bits)
        tokens = np.stack((kinds, FIRST_BIT + bits), 2).reshape(rows, -1)
        is_answer = np.stack((np.zeros_like(kinds, bool), kinds == READ), 2).reshape(rows, -1)
        return Answered.within(tokens, is_answer)
