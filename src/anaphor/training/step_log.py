"""Step log: a line of `steps.jsonl` every few seconds, so that a run can be watched before its first validation.

`metrics.jsonl` has the validations, which a resumed run repeats exactly. The lines here depend on the clock: they are
for the eye, and nothing is computed from them. A log is thinned as it grows, so that a training of weeks has as many
lines as one of an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from anaphor.training.pace import Pace
from anaphor.training.progress import Progress
from anaphor.training.run_folder import RunFolder
from anaphor.training.step import StepMetrics

SECONDS = 2.0
"""Least time between two lines of a short training."""
MAX_LINES = 2000
"""At this number of lines every second one is deleted."""


class StepLog:
    """The step log of a run while it trains. What the folder has of earlier commands is continued."""

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.clock = clock
        self.lines = len(folder.read_steps())
        self.last: float | None = None
        """When the last line was written by this command."""
        self.loss = 0.0
        self.count = 0
        """Sum of losses, and items, since the last line."""
        self.trained: float | None = None
        """Seconds of training at the last line; None before the first one, as the first step is slow."""
        self.pace: Pace | None = None

    def add(
        self, step: int, lr: float, count: int, metrics: StepMetrics, progress: Progress, spent: float
    ) -> dict[str, Any] | None:
        """Add a step, and write a line if it is time.

        Args:
            step: Its number.
            lr: Its learning rate.
            count: Its items.
            metrics: Its loss and its gradient norms.
            progress: Times of the run before it.
            spent: Fraction of the budget that is spent after it.

        Returns:
            The line, where one was written.
        """
        now = self.clock()
        self.loss += metrics.loss * count
        self.count += count
        self.pace = self.pace or Pace(now, spent, 0)  # from the first step on, which is slow
        self.pace.on_step(now, spent, 0)
        if self.last is not None and now - self.last < interval(progress.elapsed):
            return None
        trained = None if self.trained is None else progress.seconds - self.trained
        left = self.pace.left
        line = {
            "step": step,
            "loss": self.loss / self.count if self.count else None,
            "lr": lr,
            "grad_norm": metrics.norm,
            "throughput": round(self.count / trained, 1) if trained else None,
            "seconds_left": None if left is None else round(left, 1),
        }
        self.last, self.trained, self.loss, self.count = now, progress.seconds, 0.0, 0
        self.folder.log_step(line)
        self.lines += 1
        if self.lines >= MAX_LINES:
            self.lines = self.folder.thin_steps()
        return line


def interval(elapsed: float) -> float:
    """Seconds between two lines, so many that the end of a log which was thinned is not denser than its beginning."""
    seconds = SECONDS
    while elapsed > seconds * MAX_LINES:
        seconds *= 2
    return seconds
