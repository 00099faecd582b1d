"""What a run of a user's own task says of its metrics: names, goals, labels and units, in its `spec.yaml`. So tables,
pages and reports show the run as its task would, without importing the user's file. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anaphor.metrics.result import Metric

MAX_METRICS = 100
"""Metrics that are read of a run; tasks have a few."""
MAX_LETTERS = 80
"""Letters of a name or a label that are read."""
LIMITS = {"minimum": -math.inf, "maximum": math.inf}


@dataclass(frozen=True)
class DescribedTask:
    """A task as far as its metrics go: what `TaskDefinition` has under the same names."""

    metrics: tuple[Metric, ...]
    unit: str
    page: Mapping[str, str] = field(default_factory=dict)
    """No view that needs a model: that would execute the user's file."""


def describe_metrics(metrics: Sequence[Metric], unit: str) -> dict[str, Any]:
    """As plain values for a file."""
    return {"unit": unit, "metrics": [_describe(metric) for metric in metrics]}


def _describe(metric: Metric) -> dict[str, Any]:
    plain = {"name": metric.name, "goal": metric.goal, "label": metric.label, "unit": metric.unit,
             "digits": metric.digits, "derived_from": metric.derived_from}  # fmt: skip
    return {**plain, **{name: getattr(metric, name) for name, none in LIMITS.items() if getattr(metric, name) != none}}


def read_described(values: Any) -> DescribedTask | None:
    """The task that was described; None for anything else. The file may come from anybody: whatever is no metric is
    left out, and long texts are cut."""
    if not isinstance(values, Mapping) or not isinstance(values.get("metrics"), list):
        return None
    metrics = tuple(filter(None, map(_read, values["metrics"][:MAX_METRICS])))
    return DescribedTask(metrics, _text(values.get("unit")) or "items") if metrics else None


def _read(values: Any) -> Metric | None:
    if not isinstance(values, Mapping) or values.get("goal") not in ("min", "max"):
        return None
    name = _text(values.get("name"))
    if not name:
        return None
    digits = values.get("digits")
    limits = {limit: number for limit in LIMITS if (number := _number(values.get(limit))) is not None}
    return Metric(
        name,
        values["goal"],
        _text(values.get("label")) or name.replace("_", " "),
        unit=_text(values.get("unit")),
        digits=digits if type(digits) is int and 0 <= digits <= 10 else 4,
        derived_from=_text(values.get("derived_from")) or None,
        **limits,
    )


def _text(value: Any) -> str:
    return value.encode("utf-8", "replace").decode()[:MAX_LETTERS] if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None
