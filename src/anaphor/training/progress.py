"""Progress: where training is, as plain numbers that a checkpoint holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from anaphor.errors import ConfigError
from anaphor.typecheck import check_types


@dataclass
class Progress:
    """Steps, position in the data, times, and the best validation so far."""

    step: int = 0
    """Optimizer steps made."""
    epoch: int = 0
    """Completed passes over the data."""
    batch: int = 0
    """Batches of this epoch that were handed to a step."""
    count: int = 0
    """Items trained on, of the kind that the task counts."""
    seconds: float = 0.0
    """Time spent training, without evaluation."""
    elapsed: float = 0.0
    """Time of the whole command so far, and of those that it resumed."""
    reserve: float = 0.0
    """Seconds reserved for what comes after the last step, where the budget is in minutes."""
    best_value: float | None = None
    """Best validation value of the selecting metric."""
    best_step: int | None = None
    """Step of that validation."""
    evaluations_without_improvement: int = 0
    recent_loss: float = 0.0
    """Summed training loss since the last validation."""
    recent_count: int = 0
    """Items trained on since then."""
    recent_seconds: float = 0.0
    """Training time since then."""
    recent_correct: int | None = 0
    """Items since then that were predicted correctly; None where they were not counted."""

    @property
    def last_logged(self) -> int:
        """Last step that may be in a log. One that is not validated yet is validated again, and logged then."""
        return self.step - (self.recent_count > 0)

    def check(self) -> None:
        """Raise for values that are not finite and for negative counts: they may come from a file."""
        check_types(self)
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value):
                raise ConfigError(f"{name}={value}: it must be finite")
            if value < 0 and name != "best_value":
                raise ConfigError(f"{name}={value}: it must be 0 or more")

    def forget_best(self) -> None:
        """The next validation is the best."""
        self.best_value = self.best_step = None

    def add_loss(self, loss: float, count: int, correct: int | None = None) -> None:
        """Add a step's mean loss, its items, and those of them that were predicted correctly."""
        self.recent_loss += loss * count
        self.recent_count += count
        self.recent_correct = None if correct is None or self.recent_correct is None else self.recent_correct + correct

    def add_time(self, seconds: float) -> None:
        """Add a step's time."""
        self.seconds += seconds
        self.recent_seconds += seconds

    def pop_recent(self, unit: str) -> dict[str, float | None]:
        """Mean loss, accuracy where it is counted, and throughput since the last validation, which are then reset."""
        count, seconds, correct = self.recent_count, self.recent_seconds, self.recent_correct
        recent = {
            "train_loss": self.recent_loss / count if count else None,
            **({"train_accuracy": correct / count} if count and correct is not None else {}),
            f"{unit}_per_second": round(count / seconds, 1) if seconds else None,
        }
        self.recent_loss, self.recent_count, self.recent_seconds, self.recent_correct = 0.0, 0, 0.0, 0
        return recent
