"""Captured steps: a training step is recorded once as a CUDA graph and then replayed.

A small model's step is hundreds of short kernels, and launching them from Python takes longer than running them. A
replay launches them all at once. `Step` is the slow twin; a test on a GPU compares the two.

A graph uses fixed addresses. So batches and the carry are copied to where it expects them, weights and the optimizer's
state must stay where they are, and the learning rate is on the device. Each shape of batch and carry has a graph of
its own; rare shapes (the first segments of an epoch, its last) run as plain steps, and so do shapes beyond a limit.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from anaphor.mixers.base import map_state, tensors_of
from anaphor.training.state_dicts import flatten
from anaphor.training.step import Step, StepReport

# Plain steps of a shape before it is captured: libraries initialize in the first, and a rare shape is not worth it.
WARM_UP = 3
# Every graph keeps the addresses of thousands of kernels.
MAX_GRAPHS = 64

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Graph:
    """A captured step, and the tensors it reads and writes."""

    work: torch.cuda.CUDAGraph
    group: list[Any]
    """Batches whose tensors it reads."""
    carry: Any
    """The carry it reads."""
    after: Any
    """The carry it writes."""
    values: Tensor
    names: list[str]

    def replay(self, group: Sequence[Any], carry: Any) -> None:
        for ours, theirs in zip(self.group, group, strict=True):
            _copy(_tensors(ours), _tensors(theirs))
        _copy(list(tensors_of(self.carry)), list(tensors_of(carry)))
        self.work.replay()


@dataclass
class CUDAGraphStep(Step):
    """As `Step`. The optimizer must be built for it: `build_optimizer(..., captured=True)`."""

    lag: ClassVar[int] = 1
    seen: Counter[Key] = field(default_factory=Counter)
    graphs: dict[Key, Graph] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.host_buffers: list[Tensor] = []
        """Memory of the host into which reports are sent, in turns: one arrives while the one before is read."""
        self.next_buffer = 0

    def __call__(self, group: Sequence[Any], carry: Any) -> tuple[StepReport, Any]:
        key = _key(group, carry)
        if key not in self.graphs:
            self.seen[key] += 1
            if self.seen[key] <= WARM_UP or len(self.graphs) == MAX_GRAPHS:
                return self._warm_up(group, carry)
            self.graphs[key] = self._capture(group, carry)
        graph = self.graphs[key]
        graph.replay(group, carry)
        return self._copy_to_host(graph), graph.after

    def _warm_up(self, group: Sequence[Any], carry: Any) -> tuple[StepReport, Any]:
        """A plain step on the stream that will record: what libraries set up there must not be recorded."""
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            values, names, carry = self.run(group, carry)
        here.wait_stream(self.stream)
        return StepReport(values, names), carry

    def _capture(self, group: Sequence[Any], carry: Any) -> Graph:
        ours = [dataclasses.replace(batch, **{name: t.clone() for name, t in _named(batch).items()}) for batch in group]
        before = map_state(torch.clone, carry)
        work = torch.cuda.CUDAGraph()
        with torch.cuda.graph(work, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            values, names, after = self.run(ours, before)
        return Graph(work, ours, before, after, values, names)

    def _copy_to_host(self, graph: Graph) -> StepReport:
        """The report on its way to the host."""
        self.next_buffer = (self.next_buffer + 1) % (self.lag + 1)
        while len(self.host_buffers) <= self.next_buffer:
            self.host_buffers.append(torch.empty(graph.values.shape, pin_memory=True))
        if self.host_buffers[self.next_buffer].shape != graph.values.shape:
            self.host_buffers[self.next_buffer] = torch.empty(graph.values.shape, pin_memory=True)
        buffer = self.host_buffers[self.next_buffer]
        buffer.copy_(graph.values, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return StepReport(buffer, graph.names, event.synchronize)


def _key(group: Sequence[Any], carry: Any) -> Key:
    """All that a graph depends on but the values."""
    batches = [
        (
            *getattr(batch, "graph_key", ()),
            *((name, tensor.shape, tensor.dtype) for name, tensor in _named(batch).items()),
        )
        for batch in group
    ]
    carried = () if carry is None else [(name, tensor.shape) for name, tensor in flatten(carry).items()]
    return (*batches, *carried)


def _named(batch: Any) -> dict[str, Tensor]:
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _tensors(batch: Any) -> list[Tensor]:
    return list(_named(batch).values())


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    for ours, theirs in zip(to, values, strict=True):
        ours.copy_(theirs, non_blocking=True)
