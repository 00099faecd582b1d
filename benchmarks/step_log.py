"""What the step log costs: the time of adding a step to it, with and without a line that is written.

    python -m benchmarks.step_log

A line is written every two seconds at most, so that its share of the time is that of a step without one, and one line
in two seconds. CPU time is measured for steps without a line, so that other programs do not count; a line waits for the
disk, and has the time of a clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from anaphor.training.progress import Progress
from anaphor.training.run_folder import RunFolder
from anaphor.training.step import StepMetrics
from anaphor.training.step_log import SECONDS, StepLog

ROUNDS = 9


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


def main(step_milliseconds: Sequence[float] = (1.0, 10.0)) -> None:
    cost = measure()
    print(f"adding a step: {cost.step * 1e6:.2f} µs; with a line: {cost.line * 1e6:.0f} µs, every {SECONDS:g} s")
    for milliseconds in step_milliseconds:
        print(f"of a training with steps of {milliseconds:g} ms: {cost.share(milliseconds / 1000):.4%}")


if __name__ == "__main__":
    main()
