"""The labs by name, and what a lab returns: a claim, the checks that decide whether it holds, and the numbers.

Imports no torch: a lab's module is imported when the lab is run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from anaphor.labs import specs
from anaphor.labs.specs import LabSpec
from anaphor.registry import has_shelf

MEASURED, NOT_MEASURED = "measured", "not measured"
CURVES = "curves"
"""Key of `numbers` with the data of the figures: long lists, which the printed table omits."""


@dataclass(frozen=True)
class Check:
    """One condition of the claim: the measured value, and which values are allowed."""

    what: str
    value: float | str
    allowed: str
    kept: bool
    timed: bool = False
    """Whether the value is a time: such a check does not decide whether the claim holds."""

    def to_plain(self) -> dict[str, Any]:
        return {"what": self.what, "value": _finite(self.value), "allowed": self.allowed, "kept": self.kept}


def at_most(what: str, value: float, bound: float) -> Check:
    return Check(what, float(value), f"≤ {bound:g}", value <= bound)


def at_least(what: str, value: float, bound: float) -> Check:
    return Check(what, float(value), f"≥ {bound:g}", value >= bound)


def between(what: str, value: float, low: float, high: float) -> Check:
    return Check(what, float(value), f"{low:g} … {high:g}", low <= value <= high)


def equal(what: str, value: float | str, expected: float | str) -> Check:
    style = {int: ",", float: "g"}.get(type(expected), "")
    return Check(what, value, f"= {expected:{style}}", value == expected)


def true(what: str, condition: bool) -> Check:
    return Check(what, "yes" if condition else "no", "yes", bool(condition))


@dataclass(frozen=True)
class Outcome:
    """Result of a lab. The claim holds if every check passes that needs no clock; some inputs make one fail."""

    lab: str
    claim: str
    checks: tuple[Check, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values."""
    timing: str | None = None
    """`measured` if the checks of times count, `not measured` if the times decide nothing; None without times."""
    timing_note: str = ""
    """Why times were not measured."""

    @property
    def holds(self) -> bool:
        decisive = [check.kept for check in self.checks if not check.timed]
        return bool(decisive) and all(decisive)

    def to_plain(self) -> dict[str, Any]:
        numbers = {**self.numbers, "checks": [check.to_plain() for check in self.checks]}
        values = {"lab": self.lab, "claim": self.claim, "holds": self.holds, "timing": self.timing}
        return {**values, "numbers": _finite(numbers)}


def _finite(value: Any) -> Any:
    """Replace inf and nan by strings, because JSON has no such numbers."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Lab:
    """A lab. Its module has `run(spec) -> Outcome` and `draw(outcome, folder) -> list[Path]`."""

    module: str
    spec: type[LabSpec]
    shelf: str | None = None
    """A package of `anaphor` that it needs and that may be missing."""

    @property
    def claim(self) -> str:
        return self.spec.claim

    def run(self, spec: LabSpec | None = None) -> Outcome:
        """Run the lab with the given inputs, or with its defaults. The caller's random numbers are not changed."""
        from torch.random import fork_rng

        with fork_rng(devices=[]):  # labs run on the CPU
            return cast(Outcome, self._import().run(self.spec() if spec is None else spec))

    def draw(self, outcome: Outcome, folder: Path) -> list[Path]:
        """Draw the figures of an outcome into a folder and return their paths."""
        return cast(list[Path], self._import().draw(outcome, folder))

    def _import(self) -> Any:
        return import_module(f"anaphor.labs.{self.module}")


_LABS = {
    "backprop": Lab("backprop", specs.BackpropSpec, shelf="trace"),
    "kronecker": Lab("kronecker", specs.KroneckerSpec),
    "unroll": Lab("unroll", specs.UnrollSpec),
    "bptt": Lab("bptt", specs.BpttSpec, shelf="trace"),
    "complexity": Lab("complexity", specs.ComplexitySpec),
    "low-rank": Lab("low_rank", specs.LowRankLabSpec),
    "scaling": Lab("scaling", specs.ScalingSpec),
    "masking": Lab("masking", specs.MaskingSpec),
    "concepts": Lab("concepts", specs.ConceptsSpec),
    "selection": Lab("selection", specs.SelectionSpec),
}
LABS: dict[str, Lab] = {name: lab for name, lab in _LABS.items() if lab.shelf is None or has_shelf(lab.shelf)}
"""All labs but those that need a missing package."""
