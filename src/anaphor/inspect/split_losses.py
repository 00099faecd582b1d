"""The loss of every item of a split in one model, to compare two models item by item. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Groups:
    """Items in groups, such as words by their frequency."""

    title: str
    labels: tuple[str, ...]
    """In the order of a table."""
    codes: NDArray[np.integer[Any]]
    """[N]: index of the label of each item."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Groups) and self.labels == other.labels and np.array_equal(self.codes, other.codes)

    __hash__ = None  # type: ignore[assignment] # it holds an array

    @classmethod
    def by_count(cls, title: str, counts: NDArray[np.integer[Any]], bounds: Sequence[int]) -> Self:
        """Groups of counts up to each bound and beyond the last: '0', '1', '2–10', 'over 10'."""
        edges = np.asarray(bounds)
        labels, low = [], int(min(counts.min(initial=bounds[0]), bounds[0]))
        for bound in bounds:
            labels.append(f"{low:,}" if bound <= low else f"{low:,}–{bound:,}")
            low = bound + 1
        return cls(title, (*labels, f"over {bounds[-1]:,}"), np.searchsorted(edges, counts).astype(np.int16))


@dataclass(frozen=True)
class SplitLosses(ABC):
    """Items of a split in order: the tokens of a text, or separate examples."""

    unit: ClassVar[str]
    """What the items are, in the plural."""
    is_text: ClassVar[bool] = False
    """Whether items follow each other as in a text, so that a passage has several of them."""

    losses: NDArray[np.float32]
    """[N]"""
    lines: NDArray[np.int32]
    """[N]: number of the line or example of each item; it does not decrease."""
    result: Mapping[str, Any]
    """Metrics of the whole split, and their signature."""
    groups: Mapping[str, Groups]
    """By name, such as frequency."""
    notes: tuple[str, ...]

    @property
    def is_joined(self) -> bool:
        """Whether the tokens of a text are shown without spaces between them."""
        return True

    @abstractmethod
    def mismatch(self, other: Any, names: tuple[str, str]) -> str:
        """Why the items are not those of the other; empty where they are. `names` are those of the two runs."""

    def align(self, other: Any) -> tuple[SplitLosses, SplitLosses] | None:
        """Both with common items, where theirs differ but can be brought together; else None."""
        return None

    def place(self, item: int) -> int:
        """Index of an item in the split, as its run counts."""
        return item

    @abstractmethod
    def show(self, start: int, stop: int) -> dict[str, Any]:
        """Items from start to stop, for people, without what depends on the model."""

    def predictions(self, indices: Sequence[int], experiment: Any) -> list[dict[str, Any]]:
        """What the model makes of separate examples, such as the predicted label."""
        return [{} for _ in indices]
