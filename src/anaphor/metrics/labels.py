"""Labels: what the columns of a run's history are called for people, with their units. Pages, figures, reports and
tables take them from here, so that a value has one name everywhere. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ITEMS = "items"
"""What is counted where nothing names it."""


@dataclass(frozen=True)
class Label:
    """What a column is called."""

    text: str
    unit: str = ""

    @property
    def axis(self) -> str:
        """With its unit, for the axis of a figure and the head of a table."""
        return f"{self.text} ({self.unit})" if self.unit else self.text


SETTINGS: Mapping[str, Label] = {
    "lr": Label("learning rate"),
    "layer_lr": Label("learning rate factors of layers"),
    "bptt": Label("segment length", "tokens"),
    "memory": Label("memory", "tokens"),
    "minutes": Label("training time", "min"),
    "init": Label("initial weights"),
}
"""Settings whose flag is no word, or that have a unit; the others are called by their flag."""


def format_value(value: float) -> str:
    """A measured value for people: four significant digits, and no exponent where the number is of common size."""
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.{max(3 - math.floor(math.log10(abs(value))), 0)}f}"


def label_setting(name: str) -> Label:
    """What a setting of a run, or an axis of a study, is called: "lr" is the learning rate."""
    return SETTINGS.get(name, Label(name.replace("_", " ")))


def label_column(name: str, metrics: Mapping[str, Label], unit: str | None) -> Label:
    """The label of a column as a page has it (see `web.history.flatten_row`), or of a line of `steps.jsonl`.

    Args:
        name: Of the column, such as "valid.loss", "train_loss" or "lr".
        metrics: The labels of the task's metrics by their names.
        unit: What throughput counts, such as "tokens".
    """
    known = {
        "step": Label("step"),
        "epoch": Label("epoch"),
        "count": Label(f"training {unit or ITEMS}"),
        "seconds": Label("training time", "s"),
        "lr": Label("learning rate"),
        "grad_norm": Label("gradient norm"),
        "throughput": Label("speed", f"{unit or ITEMS}/s"),
        "seconds_left": Label("time left", "s"),
        "parameters": Label("parameters"),
    }
    if name in known:
        return known[name]
    for prefix, split in (("valid.", "validation"), ("test.", "test"), ("train_", "training")):
        if name.startswith(prefix):
            metric = name.removeprefix(prefix)
            found = metrics.get(metric, Label(metric.replace("_", " ")))
            return Label(f"{split} {found.text}", found.unit)
    return metrics.get(name, Label(name.replace("_", " ")))
