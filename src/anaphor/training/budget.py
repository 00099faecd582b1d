"""Budget: how long to train, in steps, epochs or minutes, as one share between nothing and all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BUDGETS = ("epochs", "steps", "minutes")
# What else takes the place of something: what is said of all layers, of what was said of each; a rule, of its options.
REPLACED = {
    "model": ("mixers", "widths", "norms", "residuals"),
    "width": ("widths",),
    "norm": ("norms",),
    "residual": ("residuals",),
    "optimizer": ("betas", "momentum"),
}


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


def without_replaced(base: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, without what gives way to something that is said: a budget to another, whatever its unit."""
    gone = set(BUDGETS) if any(said.get(name) is not None for name in BUDGETS) else set()
    for name, others in REPLACED.items():
        if said.get(name) not in (None, base.get(name)):
            gone |= set(others)
    return {name: value for name, value in base.items() if name not in gone}


def laid_over(base: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """What is said, and the base where nothing is."""
    return {**without_replaced(base, said), **said}
