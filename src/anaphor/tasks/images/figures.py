"""Figures of a classifier: the confusion matrix, and images that were mistaken for another class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from anaphor.data.images import ImageSplit
from anaphor.draw import Panel, heat_maps, new_figure, save_all
from anaphor.draw.cells import Annotated, annotated_heat_maps

MAX_NUMBERS = 20
"""Classes up to which cells of the confusion matrix have numbers."""
ACROSS, DOWN = 6, 3
ENDINGS = (".png", ".svg")


def draw_confusion(counts: Tensor, classes: Sequence[str], stem: Path) -> list[Path]:
    """True class by predicted class, as shares of the true class."""
    paths = [stem.with_suffix(ending) for ending in ENDINGS]
    numbers = counts.numpy()
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


def draw_mistakes(split: ImageSplit, logits: Tensor, stem: Path) -> list[Path]:
    """The mistakes with the highest confidence: each image with what it was taken for and what it is. Nothing is drawn
    where there are none."""
    confidence, predicted = logits.double().softmax(-1).max(-1)
    wrong = (predicted != split.labels).nonzero()[:, 0]
    if not len(wrong):
        return []
    chosen = wrong[confidence[wrong].argsort(descending=True)][: ACROSS * DOWN].cpu()
    columns = min(ACROSS, max(len(chosen), 3))
    rows = -(-len(chosen) // columns)
    figure = new_figure(1.55 * columns, 1.95 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.set_axis_off()
    for one, index in zip(axes.flat, chosen.tolist(), strict=False):
        show_image(one, split.images[index])
        taken, true = split.classes[int(predicted[index])], split.classes[int(split.labels[index])]
        one.set_title(
            f"{shorten(taken)} {float(confidence[index]):.0%}\ntrue: {shorten(true)}", fontsize=8, linespacing=1.25
        )
    paths = [stem.with_suffix(ending) for ending in ENDINGS]
    some = f"the {len(chosen)} with the highest confidence of " if len(chosen) < len(wrong) else ""
    save_all(
        figure, paths, f"mistakes on validation, {some}{len(wrong):,} of {len(split):,} images: predicted, and true"
    )
    return paths


def show_image(axes: Any, image: Tensor) -> None:
    """Draw a uint8 image [C, H, W], pixels not blurred."""
    pixels = image.cpu().permute(1, 2, 0).numpy()
    axes.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=255)


def shorten(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
