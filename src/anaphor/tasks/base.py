"""What a task is to the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from anaphor.metrics.perplexity import Score


@dataclass(frozen=True)
class Loss:
    """A sum, never a mean: batches differ in size, and means of means would weigh them wrongly. Batches know counts."""

    total: Tensor
    penalty: Tensor | None = None
    """What learning adds to the total; no part of what is told."""

    @property
    def objective(self) -> Tensor:
        """What is made small."""
        return self.total if self.penalty is None else self.total + self.penalty


class Task(Protocol):
    """Everything that the loop needs to know of what it trains."""

    def batches(self, epoch: int) -> Sequence[Any]:
        """The batches of an epoch, in an order that depends on nothing but the seed and the epoch."""
        ...

    def loss(self, model: Any, batch: Any, carry: Any) -> tuple[Loss, Any]:
        """The loss of a batch, and what is carried on to the next one, cut off from gradient."""
        ...

    def empty_carry(self, model: Any) -> Any:
        """What a carry looks like, for reading one back from a file; None where nothing is carried."""
        ...

    def evaluate(self, model: Any, split: str) -> Score:
        """The score on a split. What is carried in training stays untouched."""
        ...

    def sample(self, model: Any, seed: int) -> str:
        """Something for a person to read while the model trains."""
        ...
