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
USUAL_MARGIN = 0.05
# A single point at x gets an axis a tenth of x wide; with so many times that on either side it goes from 0 to 2 x.
FROM_ZERO = 9.5


def draw_curves(rundir: RunDir) -> list[Path]:
    """Write the figures of a run and give their paths; none where nothing was ever validated."""
    import matplotlib

    lines = [line for line in rundir.read_metrics() if isinstance(line.get("valid"), Mapping)]
    if not lines:
        return []
    x, x_label = along(lines)
    losses = {
        "training": [_number(line.get("train_loss")) for line in lines],
        "validation": [_number(line["valid"].get("loss")) for line in lines],
    }
    series = {name: (x, y) for name, y in losses.items() if not all(map(math.isnan, y))}
    # A number is written whole, not as what is to be added to another one at the end of the axis.
    across, down = FROM_ZERO if len(lines) == 1 else USUAL_MARGIN, _margin(losses)
    plain = matplotlib.rc_context({"axes.formatter.useoffset": False, "axes.xmargin": across, "axes.ymargin": down})
    try:
        with plain:
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


def _margin(losses: Mapping[str, Sequence[float]]) -> float:
    """Room above and below the curves, as a share of their height.

    Of a single validation there is hardly any height, and the last digits of two losses would fill the figure: there a
    tenth of the loss does.
    """
    known = [value for values in losses.values() for value in values if math.isfinite(value)]
    height = max(known, default=0.0) - min(known, default=0.0)
    if len(losses["validation"]) > 1 or not height:
        return USUAL_MARGIN
    return max(USUAL_MARGIN, (max(map(abs, known)) / 10 / height - 1) / 2)


def _number(value: Any) -> float:
    """What is missing or was not finite leaves a gap in its curve."""
    return float(value) if isinstance(value, int | float) else math.nan
