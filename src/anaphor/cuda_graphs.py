"""Captured functions: the kernels of a call are recorded once as a CUDA graph and then replayed.

A small model's step is hundreds of short kernels, and launching them from Python takes longer than running them. A
replay launches them all at once. Each user has a slow twin, the same function called plainly; tests on a GPU compare
the two.

A graph uses fixed addresses. So batches and the carry are copied to where it expects them, and weights must stay where
they are. Each shape of batch and carry has a graph of its own; rare shapes (the first segments of an epoch, its last)
are called plainly, and so are shapes beyond a limit.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from anaphor.mixers.base import map_state, tensors_of

# Plain calls of a shape before it is captured: libraries initialize in the first, and a rare shape is not worth it.
WARM_UP = 3
# Every graph keeps the addresses of thousands of kernels.
MAX_GRAPHS = 64

Key = tuple[Any, ...]
Run = Callable[[Sequence[Any], Any], tuple[Any, Any]]
"""A group of batches and a carry in, outputs and the next carry out."""


class Replayable(Protocol):
    """A `torch.cuda.CUDAGraph`, or what takes its place in a test."""

    def replay(self) -> None: ...


def allows_capture(model: nn.Module) -> bool:
    """Whether all parts of a model may be captured; a mixer of a user's own may say that it may not."""
    return all(getattr(module, "can_be_captured", True) for module in model.modules())


@dataclass(frozen=True)
class Graph:
    """A captured step, and the tensors it reads and writes."""

    work: Replayable
    group: list[Any]
    """Batches whose tensors it reads."""
    carry: Any
    """The carry it reads."""
    outputs: Any
    """What it computes. The next replay overwrites it."""
    after: Any
    """The carry it writes: where it is read, if the shapes allow it."""

    def replay(self, group: Sequence[Any], carry: Any) -> None:
        for ours, theirs in zip(self.group, group, strict=True):
            _copy(_tensors(ours), _tensors(theirs))
        if carry is not self.carry:
            _copy(list(tensors_of(self.carry)), list(tensors_of(carry)))
        self.work.replay()


class CUDAGraphs:
    """One function of batches and a carry, captured once for each of their shapes. It must not read values on the host,
    and what it changes besides (weights) must stay at its address."""

    def __init__(self) -> None:
        self.seen: Counter[Key] = Counter()
        self.graphs: dict[Key, Graph] = {}
        self.setup()

    def setup(self) -> None:
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()

    def call(self, run: Run, group: Sequence[Any], carry: Any) -> tuple[Any, Any]:
        """Returns what `run` returns. Both results may be overwritten by the next call."""
        key = _key(group, carry)
        if key not in self.graphs:
            self.seen[key] += 1
            if self.seen[key] <= WARM_UP or len(self.graphs) == MAX_GRAPHS:
                return self.warm_up(run, group, carry)
            self.graphs[key] = self._capture(run, group, carry)
        graph = self.graphs[key]
        graph.replay(group, carry)
        return graph.outputs, graph.after

    def warm_up(self, run: Run, group: Sequence[Any], carry: Any) -> tuple[Any, Any]:
        """A plain call on the stream that will record: what libraries set up there must not be recorded."""
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            outputs, carry = run(group, carry)
        here.wait_stream(self.stream)
        return outputs, carry

    def _capture(self, run: Run, group: Sequence[Any], carry: Any) -> Graph:
        ours = [
            dataclasses.replace(batch, **{name: t.clone() for name, t in _tensor_fields(batch).items()})
            for batch in group
        ]
        before = map_state(torch.clone, carry)

        def run_in_place() -> tuple[Any, Any]:
            outputs, after = run(ours, before)
            to, values = list(tensors_of(before)), list(tensors_of(after))
            if [(t.shape, t.dtype) for t in to] != [(t.shape, t.dtype) for t in values]:
                return outputs, after
            # Copied by the graph itself, the next replay finds its carry in place.
            _copy(to, [value.detach() for value in values])
            return outputs, before

        work, (outputs, after) = self.record(run_in_place)
        return Graph(work, ours, before, outputs, after)

    def record(self, function: Callable[[], tuple[Any, Any]]) -> tuple[Replayable, tuple[Any, Any]]:
        """The work of a function, which is not done yet, and the tensors that a replay writes."""
        work = torch.cuda.CUDAGraph()
        with torch.cuda.graph(work, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            results = function()
        return work, results


def _key(group: Sequence[Any], carry: Any) -> Key:
    """All that a graph depends on but the values."""
    batches = [
        (
            *getattr(batch, "graph_key", ()),
            *((name, tensor.shape, tensor.dtype) for name, tensor in _tensor_fields(batch).items()),
        )
        for batch in group
    ]
    return (*batches, *((tensor.shape, tensor.dtype) for tensor in tensors_of(carry)))


def _tensor_fields(batch: Any) -> dict[str, Tensor]:
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _tensors(batch: Any) -> list[Tensor]:
    return list(_tensor_fields(batch).values())


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    for ours, theirs in zip(to, values, strict=True):
        ours.copy_(theirs, non_blocking=True)
