"""`--minutes` limits a whole command: the time that comes after the last step is estimated, and reserved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from anaphor.evaluation import Cancelled, progress_listener
from anaphor.training.schedule import MIN_TRAINING
from anaphor.training.trainer import Trainer

DRAWING = 2.0  # seconds for the figures
SAFETY = 1.2  # an estimate is rarely exact, and the limit should hold
TOLERANCE = 1.1  # of the limit: validation and scoring that take longer are given up


class _Enough(Cancelled):
    """What was measured is enough."""


class TimeIsUp(Cancelled):
    """The limit is exceeded."""


def estimate_duration(call: Callable[[], Any], limit: float) -> float:
    """Seconds that a long computation takes. After `limit` seconds it is cancelled, and what it reported is
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

    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(gpus):
        try:
            with progress_listener(listen):
                call()
        except _Enough:
            done = last[1] - first[1]
            return last[0] - start + ((last[0] - first[0]) * (1 - last[1]) / done if done else 0.0)
    return time.perf_counter() - start


def reserve_time(trainer: Trainer, splits: int) -> str:
    """Reserve time for the last validation, for scoring so many splits and for the figures; gives a line about it."""
    total = trainer.budget.seconds
    assert total is not None, "only minutes are reserved"
    limit = min(max(0.02 * total, 0.2), 5.0)
    experiment = trainer.experiment
    validating = max(estimate_duration(lambda: experiment.evaluate("valid"), limit), 1e-3)
    scoring = validating
    if validating < total:
        scoring = max(estimate_duration(lambda: experiment.score("valid"), limit), validating)
    trainer.reserve = lambda seconds: SAFETY * seconds * (1 + splits * scoring / validating) + DRAWING
    trainer.progress.reserve = trainer.reserve(validating)
    trainer.measure_time()
    given = f"--minutes {total / 60:g}"
    left, reserved = trainer.training_time(), trainer.progress.reserve
    if reserved > (1 - MIN_TRAINING) * total:
        trainer.reserve = lambda seconds: DRAWING
        trainer.progress.reserve = DRAWING
        return (
            f"{given} is too short to score the model: validation, scoring and figures alone take about "
            f"{reserved:.0f} s; it is trained and saved"
        )
    return f"{given}: {left:.0f} s for training, {reserved:.0f} s reserved for validation, scoring and figures"


@contextmanager
def enforce_limit(trainer: Trainer) -> Iterator[None]:
    """Raise `TimeIsUp` inside the block when the limit is exceeded."""
    total = trainer.budget.seconds
    assert total is not None, "only minutes are a limit"

    def listen(name: str, fraction: float) -> None:
        if time.monotonic() - trainer.start > TOLERANCE * total:
            raise TimeIsUp

    with progress_listener(listen):
        yield
