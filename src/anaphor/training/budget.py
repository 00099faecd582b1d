"""Budget: how long to train, in steps, epochs or minutes, as one share between nothing and all."""

from __future__ import annotations

from dataclasses import dataclass

BUDGETS = ("epochs", "steps", "minutes")


@dataclass(frozen=True)
class Budget:
    """Exactly one of the two is given; epochs become steps before."""

    steps: int | None
    seconds: float | None

    def spent(self, steps: int, seconds: float) -> float:
        """The share that is spent after so many steps and seconds; one and more means that it is over."""
        if self.steps is not None:
            return steps / self.steps
        assert self.seconds is not None, "a budget is told in steps or in seconds"
        return seconds / self.seconds


def make_budget(*, epochs: float | None, steps: int | None, minutes: float | None, steps_per_epoch: int) -> Budget:
    """Without any of them: three epochs."""
    if minutes is not None:
        return Budget(None, 60 * minutes)
    if steps is None:
        steps = max(1, round((3.0 if epochs is None else epochs) * steps_per_epoch))
    return Budget(steps, None)
