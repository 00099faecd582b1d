"""Learning curves of a classifier: loss and accuracy of training and validation in one figure, by epoch and by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anaphor.draw import COLORS, figure_paths, new_figure, save_all, set_ticks
from anaphor.metrics.result import training_metric


def draw_learning(lines: Sequence[Mapping[str, Any]], stem: Path) -> list[Path]:
    """One point for each validation; training values are means since the one before. Nothing is drawn without any."""
    lines = [line for line in lines if isinstance(line.get("valid"), Mapping)]
    if not lines:
        return []
    steps, x = [line["step"] for line in lines], [float(line["epoch"]) for line in lines]
    has_epochs = x[-1] > 0  # else the run ended so early in its first one that the fraction was rounded to zero
    x = x if has_epochs else steps
    per_epoch = steps[-1] / x[-1]
    figure = new_figure(9.5, 3.8)
    panels = {
        "loss": ([training_metric(line, "loss") for line in lines], "loss (nats per text)"),
        "accuracy": ([training_metric(line, "accuracy") for line in lines], "accuracy"),
    }
    for axes, (name, (training, label)) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for series, values, style in (
            ("training", training, "-"),
            ("validation", [line["valid"].get(name) for line in lines], "--"),
        ):
            y = [math.nan if value is None else float(value) for value in values]
            color = COLORS[0 if series == "training" else 1]
            axes.plot(x, y, style, color=color, marker="o", markersize=3.5, label=series)
        axes.set_xlabel("epoch" if has_epochs else "step")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if len(x) == 1:  # one point has no range, and fractions of an epoch around it would say nothing
            set_ticks(axes.xaxis, x)
        elif all(float(value).is_integer() for value in x):
            axes.xaxis.get_major_locator().set_params(integer=True)
        if not has_epochs:
            continue
        top = axes.secondary_xaxis("top", functions=(lambda epoch: epoch * per_epoch, lambda step: step / per_epoch))
        top.set_xlabel("step")
        top.xaxis.get_major_locator().set_params(integer=True)
        if len(x) == 1:
            set_ticks(top.xaxis, steps)
    axes.legend()
    paths = figure_paths(stem)
    save_all(figure, paths, "")
    return paths
