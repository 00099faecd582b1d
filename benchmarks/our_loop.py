"""Our side of a comparison of training: the steps of the trainer, without the run around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from anaphor.errors import DataError
from anaphor.training.step import StepMetrics


@dataclass
class OurLoop:
    """The trainer's steps; reports are read while the next step runs, as in the trainer."""

    step_once: Any
    batches: Iterator[Any]
    carry: Any = None
    report: Any = None
    on_metrics: Callable[[StepMetrics], object] | None = None
    """Called with the metrics of each step once they were read."""

    def step(self) -> float | None:
        """Train on the next batch. Returns the loss that was read, which may be that of the step before."""
        report, self.carry = self.step_once([next(self.batches)], self.carry)
        previous, self.report = self.report, report
        if not self.step_once.lag:
            previous, self.report = report, None
        if previous is None:
            return None
        metrics = previous.read()
        if self.on_metrics is not None:
            self.on_metrics(metrics)
        return float(metrics.loss)


def no_dataset() -> NoReturn:
    """In place of the function that opens the data set of an experiment."""
    raise DataError("the data of a benchmark are drawn: there is no data set")
