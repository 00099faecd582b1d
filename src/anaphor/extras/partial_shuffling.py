"""Partial shuffling (Press, 2019): in every epoch other parts of the text share a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anaphor.data.stream_order import StreamOrder
from anaphor.registry import register_stream_order

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anaphor.training.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class PartialShufflingSettings:
    """Whether rows are shuffled."""

    section: ClassVar[str] = "partial_shuffling"

    partial_shuffle: bool = False
    """Partial shuffling: rotate every row by a random number of tokens in every epoch."""


class PartialShuffling(StreamOrder):
    """Every row is rotated by a random number of tokens, which depends on the seed and the epoch alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def starts(self, rows: int, length: int, epoch: int) -> NDArray[np.int64]:
        import numpy as np

        return np.random.default_rng((self.seed, epoch)).integers(length, size=rows)


def make_order(settings: PartialShufflingSettings, spec: RunSpec) -> PartialShuffling | None:
    """The order of a run with these settings."""
    return PartialShuffling(spec.seed) if settings.partial_shuffle else None


def register() -> None:
    register_stream_order("partial-shuffling", make_order, PartialShufflingSettings)
