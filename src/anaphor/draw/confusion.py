"""Confusion matrices of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.draw import Panel, figure_paths, heat_maps
from anaphor.draw.cells import Annotated, annotated_heat_maps

MAX_NUMBERS = 20
"""Classes up to which cells of the confusion matrix have numbers."""


def draw_confusion(numbers: NDArray[Any], classes: Sequence[str], stem: Path) -> list[Path]:
    """True class by predicted class, as shares of the true class."""
    paths = figure_paths(stem)
    shares = numbers / np.maximum(numbers.sum(1, keepdims=True), 1)
    names = [shorten(name) for name in classes]
    labels: dict[str, Any] = {
        "x_label": "predicted class",
        "y_label": "true class",
        "label": "share of the true class",
    }
    if len(classes) > MAX_NUMBERS:
        heat_maps([Panel("", shares, 0.0, 1.0)], paths, rows=names, columns=names, across=1, **labels)
        return paths
    texts = [[str(count) if count else "" for count in row] for row in numbers.tolist()]
    panel = Annotated("", shares, 0.0, 1.0, texts)
    annotated_heat_maps([panel], paths, rows=names, columns=names, **labels)
    return paths


def shorten(name: str, most: int = 14) -> str:
    """Without its middle, because names of many classes begin or end alike."""
    return name if len(name) <= most else f"{name[: most - 6]}…{name[-5:]}"
