"""The labs by name, and what a lab returns: a claim, the checks that decide whether it holds, and the numbers.

Imports no torch: a lab's module is imported when the lab is run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from anaphor.labs import specs
from anaphor.labs.specs import LabSpec

CURVES = "curves"
"""Key of `numbers` with the data of the figures: long lists, which the printed table omits."""


@dataclass(frozen=True)
class Check:
    """One condition of the claim: the measured value, and which values are allowed."""

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
    if isinstance(expected, float):
        return Check(what, value, f"= {expected:g}", value == expected)
    return Check(what, value, f"= {expected:,}" if isinstance(expected, int) else f"= {expected}", value == expected)


def true(what: str, condition: bool) -> Check:
    return Check(what, "yes" if condition else "no", "yes", bool(condition))


@dataclass(frozen=True)
class Outcome:
    """Result of a lab. The claim holds if every check passes; some inputs make a check fail on purpose."""

    lab: str
    claim: str
    checks: tuple[Check, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values."""

    @property
    def holds(self) -> bool:
        return bool(self.checks) and all(check.kept for check in self.checks)

    def to_plain(self) -> dict[str, Any]:
        numbers = {**self.numbers, "checks": [check.to_plain() for check in self.checks]}
        return {"lab": self.lab, "claim": self.claim, "holds": self.holds, "numbers": _finite(numbers)}


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
    claim: str

    def run(self, spec: LabSpec | None = None) -> Outcome:
        """Run the lab with the given inputs, or with its defaults."""
        outcome: Outcome = self._import().run(self.spec() if spec is None else spec)
        return outcome

    def draw(self, outcome: Outcome, folder: Path) -> list[Path]:
        """Draw the figures of an outcome into a folder and return their paths."""
        paths: list[Path] = self._import().draw(outcome, folder)
        return paths

    def _import(self) -> Any:
        return import_module(f"anaphor.labs.{self.module}")


LABS: dict[str, Lab] = {
    "backprop": Lab(
        "backprop",
        specs.BackpropSpec,
        "backpropagation by hand, node by node, gives the same gradients as autograd, and exactly so in fractions",
    ),
    "kronecker": Lab(
        "kronecker",
        specs.KroneckerSpec,
        "self-attention is a fully connected layer with the matrix I ⊗ A, which changes with every input",
    ),
    "unroll": Lab(
        "unroll",
        specs.UnrollSpec,
        "a linear recurrent network is a sum, h_T = Σ W_h^(T-t) W_x x_t, so the spectral radius of W_h decides "
        "how much of the first input is left",
    ),
    "bptt": Lab(
        "bptt",
        specs.BpttSpec,
        "backpropagation through time is ŷ − y carried back by the transposed recurrent matrix, summed over steps",
    ),
    "complexity": Lab(
        "complexity",
        specs.ComplexitySpec,
        "attention costs n² in the length n; recurrent, pooled, linear and low-rank layers cost n",
    ),
    "low-rank": Lab(
        "low_rank",
        specs.LowRankLabSpec,
        "an attention matrix of rank k is applied in O(nkd) exactly; with a softmax the projection is not exact",
    ),
    "scaling": Lab(
        "scaling",
        specs.ScalingSpec,
        "q·k has mean hμ² and variance h(σ⁴ + 2μ²σ²), so without √h a softmax saturates as h grows",
    ),
    "masking": Lab(
        "masking", specs.MaskingSpec, "a masked token has no influence: its weights and gradients are exactly zero"
    ),
    "concepts": Lab(
        "concepts", specs.ConceptsSpec, "sixteen questions about language models are answered by experiments"
    ),
    "selection": Lab(
        "selection",
        specs.SelectionSpec,
        "a query can select a key if and only if the key lies outside the convex hull of the others",
    ),
}
