"""Pace: speed and remaining time of a training, from what was done since it began."""

from __future__ import annotations


class Pace:
    """Speed and remaining time, from what was done since `start`."""

    def __init__(self, start: float, progress: float, count: int) -> None:
        self.start, self.now = start, start
        self.first_progress, self.progress = progress, progress
        self.first_count, self.count = count, count
        self.evaluating = 0.0
        """Seconds spent on validation."""

    def on_step(self, now: float, progress: float, count: int) -> None:
        self.now, self.progress, self.count = now, progress, count

    def on_evaluation(self, now: float) -> None:
        self.evaluating += now - self.now
        self.now = now

    @property
    def speed(self) -> float:
        """Items per second of training, without validation; 0 before the second step."""
        spent = self.now - self.start - self.evaluating
        return (self.count - self.first_count) / spent if spent > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds until the budget is spent, with validations like those so far; None at the end."""
        done = self.progress - self.first_progress
        if self.progress >= 1 or done <= 0:
            return None
        return (self.now - self.start) * (1 - self.progress) / done
