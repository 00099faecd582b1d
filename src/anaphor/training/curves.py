"""Curves of a run: training and validation along its epochs, as figures in its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anaphor.draw import curves
from anaphor.errors import DataError
from anaphor.metrics.labels import Label, label_column
from anaphor.training.run_folder import RunFolder
from anaphor.training.task import TaskDefinition


def draw_curves(folder: RunFolder, task: TaskDefinition) -> list[Path]:
    """Write the figures of a run. Returns their paths; empty where nothing was ever validated. `curves` has the task's
    first metric; each further metric that is not derived from another has a figure of its own."""
    if not (lines := [line for line in folder.read_metrics() if isinstance(line.get("valid"), Mapping)]):
        return []
    x, x_label = progress_axis(lines, task.unit)
    train_loss = [_number(line.get("train_loss")) for line in lines]
    labels = {metric.name: Label(metric.label, metric.unit) for metric in task.metrics}
    figures: dict[str, tuple[str, dict[str, list[float]]]] = {}  # axis and series, by name
    for metric in task.metrics:
        if metric.derived_from is None:
            valid = [_number(line["valid"].get(metric.name)) for line in lines]
            series = {"training": train_loss} if metric.name == "loss" else {}
            figures[metric.name] = (metric.axis, {**series, "validation": valid})
    figures.setdefault("loss", (Label("loss").axis, {"training": train_loss}))
    paths: list[Path] = []
    try:
        for name, (axis, series) in figures.items():
            drawn = {label: (x, y) for label, y in series.items() if not all(map(math.isnan, y))}
            if len(drawn) == 1:  # it has no legend
                prefix = "train_" if "training" in drawn else "valid."
                axis = label_column(f"{prefix}{name}", labels, task.unit).axis
            if drawn:
                suffix = "" if name == task.metrics[0].name else f"-{name}"
                files = [path.with_stem(f"{path.stem}{suffix}") for path in folder.curves]
                curves(drawn, *files, x_label=x_label, y_label=axis)
                paths += files
    except OSError as error:
        raise DataError(f"cannot write the curves to {folder.folder}: {error.strerror or error}") from None
    return paths


def progress_axis(lines: Sequence[Mapping[str, Any]], unit: str) -> tuple[list[float], str]:
    """Epochs where each validation is at a later one, else items in a unit that keeps the numbers short."""
    epochs = [_number(line.get("epoch")) for line in lines]
    if all(before < after for before, after in zip([0.0, *epochs], epochs, strict=False)):
        return epochs, "epoch"
    counts = [_number(line.get(unit)) for line in lines]
    for size, name in ((1e9, "billions"), (1e6, "millions"), (1e3, "thousands")):
        if max(counts) >= size:
            return [count / size for count in counts], f"{name} of training {unit}"
    return counts, f"training {unit}"


def _number(value: Any) -> float:
    """A value that is missing or not finite leaves a gap in its curve."""
    return float(value) if isinstance(value, int | float) else math.nan
