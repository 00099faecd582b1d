"""Two things timed side by side, and what their ratio is worth.

Timings on a shared machine drift. So the two are run in turns, each pair in a random order, and the ratio is taken
within the pair; its interval comes from the spread over pairs.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """The mean ratio over pairs, with its 95 % t-interval, both on a log scale."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(
    first: Callable[[], object], second: Callable[[], object], pairs: int, tick: Callable[[], None] = lambda: None
) -> list[tuple[float, float]]:
    """Seconds of both, pair by pair, after both were warmed up."""
    order = random.Random(0)
    for work in (first, second, first, second):
        work()
    found = []
    for _ in range(pairs):
        works = [first, second]
        turned = order.random() < 0.5
        times = [seconds(work) for work in (reversed(works) if turned else works)]
        one, two = reversed(times) if turned else times
        found.append((one, two))
        tick()
    return found


def several(step: Callable[[], object], count: int, on_gpu: bool) -> None:
    """So many steps, timed as one: on a GPU the host runs ahead of the device, and single ones would not tell."""
    for _ in range(count):
        step()
    if on_gpu:
        import torch

        torch.cuda.synchronize()


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Seconds of the second over seconds of the first: above one, the first is the faster."""
    from scipy import stats

    logs = [math.log(second / first) for first, second in pairs]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(middle), math.nan, math.nan, len(logs))
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs))
