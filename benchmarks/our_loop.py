"""Our side of a comparison of training: the steps of the trainer, without the run around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from anaphor.errors import DataError


@dataclass
class OurLoop:
    """The trainer's steps; reports are read while the next step runs, as in the trainer."""

    step_once: Any
    batches: Iterator[Any]
    carry: Any = None
    report: Any = None

    def step(self) -> float | None:
        """Train on the next batch. Returns the loss that was read, which may be that of the step before."""
        report, self.carry = self.step_once([next(self.batches)], self.carry)
        previous, self.report = self.report, report
        if not self.step_once.lag:
            previous, self.report = report, None
        return None if previous is None else float(previous.read().loss)


def no_dataset() -> NoReturn:
    """In place of the function that opens the data set of an experiment."""
    raise DataError("the data of a benchmark are drawn: there is no data set")
