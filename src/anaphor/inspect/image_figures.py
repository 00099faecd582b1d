"""Figures of where an image classifier looks: maps drawn over the image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anaphor.draw import new_figure, save_all
from anaphor.inspect.figures import SUFFIXES
from anaphor.inspect.image_maps import ImageLook
from anaphor.inspect.look import layer_label

Item = TypeVar("Item")

COLORS = "magma"
OPACITY = (0.35, 0.85)
"""Of the color over the image, at zero and at the largest value of a map."""
DIMMED = 0.75
"""Brightness of the image below a map."""
ACROSS = 10
"""Images in one row of a figure."""
MAX_LAYERS, MAX_HEADS = 12, 16
"""Columns of a figure; where there are more, they are chosen evenly."""
INCHES, FONT = 0.82, 7.5
"""Side of an image, and font size in points."""
ROW_LABELS = {
    "attention": "attention,\nmean of layers\nand heads",
    "gradient-weighted": "gradient-\nweighted",
}


def draw_views(looks: Sequence[ImageLook], folder: Path, *, stem: str = "attention") -> list[Path]:
    """Each image, and below it the maps of all layers together. The title is the predicted class, and in parentheses
    the true one where it differs."""
    views = looks[0].maps.main_views()
    blocks = [looks[start : start + ACROSS] for start in range(0, len(looks), ACROSS)]
    axes, figure = _grid(len(blocks) * (1 + len(views)), len(blocks[0]), left=1.0, titles=len(blocks))
    for number, block in enumerate(blocks):
        top = number * (1 + len(views))
        for column, look in enumerate(block):
            draw_image(axes[top][column], look)
            axes[top][column].set_title(_title(look), fontsize=FONT, linespacing=1.2)
            for row, name in enumerate(views, 1):
                draw_over(axes[top + row][column], look, look.maps.views()[name])
        for row, name in enumerate(("image", *views)):
            _row_label(axes[top + row][0], ROW_LABELS.get(name, name))
    return _save(figure, folder, stem, looks[0])


def draw_layers(looks: Sequence[ImageLook], folder: Path, *, stem: str = "layers") -> list[Path]:
    """A row for each of the first images: attention of each layer, averaged over its heads."""
    names = _choose_evenly([*looks[0].maps.attention], MAX_LAYERS)
    if not names:
        return []
    shown = looks[:ACROSS]
    axes, figure = _grid(len(shown), 1 + len(names), left=0.9, titles=1)
    for row, look in enumerate(shown):
        draw_image(axes[row][0], look)
        _row_label(axes[row][0], _title(look))
        for column, name in enumerate(names, 1):
            draw_over(axes[row][column], look, look.maps.attention[name].mean(0))
            if row == 0:
                axes[row][column].set_title(f"layer {layer_label(name)}", fontsize=FONT)
    return _save(figure, folder, stem, looks[0])


def draw_heads(look: ImageLook, folder: Path, *, stem: str = "heads") -> list[Path]:
    """Attention of every head of every layer in one image."""
    names = _choose_evenly([*look.maps.attention], MAX_LAYERS)
    if not names:
        return []
    most = max(len(look.maps.attention[name]) for name in names)
    heads = _choose_evenly(range(most), MAX_HEADS)
    axes, figure = _grid(len(names), 1 + len(heads), left=0.7, titles=1)
    for row, name in enumerate(names):
        maps = look.maps.attention[name]
        draw_over(axes[row][0], look, maps.mean(0))
        _row_label(axes[row][0], f"layer {layer_label(name)}")
        for column, head in enumerate(heads, 1):
            if head < len(maps):
                draw_over(axes[row][column], look, maps[head])
            if row == 0:
                axes[row][column].set_title(f"head {head}", fontsize=FONT)
    axes[0][0].set_title("mean", fontsize=FONT)
    return _save(figure, folder, stem, look)


def draw_image(axes: Any, look: ImageLook) -> None:
    """The image, with the true box where it is known."""
    axes.imshow(_rgb(look.pixels), interpolation="nearest")
    _draw_box(axes, look)


def draw_over(axes: Any, look: ImageLook, heat: Tensor) -> None:
    """A map over the image in gray: from 0 to the largest value of the map."""
    height, width = look.pixels.shape[1:]
    # A darker image, so that a white object is not taken for a large value.
    axes.imshow(_rgb(look.pixels).mean(-1), cmap="gray", vmin=0, vmax=255 / DIMMED, interpolation="nearest")
    share = heat.double().numpy() / max(float(heat.max()), 1e-30)
    low, high = OPACITY
    axes.imshow(
        share, cmap=COLORS, vmin=0, vmax=1, alpha=low + (high - low) * share, interpolation="nearest",
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
    )  # fmt: skip
    _draw_box(axes, look)


def _draw_box(axes: Any, look: ImageLook) -> None:
    from matplotlib.patches import Rectangle

    if look.box is None:
        return
    x0, y0, x1, y1 = look.box
    # Two lines, dark and light: visible on any color.
    for color, line in (("black", 1.8), ("white", 0.8)):
        axes.add_patch(Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, fill=False, edgecolor=color, linewidth=line))


def _rgb(pixels: Tensor) -> NDArray[Any]:  # [C, H, W] -> [H, W, 3]
    image = pixels.permute(1, 2, 0).numpy()
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def _title(look: ImageLook) -> str:
    title = f"{_shorten(look.label)} {look.probabilities[look.label]:.0%}"
    return title if look.true in (None, look.label) else f"{title}\n({_shorten(look.true)})"


def _shorten(name: str, most: int = 10) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _choose_evenly(items: Sequence[Item], most: int) -> list[Item]:
    """All items, or as many, evenly chosen, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def _grid(rows: int, columns: int, *, left: float, titles: int) -> tuple[Any, Any]:
    figure = new_figure(left + columns * (INCHES + 0.06), rows * (INCHES + 0.06) + 0.3 * titles + 0.35)
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.flat:
        one.set_axis_off()
    return axes, figure


def _row_label(axes: Any, text: str) -> None:
    axes.text(-0.08, 0.5, text, transform=axes.transAxes, ha="right", va="center", fontsize=FONT, linespacing=1.2)


def _save(figure: Any, folder: Path, stem: str, look: ImageLook) -> list[Path]:
    paths = [folder / f"{stem}.{suffix}" for suffix in SUFFIXES]
    frame = "" if look.box is None else "; frame: true box"
    save_all(figure, paths, f"gray is 0, light yellow the largest value of each map{frame}")
    return paths
