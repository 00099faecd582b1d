"""What a lab gives back: a claim, the checks that decide whether it holds, and the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CURVES = "curves"
"""The entry of `numbers` that holds what is drawn: long lists, which a table for people leaves out."""


@dataclass(frozen=True)
class Check:
    """One thing that must be so for the claim to hold, with the number that was found and what is allowed."""

    what: str
    value: float | str
    allowed: str
    kept: bool

    def to_plain(self) -> dict[str, Any]:
        return {"what": self.what, "value": _finite(self.value), "allowed": self.allowed, "kept": self.kept}


def at_most(what: str, value: float, bound: float) -> Check:
    return Check(what, float(value), f"≤ {bound:g}", value <= bound)


def at_least(what: str, value: float, bound: float) -> Check:
    return Check(what, float(value), f"≥ {bound:g}", value >= bound)


def equal(what: str, value: float | str, expected: float | str) -> Check:
    shown = (
        f"{expected:g}" if isinstance(expected, float) else f"{expected:,}" if isinstance(expected, int) else expected
    )
    return Check(what, value, f"= {shown}", value == expected)


def true(what: str, so: bool) -> Check:
    return Check(what, "yes" if so else "no", "yes", bool(so))


@dataclass(frozen=True)
class Outcome:
    """What came out of a lab. It holds when every check was kept; inputs can be chosen so that one is not."""

    lab: str
    claim: str
    checks: tuple[Check, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Whatever JSON can say: numbers, words, lists, and dictionaries of these."""

    @property
    def holds(self) -> bool:
        return bool(self.checks) and all(check.kept for check in self.checks)

    def to_plain(self) -> dict[str, Any]:
        checks = [check.to_plain() for check in self.checks]
        return {
            "lab": self.lab,
            "claim": self.claim,
            "holds": self.holds,
            "numbers": _finite({**self.numbers, "checks": checks}),
        }


def _finite(value: Any) -> Any:
    """The same, with a word for what is not a finite number: JSON has none."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


Draw = Callable[[Outcome, Path], list[Path]]
"""Draws the figures of an outcome into a folder and names them."""
