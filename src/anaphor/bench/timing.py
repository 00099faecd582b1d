"""Two computations timed side by side: the ratio of their times, its interval, and the report of a benchmark.

Timings on a shared machine drift. So the two run alternately, each pair in random order, and the ratio is taken within
the pair; its interval comes from the spread over pairs.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from anaphor import __version__


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

    def finding(self, what: str, peer: str, *, promise: str, kept: bool, detail: str) -> Finding:
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


SPINS = "GOMP_SPINCOUNT"
PEER_SPINS = "300000"
"""How long waiting threads spin by default. Our processes set less, which would slow down a peer among them."""


@contextmanager
def elsewhere(make: Callable[..., Callable[..., Any]], *arguments: Any) -> Iterator[Callable[..., Any]]:
    """The function that `make` gives, in a process of its own, where threads spin as they do without Anaphor."""
    context = multiprocessing.get_context("spawn")
    connection, its_end = context.Pipe()
    process = context.Process(target=_serve, args=(its_end, torch.get_num_threads(), make, arguments), daemon=True)
    before = os.environ.get(SPINS)
    os.environ[SPINS] = PEER_SPINS
    try:
        process.start()
    finally:
        del os.environ[SPINS]
        if before is not None:
            os.environ[SPINS] = before
    its_end.close()

    def call(*given: Any) -> Any:
        connection.send(given)
        return connection.recv()

    try:
        yield call
    finally:
        connection.close()
        process.join()


def start_peer(
    device: torch.device, make: Callable[..., Callable[..., Any]], *arguments: Any
) -> AbstractContextManager[Callable[..., Any]]:
    """The peer that `make` gives: on a CPU elsewhere, on a GPU, where threads of the host do not count, here."""
    return elsewhere(make, *arguments) if device.type == "cpu" else nullcontext(make(*arguments))


def _serve(connection: Connection, threads: int, make: Callable[..., Callable[..., Any]], arguments: Any) -> None:
    torch.set_num_threads(threads)
    work = make(*arguments)
    with suppress(EOFError):  # the other end is closed
        while True:
            connection.send(work(*connection.recv()))


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
    from scipy import stats

    logs = [math.log(second / first) for first, second in times]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), math.nan, math.nan, len(logs))
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def describe_machine(device: torch.device) -> dict[str, str | int]:
    """Versions and hardware behind the numbers."""
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        "anaphor": __version__,
        "commit": _read_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _read_processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        **gpu,
    }


def render_page(
    findings: Sequence[Finding], machine: Mapping[str, str | int], command: str, figure: Path | None
) -> str:
    """The findings as a Markdown page, with command and machine."""
    rows = ["| measured | against | ratio | target | met | how |", "| --- | --- | --- | --- | --- | --- |"]
    for finding in findings:
        value, _, interval = finding.ratio.partition(" ")
        ratio = f"**{value}** {interval}".rstrip()
        met = "yes" if finding.kept else "no"
        rows.append(f"| {' | '.join((finding.what, finding.peer, ratio, finding.promise, met, finding.detail))} |")
    image = (
        "" if figure is None else f"\n![Time for the next token against the tokens generated so far]({figure.name})\n"
    )
    facts = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    table = "\n".join(rows)
    return (
        "# Speed\n\n"
        "Ratios above one mean that ours is faster; for the growth along a text, how much more a late token costs than "
        "an early one. In brackets the 95 % t-interval over pairs that ran alternately. Weights and tokens are drawn "
        f"with seed 0.\n\n- command: `{command}`\n{facts}\n\n{table}\n{image}"
    )


def _read_commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _read_processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
