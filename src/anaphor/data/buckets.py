"""Batches of examples of similar length, in an order that depends on (seed, epoch) and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.config import check_at_least
from anaphor.errors import ConfigError

Indices = NDArray[np.int64]
# Batches that are sorted by length together. More of them pad less and mix lengths less. Long tails decide: with a
# quarter of this, Shakespeare's dialogues have twice the padding.
POOL = 200


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Divides examples into batches, each an array of indices."""

    sizes: Indices
    """[N, K]: length of each example on each of its K sides; the first side is the first sort key."""
    rows: int | Callable[[int], int] | None = None
    """Examples per batch, or how many there may be by their padded length on the longer side."""
    max_tokens: int | None = None
    """Or as many examples as fit into this many tokens on their longer side, including padding."""
    pad_to: int = 1
    """Padded lengths are multiples of this, so that there are few shapes."""

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.max_tokens is None):
            raise ConfigError(f"rows={self.rows} and max_tokens={self.max_tokens}: give exactly one of them")
        rows = None if callable(self.rows) else self.rows
        check_at_least(1, rows=rows, max_tokens=self.max_tokens, pad_to=self.pad_to)

    def shuffle(self, seed: int, epoch: int) -> list[Indices]:
        """Shuffle the examples, sort pools of them by length, divide them into batches, and shuffle the batches."""
        if seed < 0 or epoch < 0:
            raise ConfigError(f"seed={seed} and epoch={epoch}: they must be at least 0")
        generator = np.random.Generator(np.random.PCG64([seed, epoch]))
        order = generator.permutation(len(self.sizes))
        mean = float(self.sizes.max(1).mean())
        pool = POOL * (self._count_rows(int(mean)) if self.max_tokens is None else max(1, int(self.max_tokens / mean)))
        batches: list[Indices] = []
        for start in range(0, len(order), pool):
            batches += self._divide(self._sort(order[start : start + pool]))
        return [batches[index] for index in generator.permutation(len(batches))]

    def by_length(self) -> list[Indices]:
        """Shortest examples first: the least padding, for every seed."""
        return list(self._divide(self._sort(np.arange(len(self.sizes)))))

    def widths(self, batch: Indices) -> tuple[int, ...]:
        """Padded length of a batch on each side."""
        return tuple(int(width) for width in self._pad_lengths(batch).max(0))

    def _pad_lengths(self, indices: Indices) -> Indices:
        return -(-self.sizes[indices] // self.pad_to) * self.pad_to

    def _sort(self, indices: Indices) -> Indices:
        first, *others = self._pad_lengths(indices).T
        # Other sides rise and fall in turn, so that they do not jump where the first side grows. The sort is stable:
        # equal lengths keep their shuffled order.
        direction = np.where(first // self.pad_to % 2, 1, -1)
        keys: list[Any] = [*(direction * other for other in reversed(others)), first]
        return indices[np.lexsort(keys)]

    def _divide(self, ordered: Indices) -> Iterator[Indices]:
        longest = self._pad_lengths(ordered).max(1).tolist()
        start = width = 0
        for end, size in enumerate(longest):
            width = max(width, size)
            if end - start >= self._count_rows(width):
                yield ordered[start:end]
                start, width = end, size
        yield ordered[start:]

    def _count_rows(self, width: int) -> int:
        """How many examples of a padded length may be in one batch."""
        if self.max_tokens is not None:
            return max(1, self.max_tokens // width)
        assert self.rows is not None, "one of the two is given"
        return self.rows(width) if callable(self.rows) else self.rows
