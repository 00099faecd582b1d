"""A step: from batches to new weights, and a report of how it went that may be read later.

Nothing here looks at a value, so that a GPU never waits for Python; `accelerate.Captured` replays the same work as one
graph.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anaphor.tasks.base import Task
from anaphor.training.optim import Optimizer

LARGEST_LOSS = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Report:
    """The mean loss of a step and the norm of each weight's gradient, wherever they lie now."""

    values: Tensor
    """[1 + number of names]"""
    names: Sequence[str]
    """The weights that had a gradient."""
    arrived: Callable[[], object] = lambda: None
    """Waits until the values can be read."""

    def read(self) -> Reading:
        self.arrived()
        loss, *norms = self.values.tolist()
        return Reading(loss, dict(zip(self.names, norms, strict=True)))


def tellable(loss: float) -> bool:
    """Whether a loss has a perplexity that is a number. Gates that are shut for good keep a ruined model's loss finite,
    but it is beyond all bounds."""
    return math.isfinite(loss) and loss < LARGEST_LOSS


@dataclass(frozen=True)
class Reading:
    """A report that was read."""

    loss: float
    norms: dict[str, float]

    @property
    def norm(self) -> float:
        """Of all gradients together."""
        return math.hypot(*self.norms.values())

    @property
    def finite(self) -> bool:
        return tellable(self.loss) and math.isfinite(self.norm)

    @property
    def first_bad(self) -> str | None:
        """The first weight whose gradient is not finite."""
        return next((name for name, norm in self.norms.items() if not math.isfinite(norm)), None)


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Single precision on a GPU may use tensor cores, as its kernels of recurrence do by themselves. Scores are made
    without, by `eval_mode`: they are to be the same wherever they are made."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@dataclass
class Step:
    """Gradients of a group of batches, clipped together, and one update."""

    model: nn.Module
    task: Task
    optimizer: Optimizer
    clip: float = 0.0
    """Largest norm of all gradients together; 0 means no bound."""
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    lag: ClassVar[int] = 0
    """How many steps may be begun before the report of one is read."""

    def __call__(self, group: Sequence[Any], carry: Any) -> tuple[Report, Any]:
        """Learn from a group of batches. Gives a report, and what is carried on to the next."""
        values, names, carry = self.run(group, carry)
        return Report(values, names), carry

    @tensor_cores()
    def run(self, group: Sequence[Any], carry: Any) -> tuple[Tensor, list[str], Any]:
        self.optimizer.zero_grad()
        count: Tensor | int = sum(batch.amount for batch in group)
        total: Tensor | float = 0.0
        for batch in group:
            with self.precision():
                loss, carry = self.task.loss(self.model, batch, carry)
            (loss.objective / count).backward()
            total = total + loss.total.detach()
        weights = self.model.named_parameters()
        gradients = {name: weight.grad for name, weight in weights if weight.grad is not None}
        norms = torch.stack(torch._foreach_norm(list(gradients.values()))).float()
        if self.clip:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.clip, torch.linalg.vector_norm(norms))
        self.optimizer.step()
        assert isinstance(total, Tensor), "a group has at least one batch"
        return torch.cat([(total / count).float().view(1), norms]), list(gradients), carry
