"""Heat maps with a text in every cell, as of a grid of settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphor.draw import COLORS, Panel, new_figure, save_all

PAGE_WIDTH = 9  # inches; more panels go below each other, so that their numbers stay readable
CHARACTER_WIDTH = 0.09  # inches, on average, at the size of tick labels


@dataclass(frozen=True)
class Annotated(Panel):
    """A matrix with a text in every cell."""

    texts: Sequence[Sequence[str]]
    highlighted: tuple[int, int] | None = None
    """Row and column of a cell with a frame."""
    label: str = ""
    """What its colors show, where panels show different quantities."""


def annotated_heat_maps(
    panels: Sequence[Annotated],
    paths: Sequence[Path],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    x_label: str,
    y_label: str,
    label: str,
    remark: str = "",
) -> None:
    """Heat maps side by side with a text in each cell. Panels with equal limits share one color bar.

    Values beyond the limits have the color of the limit. NaN cells are gray and keep their text.
    """
    wide, high = max(0.8 * len(columns), 2.4), max(0.55 * len(rows), 1.6)
    common = len({(panel.low, panel.high, panel.label) for panel in panels}) == 1
    panel_width = wide if common else wide + 1.0  # space for its own color bar
    across = max(1, min(len(panels), int(PAGE_WIDTH // panel_width)))
    if across < len(panels):
        across = -(-len(panels) // -(-len(panels) // across))  # lines of equal length
    lines = -(-len(panels) // across)
    longest = CHARACTER_WIDTH * max(map(len, columns))
    is_upright = longest > wide / len(columns)  # side by side, the labels of the columns would overlap
    below_panels = max(0.9, 0.6 + longest) if is_upright else 0.9
    figure = new_figure(across * (panel_width + 0.3) + 1.9, lines * (high + 0.4) + below_panels)
    axes = figure.subplots(lines, across, squeeze=False)
    for place, one in enumerate(axes.flat):
        if place >= len(panels):
            one.set_axis_off()
            continue
        limits = {"vmin": panels[place].low, "vmax": panels[place].high}
        image = one.imshow(panels[place].values, "viridis", aspect="auto", **limits)
        one.set_facecolor("0.88")
        one.set_title(panels[place].title, fontsize=10)
        below, left = place + across >= len(panels), place % across == 0
        one.set_xticks(range(len(columns)), labels=columns if below else [], rotation=90 if is_upright else 0)
        one.set_yticks(range(len(rows)), labels=rows if left else [])
        one.set(xlabel=x_label if below else "", ylabel=y_label if left else "")
        _write_cells(one, image, panels[place])
        if not common:
            figure.colorbar(image, ax=one, label=panels[place].label or label, extend=_extend([panels[place]]))
    if common:
        figure.colorbar(image, ax=axes, label=panels[0].label or label, extend=_extend(panels))
    save_all(figure, paths, remark)


def _extend(panels: Sequence[Panel]) -> str:
    """At which ends of the color bar values lie beyond the limits."""
    below = any((panel.values < panel.low).any() for panel in panels)
    above = any((panel.values > panel.high).any() for panel in panels)
    return {(True, False): "min", (False, True): "max", (True, True): "both"}.get((below, above), "neither")


def _write_cells(axes: Any, image: Any, panel: Annotated) -> None:
    from matplotlib.patches import Rectangle

    for row, texts in enumerate(panel.texts):
        for column, text in enumerate(texts):
            red, green, blue, alpha = image.to_rgba(panel.values[row, column])
            dark = alpha and 0.299 * red + 0.587 * green + 0.114 * blue < 0.45
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    if panel.highlighted is not None:
        row, column = panel.highlighted
        corner = (column - 0.46, row - 0.46)
        axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=COLORS[1], linewidth=3))
