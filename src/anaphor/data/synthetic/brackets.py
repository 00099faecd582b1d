"""The data set `dyck`: brackets of several kinds, nested to a bounded depth (Hewitt et al., 2020).

    ( [ ] { ( ) } )

Asked is every closing bracket: its kind is that of the last one that is open. A model needs a stack of bounded depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anaphor.config import check_range
from anaphor.data.synthetic.base import MAX_LENGTH, Answered, SyntheticDataset

OPENING, CLOSING = "([{<", ")]}>"


@dataclass(kw_only=True, eq=False)
class Dyck(SyntheticDataset):
    """Balanced brackets; each closing one is predicted."""

    name = "dyck"

    length: int = 20
    """Pairs of brackets in a sequence."""
    kinds: int = 3
    """Kinds of brackets, at most 4."""
    depth: int = 6
    """Largest number of brackets that are open at once."""

    def check(self) -> None:
        check_range(1, MAX_LENGTH // (2 * self.longer[-1]), length=self.length, depth=self.depth)
        check_range(1, len(OPENING), kinds=self.kinds)

    @property
    def words(self) -> tuple[str, ...]:
        return (*OPENING[: self.kinds], *CLOSING[: self.kinds])

    def count_tokens(self, times: int) -> int:
        return 2 * times * self.length

    def draw(self, random: np.random.RandomState, rows: int, times: int) -> Answered:
        count, every = self.count_tokens(times), np.arange(rows)
        wanted, kinds = random.random_sample((rows, count)), random.randint(self.kinds, size=(rows, count))
        stack, open_now = np.zeros((rows, self.depth + 1), np.int64), np.zeros(rows, np.int64)
        tokens, opens = np.empty((rows, count), np.int64), np.empty((rows, count), bool)
        for place in range(count):
            can_open = (open_now < self.depth) & (open_now < count - place)  # the rest must close what is open
            is_opening = can_open & ((open_now == 0) | (wanted[:, place] < 0.5))
            stack[every, open_now] = kinds[:, place]
            closed = stack[every, np.maximum(open_now - 1, 0)]
            tokens[:, place] = np.where(is_opening, kinds[:, place], self.kinds + closed)
            opens[:, place] = is_opening
            open_now += np.where(is_opening, 1, -1)
        return Answered.within(tokens, ~opens)
