"""Figures of an image classifier: images that were mistaken for another class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from anaphor.data.images import ImageSplit
from anaphor.draw import figure_paths, new_figure, save_all
from anaphor.draw.confusion import shorten
from anaphor.precision import to_double

ACROSS, DOWN = 6, 3


def draw_mistakes(split: ImageSplit, logits: Tensor, stem: Path) -> list[Path]:
    """The mistakes with the highest confidence: each image with what it was taken for and what it is. Nothing is drawn
    where there are none."""
    confidence, predicted = to_double(logits).softmax(-1).max(-1)
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
    paths = figure_paths(stem)
    some = f"the {len(chosen)} with the highest confidence of " if len(chosen) < len(wrong) else ""
    save_all(
        figure, paths, f"mistakes on validation, {some}{len(wrong):,} of {len(split):,} images: predicted, and true"
    )
    return paths


def show_image(axes: Any, image: Tensor) -> None:
    """Draw a uint8 image [C, H, W], pixels not blurred."""
    pixels = image.cpu().permute(1, 2, 0).numpy()
    axes.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=255)
