"""Curves and heat-maps from plain arrays. Knows no model. Colours differ for colour-blind people and in grey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Okabe and Ito's palette, darkest first, each with a line style of its own for print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: Path,
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    log_y: bool = False,
) -> Path:
    """One line for each named (x, y). The file's ending chooses PNG, SVG or PDF."""
    figure, axes = _canvas()
    for index, (name, (x, y)) in enumerate(series.items()):
        axes.plot(x, y, label=name, color=COLOURS[index % len(COLOURS)], linestyle=STYLES[index % len(STYLES)])
    axes.set(xlabel=x_label, ylabel=y_label, title=title, yscale="log" if log_y else "linear")
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend(frameon=False)
    return _save(figure, path)


def heat_map(
    values: Sequence[Sequence[float]],
    path: Path,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    x_label: str = "",
    y_label: str = "",
    title: str = "",
    label: str = "",
) -> Path:
    """A matrix as colours with a bar that says what they mean. Cells that are not a number stay white."""
    figure, axes = _canvas()
    image = axes.imshow(values, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(columns)), labels=list(columns), rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), labels=list(rows))
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    figure.colorbar(image, label=label)
    return _save(figure, path)


def _canvas() -> tuple[Any, Any]:
    # The object interface, not pyplot: no global state, no window, no backend to choose.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path
