"""Which examples make a batch: those of similar length, in an order that depends on (seed, epoch) and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.errors import ConfigError

Places = NDArray[np.int64]
# Batches that are sorted by length together. More of them pad less, and mix lengths less between batches. Long tails
# decide: of Shakespeare's dialogues a quarter as many pad twice as much.
POOL = 200


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Cuts examples into batches, each a list of their places."""

    sizes: Places
    """[N, K]: how long each example is, on each of its K sides; the first side is sorted by first."""
    rows: int | None = None
    """Examples of a batch."""
    tokens: int | None = None
    """Or as many examples as fit into so many tokens on their longer side, padding counted."""
    multiple: int = 1
    """Padded lengths are multiples of this, so that batches come in few shapes."""

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.tokens is None):
            raise ConfigError(f"rows={self.rows} and tokens={self.tokens}: a batch is limited by one of them")
        limit = {"rows": self.rows} if self.rows is not None else {"tokens": self.tokens or 0}
        at_least_one(**limit, multiple=self.multiple)

    def shuffled(self, seed: int, epoch: int) -> list[Places]:
        """Shuffled, sorted by length within pools, cut into batches, and the batches shuffled."""
        if seed < 0 or epoch < 0:
            raise ConfigError(f"seed={seed} and epoch={epoch}: they must be at least 0")
        generator = np.random.Generator(np.random.PCG64([seed, epoch]))
        order = generator.permutation(len(self.sizes))
        mean = float(self.sizes.max(1).mean())
        pool = POOL * (self.rows if self.rows is not None else max(1, int((self.tokens or 1) / mean)))
        batches: list[Places] = []
        for start in range(0, len(order), pool):
            batches += self._cut(self._sorted(order[start : start + pool]))
        return [batches[place] for place in generator.permutation(len(batches))]

    def by_length(self) -> list[Places]:
        """The shortest first: the least padding, whatever the seed."""
        return list(self._cut(self._sorted(np.arange(len(self.sizes)))))

    def in_order(self) -> list[Places]:
        """As they come."""
        return list(self._cut(np.arange(len(self.sizes))))

    def widths(self, batch: Places) -> tuple[int, ...]:
        """How long the rows of a batch are on each side, padding included."""
        return tuple(int(width) for width in self._padded(batch).max(0))

    def _padded(self, places: Places) -> Places:
        return -(-self.sizes[places] // self.multiple) * self.multiple

    def _sorted(self, places: Places) -> Places:
        first, *others = self._padded(places).T
        # Other sides rise and fall in turn, so that they do not jump where the first side grows. Sorting is stable:
        # equal lengths keep their shuffled order.
        turn = np.where(first // self.multiple % 2, 1, -1)
        keys: list[Any] = [*(turn * other for other in reversed(others)), first]
        return places[np.lexsort(keys)]

    def _cut(self, ordered: Places) -> Iterator[Places]:
        longest = self._padded(ordered).max(1).tolist()
        start = width = 0
        for place, size in enumerate(longest):
            width = max(width, size)
            full = place - start == self.rows
            if self.tokens is not None and place > start:
                full = (place - start + 1) * width > self.tokens
            if full:
                yield ordered[start:place]
                start, width = place, size
        yield ordered[start:]


def at_least_one(**settings: int) -> None:
    """Refuse the first setting below 1."""
    for name, value in settings.items():
        if value < 1:
            raise ConfigError(f"{name}={value}: it must be at least 1")
