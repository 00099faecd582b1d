"""Budget: how long to train, in steps or in minutes. The fraction that is spent shapes the schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anaphor.errors import ConfigError
from anaphor.training.progress import Progress
from anaphor.training.spec import BUDGETS, RunSpec

FIRST_STEP = 0.001  # fraction of a budget in minutes that the first step counts as: more than 0, for the warmup
MIN_TRAINING = 0.1  # part of the minutes that is never reserved


@dataclass(frozen=True)
class Budget:
    """How long to train; exactly one of the two is given. Epochs become steps before.

    Seconds are those of the whole command: what is neither training nor reserved for what comes after it, such as
    validations, is taken off them.
    """

    steps: int | None
    seconds: float | None

    def spent(self, progress: Progress, more: int = 0) -> float:
        """Fraction that is spent, or will be after so many further steps; at 1 training is over."""
        steps = progress.step + more
        if self.steps is not None:
            return steps / self.steps
        if not steps:
            return 0.0  # one step at least
        # Steps to come are expected to take as long as those before.
        seconds = progress.seconds + more * progress.seconds / max(progress.step, 1)
        if not seconds:
            return FIRST_STEP  # asked before the first step, whose time is not known
        available = self.training_seconds(progress)
        return seconds / available if available > 0 else 1.0

    def training_seconds(self, progress: Progress) -> float:
        """Seconds that can be trained, in all. The reserve takes nine tenths of the budget at most."""
        assert self.seconds is not None, "a budget has steps or seconds"
        other = progress.elapsed - progress.seconds
        return max(self.seconds - progress.reserve, MIN_TRAINING * self.seconds) - other


def build_budget(spec: RunSpec, steps_per_epoch: int) -> Budget:
    """The budget of a run."""
    if spec.minutes is not None:
        return Budget(None, 60 * spec.minutes)
    if spec.steps is not None:
        return Budget(spec.steps, None)
    epochs = choose_epochs(spec)
    assert epochs is not None, "a run without another budget has its default epochs"
    count = epochs * steps_per_epoch
    if not math.isfinite(count):
        raise ConfigError(f"epochs={epochs}: {steps_per_epoch:,} steps each are too many to be counted")
    return Budget(max(1, round(count)), None)


def choose_epochs(spec: RunSpec) -> float | None:
    """The budget in epochs, the default one where there is no other."""
    return spec.default_epochs if all(getattr(spec, name) is None for name in BUDGETS) else spec.epochs
