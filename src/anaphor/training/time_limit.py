"""`--minutes` limits a whole command: the time that comes after the last step is estimated, and reserved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from anaphor.progress_listener import Cancelled, progress_listener
from anaphor.training.budget import MIN_TRAINING, Budget
from anaphor.training.experiment import Experiment
from anaphor.training.progress import Progress
from anaphor.training.random_state import keep_random_state

DRAWING = 2.0  # seconds for the figures
SAFETY = 1.2  # an estimate is rarely exact, and the limit should hold
TOLERANCE = 1.1  # of the limit: validation and scoring that take longer are given up


class TimeIsUp(Cancelled):
    """The limit is exceeded."""


class _Enough(Cancelled):
    """What was measured is enough."""


Measure = Callable[[Callable[[], Any], float, torch.device], float]
"""Seconds that a call takes, which is cancelled after so many: `estimate_duration`."""
CANCELLATIONS: list[type[Cancelled]] = [Cancelled, TimeIsUp, _Enough]
"""All that may be raised."""


@dataclass(frozen=True)
class Reserve:
    """Time for what comes after the last step: its validation, the scores and the figures."""

    validations: float = 0.0
    """Validation and scores together take as long as so many validations."""
    drawing: float = 0.0
    """Seconds for the figures."""

    def seconds(self, validating: float) -> float:
        """Seconds of all of it, given those of one validation."""
        return SAFETY * validating * self.validations + self.drawing


def reserve_time(
    experiment: Experiment, budget: Budget, progress: Progress, splits: int, start: float, measure: Measure
) -> tuple[Reserve, str]:
    """Reserve a part of the minutes for what comes after the last step. A validation and a score on valid are tried for
    a small part of them, to estimate how long they take.

    Args:
        experiment: What is validated and scored.
        budget: The minutes.
        progress: Gets the seconds that are reserved, and those that have elapsed.
        splits: How many splits will be scored.
        start: When the command started.
        measure: As `estimate_duration`.

    Returns:
        The reserve, for what later validations say of it, and a line about it.
    """
    total = budget.seconds
    assert total is not None, "only minutes are reserved"
    reserve, validating = estimate_reserve(experiment, total, splits, measure)
    progress.reserve, progress.elapsed = reserve.seconds(validating), time.monotonic() - start
    given, reserved = f"--minutes {total / 60:g}", progress.reserve
    if reserved > (1 - MIN_TRAINING) * total:
        progress.reserve = DRAWING
        return Reserve(drawing=DRAWING), (
            f"{given} is too short to score the model: validation, scoring and figures alone take about "
            f"{reserved:.0f} s; it will be trained and saved, but not scored"
        )
    left = max(budget.training_seconds(progress), 0.0)
    return reserve, (
        f"{given}: {left:.0f} s for training, {reserved:.0f} s reserved for validation, scoring and figures"
    )


def estimate_reserve(experiment: Experiment, total: float, splits: int, measure: Measure) -> tuple[Reserve, float]:
    """The reserve for the last validation, so many scores and the figures; and the seconds of a validation."""
    limit = min(max(0.02 * total, 0.2), 5.0)
    device = experiment.device
    validating = max(measure(lambda: experiment.evaluate("valid"), limit, device), 1e-3)
    scoring = validating
    if validating < total:
        scoring = max(measure(lambda: experiment.score("valid"), limit, device), validating)
    return Reserve(1 + splits * scoring / validating, DRAWING), validating


def estimate_duration(call: Callable[[], Any], limit: float, device: torch.device) -> float:
    """Seconds that a long computation on a device takes. After `limit` seconds it is cancelled, and what it reported is
    extrapolated; parts that it had not begun by then are not counted. The global random state is left alone."""
    start = time.perf_counter()
    first = last = (start, 0.0)  # of the present part: when, and which fraction was done
    present: str | None = None

    def listen(name: str, fraction: float) -> None:
        nonlocal first, last, present
        now = time.perf_counter()
        if name != present or fraction < last[1]:
            present, first = name, (now, fraction)
        last = (now, fraction)
        if now - start > limit and (last[1] > first[1] or fraction == 1):
            raise _Enough

    with keep_random_state(device):
        try:
            with progress_listener(listen):
                call()
        except _Enough:
            done = last[1] - first[1]
            return last[0] - start + ((last[0] - first[0]) * (1 - last[1]) / done if done else 0.0)
    return time.perf_counter() - start


@contextmanager
def enforce_limit(start: float, seconds: float | None) -> Iterator[None]:
    """Inside the block, work that reports its progress raises `TimeIsUp` when a command that started at `start` has
    exceeded its seconds; None: it has no limit."""
    if seconds is None:
        yield
        return

    def listen(name: str, fraction: float) -> None:
        if time.monotonic() - start > TOLERANCE * seconds:
            raise TimeIsUp

    with progress_listener(listen):
        yield
