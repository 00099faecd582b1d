"""Step: from batches to updated weights, and metrics of the step that may be read later.

Nothing here reads a value on the host, so that a GPU never waits for Python; `CUDAGraphStep` replays the same work as
one graph. `Step` is its slow twin.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anaphor.cuda_graphs import CUDAGraphs
from anaphor.imported_files import IMPORTED, note_backward_place
from anaphor.training.checks import check_batch, get_loss
from anaphor.training.experiment import Experiment, Loss
from anaphor.training.optimizers import Optimizer


@dataclass(frozen=True)
class StepReport:
    """Mean loss of a step, the gradient norm of each parameter, and the number of correct items where the task counts
    them, wherever they are now."""

    values: Tensor
    """[1 + number of names], or one more"""
    names: Sequence[str]
    """Parameters that had a gradient."""
    wait: Callable[[], object] = lambda: None
    """Waits until the values have arrived."""

    def read(self) -> StepMetrics:
        """Wait for the step and return its values. On a GPU this is where the host waits."""
        self.wait()
        loss, *others = self.values.tolist()
        norms, counts = others[: len(self.names)], others[len(self.names) :]
        return StepMetrics(loss, dict(zip(self.names, norms, strict=True)), *map(int, counts))


def is_finite_loss(loss: float, largest: float = math.inf) -> bool:
    """Whether a loss is finite and below what counts as divergence. Saturated gates can keep the loss of a ruined model
    finite, but far too large."""
    return math.isfinite(loss) and loss < largest


@dataclass(frozen=True)
class StepMetrics:
    """A report that was read."""

    loss: float
    norms: dict[str, float]
    correct: int | None = None
    """Items that were predicted correctly; None where the task does not count them."""

    @property
    def norm(self) -> float:
        """Norm of all gradients together."""
        return math.hypot(*self.norms.values())

    def is_finite(self, largest_loss: float = math.inf) -> bool:
        """Whether training may go on: loss and gradient norm are finite, and the loss is not above the largest one."""
        return is_finite_loss(self.loss, largest_loss) and math.isfinite(self.norm)

    @property
    def first_nonfinite(self) -> str | None:
        """The first parameter whose gradient is not finite."""
        return next((name for name, norm in self.norms.items() if not math.isfinite(norm)), None)


@contextmanager
def tf32_matmul() -> Iterator[None]:
    """float32 products may use tensor cores while training. Scores are made without, so that they do not depend on
    where they are made."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before


@dataclass
class Step:
    """Gradients of a group of batches, clipped together, and one update."""

    experiment: Experiment
    optimizer: Optimizer
    clip: float = 0.0
    """Largest norm of all gradients together; 0 for no clipping."""
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    lag: ClassVar[int] = 0
    """How many steps may start before the report of one is read."""

    def __call__(self, group: Sequence[Any], carry: Any) -> tuple[StepReport, Any]:
        """Train on a group of batches. Returns a report, and the carry for the next group."""
        (values, names), carry = self.run(group, carry)
        return StepReport(values, names), carry

    @tf32_matmul()
    def run(self, group: Sequence[Any], carry: Any) -> tuple[tuple[Tensor, list[str]], Any]:
        """Values and names of the report, and the next carry. Reads nothing on the host."""
        model = self.experiment.model
        self.optimizer.zero_grad()
        try:
            denominator: Tensor | int = sum(batch.denominator for batch in group)
        except AttributeError:
            check_batch(self.experiment, group[0])
            raise
        total: Tensor | float = 0.0
        correct: list[Tensor] = []
        for batch in group:
            forward = partial(self._forward, batch, carry)
            loss, carry = forward()
            with located_backward(forward):
                (loss.objective / denominator).backward()
            total = total + loss.total.detach()
            if loss.correct is not None:
                correct.append(loss.correct)
        assert isinstance(total, Tensor), "a group has at least one batch"
        total, count = self._sum(total, torch.stack(correct).sum() if correct else None)
        gradients = _gradients(model)
        norms = torch.stack(torch._foreach_norm(list(gradients.values()))).float()
        # As `clip_grad_norm_`, with the norms that the report has anyway.
        self.optimizer.step(self.clip, torch.linalg.vector_norm(norms))
        counts = [] if count is None else [count.float().view(1)]
        values = torch.cat([(total / denominator).float().view(1), norms, *counts])
        return (values, list(gradients)), carry

    def _sum(self, total: Tensor, correct: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Loss and correct items of the whole group, whose gradients are then those of all of it."""
        return total, correct

    def _forward(self, batch: Any, carry: Any) -> tuple[Loss, Any]:
        with self.autocast():
            return get_loss(self.experiment, batch, carry)


@contextmanager
def located_backward(forward: Callable[[], tuple[Loss, Any]]) -> Iterator[None]:
    """Where autograd raises in the block, its error gets a note of the line of a user's file that it belongs to, for no
    Python is called there. Torch knows the line only of what ran with anomaly detection, so `forward` runs again."""
    try:
        yield
    except RuntimeError as error:
        # Not of its subclasses: there is no memory, or the GPU has failed.
        if type(error) is RuntimeError and IMPORTED:
            # What fails may have been computed by the call before, where a part keeps tensors for the next one.
            any(note_backward_place(error, _trace_backward(forward)) for _ in range(2))
        raise


def _trace_backward(forward: Callable[[], tuple[Loss, Any]]) -> str:
    """Where the operation was called whose backward pass fails; empty where none does."""
    with warnings.catch_warnings(record=True) as caught, suppress(Exception):
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly(check_nan=False):
            forward()[0].objective.backward()
    return "\n".join(str(warning.message) for warning in caught)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients by name; of a sparse one, as a user's own embeddings may have, the rows that it has."""
    gradients = {}
    for name, weight in model.named_parameters():
        if weight.grad is None:
            continue
        if weight.grad.is_sparse:
            weight.grad = weight.grad.coalesce()
        gradients[name] = weight.grad.values() if weight.grad.is_sparse else weight.grad
    return gradients


@dataclass
class CUDAGraphStep(Step):
    """As `Step`. The optimizer must be built for it: `build_optimizer(..., captured=True)`."""

    lag: ClassVar[int] = 1
    captured: CUDAGraphs = field(default_factory=CUDAGraphs)

    def __post_init__(self) -> None:
        self.host_buffers: list[Tensor] = []
        """Memory of the host into which reports are sent, in turns: one arrives while the one before is read."""
        self.next_buffer = 0

    def __call__(self, group: Sequence[Any], carry: Any) -> tuple[StepReport, Any]:
        (values, names), carry = self.captured.call(self.run, group, carry)
        return self._copy_to_host(values, names), carry

    def _copy_to_host(self, values: Tensor, names: Sequence[str]) -> StepReport:
        """Start to copy the values to the host; the report waits for them when it is read."""
        self.next_buffer = (self.next_buffer + 1) % (self.lag + 1)
        while len(self.host_buffers) <= self.next_buffer:
            self.host_buffers.append(torch.empty(values.shape, pin_memory=True))
        if self.host_buffers[self.next_buffer].shape != values.shape:
            self.host_buffers[self.next_buffer] = torch.empty(values.shape, pin_memory=True)
        buffer = self.host_buffers[self.next_buffer]
        buffer.copy_(values, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return StepReport(buffer, names, event.synchronize)
