"""Schedule: the factor of the learning rate, by the fraction of the budget that is spent.

So a budget in steps, epochs or minutes shapes it alike. Only the plateau has state: it follows validation results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anaphor.config import look_up
from anaphor.errors import CheckpointError, ConfigError
from anaphor.training.spec import RunSpec
from anaphor.typecheck import check_types

DEFAULT_PLATEAU_FACTOR = 4.0

Shape = Callable[[float], float]
"""From the spent fraction in [0, 1] to a factor in [0, 1] that never rises."""

SHAPES: dict[str, Shape] = {
    "constant": lambda spent: 1.0,
    "linear": lambda spent: 1 - spent,
    "cosine": lambda spent: (1 + math.cos(math.pi * spent)) / 2,
}


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """Settings of a schedule. Those that the chosen one does not use are refused."""

    schedule: str = "constant"
    """constant, linear, cosine or plateau (divided when validation does not improve)."""
    warmup: float = 0.0
    """Fraction of the budget with linear warmup."""
    min_lr_ratio: float | None = None
    """Final factor of linear and cosine; None means 0."""
    plateau_factor: float | None = None
    """Divisor on a plateau; None means 4."""

    @classmethod
    def of(cls, spec: RunSpec) -> ScheduleSpec:
        """The schedule settings of a run."""
        return cls(
            schedule=spec.schedule,
            warmup=spec.warmup,
            min_lr_ratio=spec.min_lr_ratio,
            plateau_factor=spec.plateau_factor,
        )

    def used_settings(self) -> dict[str, Any]:
        """The settings that are used, with their values."""
        values: dict[str, Any] = {"schedule": self.schedule, "warmup": self.warmup}
        if self.schedule in ("cosine", "linear"):
            values["min_lr_ratio"] = self.min_lr_ratio or 0.0
        if self.schedule == "plateau":
            values["plateau_factor"] = DEFAULT_PLATEAU_FACTOR if self.plateau_factor is None else self.plateau_factor
        return values

    def __post_init__(self) -> None:
        check_types(self)
        look_up(SCHEDULES, self.schedule, "schedule")
        if not 0 <= self.warmup < 1:
            raise ConfigError(
                f"warmup={self.warmup} is not a fraction of the budget: it must be at least 0 and below 1"
            )
        for name, able in (("min_lr_ratio", ("cosine", "linear")), ("plateau_factor", ("plateau",))):
            given = getattr(self, name)
            if given is not None and self.schedule not in able:
                raise ConfigError(
                    f"{name}={given} is not used by a {self.schedule} schedule; it belongs to {', '.join(able)}"
                )
        if self.min_lr_ratio is not None and not 0 <= self.min_lr_ratio <= 1:
            raise ConfigError(
                f"min_lr_ratio={self.min_lr_ratio} is not a fraction of the learning rate: it must be from 0 to 1"
            )
        if self.plateau_factor is not None and not 1 < self.plateau_factor < math.inf:
            raise ConfigError(f"plateau_factor={self.plateau_factor}: to lower the learning rate it must be above 1")


class Schedule:
    """A shape after a warmup, without state."""

    def __init__(self, spec: ScheduleSpec) -> None:
        self.spec = spec

    def factor(self, spent: float) -> float:
        """Factor of the learning rate when this fraction of the budget is spent."""
        spent = min(max(spent, 0.0), 1.0)  # the last step of a budget in minutes ends after it
        warmup = self.spec.warmup
        if spent < warmup:
            return self.height(0.0) * spent / warmup
        return self.height((spent - warmup) / (1 - warmup))

    def height(self, spent: float) -> float:
        """The factor when this fraction of the budget after the warmup is spent."""
        min_lr_ratio = self.spec.min_lr_ratio or 0.0
        return min_lr_ratio + (1 - min_lr_ratio) * SHAPES[self.spec.schedule](spent)

    def report(self, loss: float) -> bool:
        """Take note of a validation loss; True if the learning rate was lowered for it."""
        return False

    def forget_best(self) -> None:
        """The next validation loss is the best."""

    def state_dict(self) -> dict[str, Any]:
        """The state as plain JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _check(state, set())


class Plateau(Schedule):
    """Divides the learning rate whenever the validation loss does not improve, as PyTorch's word_language_model
    example does."""

    def __init__(self, spec: ScheduleSpec) -> None:
        super().__init__(spec)
        self.best: float | None = None
        self.cuts = 0

    def height(self, spent: float) -> float:
        factor = DEFAULT_PLATEAU_FACTOR if self.spec.plateau_factor is None else self.spec.plateau_factor
        return float(factor**-self.cuts)

    def report(self, loss: float) -> bool:
        if loss < (math.inf if self.best is None else self.best):
            self.best = loss
            return False
        self.cuts += 1
        return True

    def forget_best(self) -> None:
        """Compare the next loss with none: it becomes the best one."""
        self.best = None

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "cuts": self.cuts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _check(state, {"best", "cuts"})
        best, cuts = state["best"], state["cuts"]
        if (
            not (best is None or isinstance(best, float | int))
            or not isinstance(cuts, int)
            or not 0 <= cuts < 1_000_000
        ):
            raise CheckpointError(f"the schedule's state does not fit: best={best!r}, cuts={cuts!r}")
        self.best, self.cuts = best, cuts


SCHEDULES: dict[str, type[Schedule]] = {**dict.fromkeys(SHAPES, Schedule), "plateau": Plateau}


def build_schedule(spec: ScheduleSpec) -> Schedule:
    """The schedule that the settings name."""
    return SCHEDULES[spec.schedule](spec)


def _check(state: Mapping[str, Any], wanted: set[str]) -> None:
    if set(state) != wanted:
        raise CheckpointError(
            f"the schedule's state does not fit: it has {', '.join(sorted(state)) or 'nothing'}, "
            f"but {', '.join(sorted(wanted)) or 'nothing'} is wanted"
        )
