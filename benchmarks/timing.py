"""Two computations timed side by side: the ratio of their times and its interval.

Timings on a shared machine drift. So the two run alternately, each pair in random order, and the ratio is taken within
the pair; its interval comes from the spread over pairs.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from scipy import stats

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Finding:
    """One line of a benchmark: a ratio against a named peer, and whether it meets its target."""

    what: str
    """What was timed."""
    peer: str
    """What it was compared with, in the same run."""
    value: float
    """The ratio, or the factor of growth."""
    low: float | None
    """Lower end of its 95 % interval, where there is one."""
    high: float | None
    """Upper end of its 95 % interval, where there is one."""
    promise: str
    """The target."""
    kept: bool
    """Whether the target is met."""
    detail: str = ""
    """The sizes, and the times behind the ratio."""
    token_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Curves of the figure: seconds of each generated token, by name. The tables and the JSON leave them out."""

    def to_plain(self) -> dict[str, str | float | bool | None]:
        plain = vars(self).copy()
        del plain["token_seconds"]
        return plain

    @property
    def ratio(self) -> str:
        """The ratio with its interval, for people."""
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{interval}"


@dataclass(frozen=True)
class Ratio:
    """The mean ratio over pairs, with its 95 % t-interval, both on a log scale."""

    value: float
    low: float
    high: float
    pairs: int

    def to_finding(self, what: str, peer: str, *, promise: str, kept: bool, detail: str) -> Finding:
        detail = f"{detail}; {self.pairs} pairs, alternately"
        return Finding(what, peer, self.value, self.low, self.high, promise, kept, detail)


def measure_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def time_alternately(
    first: Callable[[], object], second: Callable[[], object], pairs: int, tick: Callable[[], None] = lambda: None
) -> list[tuple[float, float]]:
    """Seconds of both, pair by pair, after a warm-up."""
    order = random.Random(0)
    for work in (first, second, first, second):
        work()
    times = []
    for _ in range(pairs):
        if order.random() < 0.5:
            two = measure_seconds(second)
            one = measure_seconds(first)
        else:
            one = measure_seconds(first)
            two = measure_seconds(second)
        times.append((one, two))
        tick()
    return times


def time_rounds(
    functions: Mapping[Name, Callable[[], object]], rounds: int, tick: Callable[[], None] = lambda: None
) -> dict[Name, list[float]]:
    """Seconds of each, round by round, after a warm-up: all run once in every round, in random order."""
    order = random.Random(0)
    for function in functions.values():
        function()
    seconds: dict[Name, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name in order.sample(list(functions), len(functions)):
            seconds[name].append(measure_seconds(functions[name]))
        tick()
    return seconds


def run_steps(step: Callable[[], object], count: int, on_gpu: bool) -> None:
    """Steps to be timed together: on a GPU the host runs ahead of the device, so single steps cannot be timed."""
    for _ in range(count):
        step()
    if on_gpu:
        torch.cuda.synchronize()


def mean_seconds(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean seconds of the first and of the second."""
    first, second = (statistics.fmean(column) for column in zip(*times, strict=True))
    return first, second


def estimate_ratio(times: Sequence[tuple[float, float]]) -> Ratio:
    """Seconds of the second over seconds of the first: above one, the first is faster."""
    logs = [math.log(second / first) for first, second in times]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), math.nan, math.nan, len(logs))
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))
