"""Metrics and results: what a task measures, as named values with a goal and a unit. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from anaphor.config import look_up
from anaphor.errors import ConfigError


@dataclass(frozen=True)
class Metric:
    """A quantity that a task measures on a split."""

    name: str
    """Key in results, `metrics.jsonl`, `--json` and `--select`."""
    goal: Literal["min", "max"]
    """Whether smaller or larger values are better."""
    label: str
    """Name in tables and figures."""
    unit: str = ""
    """Unit in figures, such as "nats per token"."""
    digits: int = 2
    """Digits after the decimal point in text."""
    derived_from: str | None = None
    """Metric that this one is a function of; it is then not drawn beside it."""
    minimum: float = -math.inf
    """Smallest possible value; intervals in figures end there."""
    maximum: float = math.inf
    """Largest possible value, likewise."""

    def __post_init__(self) -> None:
        if self.goal not in ("min", "max"):
            raise ConfigError(f"metric {self.name!r}: goal={self.goal!r} must be 'min' or 'max'")

    @property
    def axis(self) -> str:
        """Label with unit, for the axis of a figure."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether a value improves on the best one so far."""
        if best is None:
            return True
        return value < best if self.goal == "min" else value > best

    def format(self, value: float | None) -> str:
        """The value for people."""
        if value is None:
            return f"no {self.label}"
        return f"{self.label} {value:.{self.digits}f}" if math.isfinite(value) else f"{self.label} {value}"


@dataclass(frozen=True)
class Result:
    """Values of a task's metrics on one split, and how they were measured."""

    values: Mapping[str, float | None]
    """By metric name. None: not measured, or it has no value."""
    metadata: Mapping[str, Any]
    """Protocol of the measurement; they form the signature."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further plain values for result files and `--json`."""
    outputs: Any = field(default=None, compare=False, repr=False)
    """What the model gave, such as logits, where the task draws figures from it; it is written to no file."""

    @property
    def signature(self) -> str:
        return "|".join(f"{key}:{value}" for key, value in self.metadata.items())

    def to_plain(self) -> dict[str, Any]:
        """All values as plain JSON."""
        return {**self.values, **self.details, "signature": self.signature}


def format_values(metrics: Sequence[Metric], values: Mapping[str, Any]) -> str:
    """All measured values in one line, in the order of the task's metrics."""
    return ", ".join(metric.format(values[metric.name]) for metric in metrics if metric.name in values)


def find_metric(metrics: Sequence[Metric], name: str | None) -> Metric:
    """The metric of that name; the first one where none is named."""
    return metrics[0] if name is None else look_up({metric.name: metric for metric in metrics}, name, "metric")


def select_value(metric: Metric, result: Result) -> float:
    """The value of a result on valid by which checkpoints are selected."""
    if metric.name not in result.values:
        raise ConfigError(
            f"the result on valid has no metric {metric.name!r} to select by (it has: {', '.join(result.values)})"
        )
    value = result.values[metric.name]
    if value is None:
        raise ConfigError(f"{metric.name} has no value on valid: select by another metric with --select")
    return value


def training_metric(line: Mapping[str, Any], name: str) -> Any:
    """Value of a metric on the training batches in a line of `metrics.jsonl`; None where it was not measured.
    Runs of earlier versions have it among the values of validation."""
    return line.get(f"train_{name}", line["valid"].get(f"train_{name}"))
