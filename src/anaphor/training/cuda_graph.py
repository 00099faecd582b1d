"""Captured steps: a step is recorded once as a CUDA graph and then replayed.

A small model's step is hundreds of short kernels, and launching them from Python takes longer than running them. A
replay launches them all at once. `Step` is the slow twin of the training step; a test on a GPU compares the two.

A graph uses fixed addresses. So batches and the carry are copied to where it expects them, weights and the optimizer's
state must stay where they are, and the learning rate is on the device. Each shape of batch and carry has a graph of
its own; rare shapes (the first segments of an epoch, its last) run as plain steps, and so do shapes beyond a limit.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

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
Run = Callable[[Sequence[Any], Any], tuple[Any, Any]]
"""A group of batches and a carry in, outputs and the next carry out."""


class Replayable(Protocol):
    """A `torch.cuda.CUDAGraph`, or what takes its place in a test."""

    def replay(self) -> None: ...


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
        """What `run` gives. Both results may be overwritten by the next call."""
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
        ours = [dataclasses.replace(batch, **{name: t.clone() for name, t in _named(batch).items()}) for batch in group]
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
            made = function()
        return work, made


@dataclass
class CUDAGraphStep(Step):
    """As `Step`. The optimizer must be built for it: `build_optimizer(..., captured=True)`."""

    lag: ClassVar[int] = 1
    captured: CUDAGraphs = field(default_factory=CUDAGraphs)

    def __post_init__(self) -> None:
        self.host_buffers: list[Tensor] = []
        """Memory of the host into which reports are sent, in turns: one arrives while the one before is read."""
        self.next_buffer = 0

    @property
    def graphs(self) -> dict[Key, Graph]:
        return self.captured.graphs

    def __call__(self, group: Sequence[Any], carry: Any) -> tuple[StepReport, Any]:
        (values, names), carry = self.captured.call(self._run_in_pair, group, carry)
        return self._copy_to_host(values, names), carry

    def _run_in_pair(self, group: Sequence[Any], carry: Any) -> tuple[tuple[Tensor, list[str]], Any]:
        values, names, carry = self.run(group, carry)
        return (values, names), carry

    def _copy_to_host(self, values: Tensor, names: Sequence[str]) -> StepReport:
        """The report on its way to the host."""
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
