"""Curves of a run: the losses of training and validation, drawn from its metrics when it is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anaphor.draw import curves
from anaphor.errors import DataError
from anaphor.training.rundir import RunDir

Lines = Sequence[Mapping[str, Any]]


def draw_curves(rundir: RunDir) -> list[Path]:
    """Write the figures of a run and give their paths; none where nothing was ever validated."""
    lines = [line for line in rundir.read_metrics() if isinstance(line.get("valid"), Mapping)]
    if not lines:
        return []
    x, x_label = along(lines)
    losses = {
        "training": [_number(line.get("train_loss")) for line in lines],
        "validation": [_number(line["valid"].get("loss")) for line in lines],
    }
    series = {name: (x, y) for name, y in losses.items() if not all(map(math.isnan, y))}
    try:
        return [curves(series, path, x_label=x_label, y_label="loss (nats per token)") for path in rundir.curves]
    except OSError as error:
        raise DataError(f"cannot write the curves to {rundir.folder}: {error.strerror or error}") from None


def along(lines: Lines) -> tuple[list[float], str]:
    """Epochs where each validation ended one, else tokens in a unit that keeps the numbers short."""
    epochs = [_number(line.get("epoch")) for line in lines]
    if all(before < after for before, after in zip([0.0, *epochs], epochs, strict=False)):
        return epochs, "epoch"
    tokens = [_number(line.get("tokens")) for line in lines]
    for size, unit in ((1e9, "billions of tokens"), (1e6, "millions of tokens"), (1e3, "thousands of tokens")):
        if max(tokens) >= size:
            return [count / size for count in tokens], f"{unit} learnt from"
    return tokens, "tokens learnt from"


def _number(value: Any) -> float:
    """What is missing or was not finite leaves a gap in its curve."""
    return float(value) if isinstance(value, int | float) else math.nan
