"""What the step log costs: the time of adding a step to it, with and without a line that is written.

    python -m benchmarks.step_log
    python -m benchmarks.step_log --device cuda

A line is written every two seconds at most, so that its share of the time is that of a step without one, and one line
in two seconds. CPU time is measured for steps without a line, so that other programs do not count; a line waits for the
disk, and has the time of a clock.

With a device, steps of a recipe are timed there as well, with the log and without it, alternately: on a GPU they are
captured, and adding to the log should hide behind the next one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from anaphor.training.progress import Progress
from anaphor.training.run_folder import RunFolder
from anaphor.training.step import StepMetrics
from anaphor.training.step_log import SECONDS, StepLog
from benchmarks.our_loop import OurLoop
from benchmarks.timing import estimate_ratio, mean_seconds, run_steps, time_alternately
from benchmarks.training import RECIPES, build_our_loop

ROUNDS = 9
PAIRS = 30
STEPS = {"cpu": 2, "cuda": 500}
"""Steps that are timed together."""


@dataclass(frozen=True)
class Cost:
    """Seconds, medians over rounds."""

    step: float
    """Of adding a step, where no line is written."""
    line: float
    """Of adding a step and writing a line."""

    def share(self, step_seconds: float) -> float:
        """Share of the time of training, where a step takes this long."""
        return self.step / step_seconds + self.line / SECONDS


def measure(steps: int = 50_000, lines: int = 200) -> Cost:
    """Add steps to a log in a temporary folder."""
    with TemporaryDirectory() as folder:
        log, metrics = StepLog(RunFolder(Path(folder))), StepMetrics(2.0, dict.fromkeys(map(str, range(40)), 1.0))
        progress = Progress(seconds=1.0, elapsed=1.0)
        without, written = list[float](), list[float]()
        for _ in range(ROUNDS):
            start = time.process_time()
            for step in range(steps):
                log.add(step, 0.1, 700, metrics, progress, 0.1)
            without.append((time.process_time() - start) / steps)
        for step in range(lines):
            log.last = None  # it is time for a line
            begin = time.perf_counter()
            log.add(step, 0.1, 700, metrics, progress, 0.1)
            written.append(time.perf_counter() - begin)
    return Cost(statistics.median(without), statistics.median(written))


def time_steps(loop: OurLoop, count: int, pairs: int, on_gpu: bool) -> list[tuple[float, float]]:
    """Seconds of a step without the log and with it, pair by pair. Both are steps of one loop: of the same model, and
    with the same captured graphs."""
    with TemporaryDirectory() as folder:
        log, progress = StepLog(RunFolder(Path(folder))), Progress(seconds=1.0, elapsed=1.0)

        def run(is_logged: bool) -> None:
            loop.on_metrics = partial(add, log, progress) if is_logged else None
            run_steps(loop.step, count, on_gpu)

        times = time_alternately(partial(run, False), partial(run, True), pairs)
    return [(without / count, logged / count) for without, logged in times]


def add(log: StepLog, progress: Progress, metrics: StepMetrics) -> None:
    log.add(1, 0.1, 700, metrics, progress, 0.1)


def describe_steps(name: str, device: str, times: Sequence[tuple[float, float]]) -> str:
    """Milliseconds of a step, and their ratio with its interval."""
    without, logged = (1000 * seconds for seconds in mean_seconds(times))
    ratio = estimate_ratio(times)
    is_measurable = not ratio.low <= 1 <= ratio.high
    return (
        f"{name} on {device}: a step takes {without:.4f} ms without the log and {logged:.4f} ms with it, ratio "
        f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}], {ratio.pairs} pairs: "
        f"{'a difference' if is_measurable else 'no measurable difference'}"
    )


def main(step_milliseconds: Sequence[float] = (1.0, 10.0), argv: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="time steps of the recipes there, too")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="timings of each, 30 if not given")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no GPU here")
    cost = measure()
    print(f"adding a step: {cost.step * 1e6:.2f} µs; with a line: {cost.line * 1e6:.0f} µs, every {SECONDS:g} s")
    for milliseconds in step_milliseconds:
        print(f"of a training with steps of {milliseconds:g} ms: {cost.share(milliseconds / 1000):.4%}")
    for name in RECIPES if options.device else ():
        loop = build_our_loop(name, torch.device(options.device))
        times = time_steps(loop, STEPS[options.device], options.pairs, options.device == "cuda")
        print(describe_steps(name, options.device, times))


if __name__ == "__main__":
    main(argv=sys.argv[1:])
