"""Curves and heat-maps from plain arrays. Knows no model. Colours differ for colour-blind people and in grey."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

# Okabe and Ito's palette, darkest first, each with a line style of its own for print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKED = 12  # points that still have room beside each other
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DOTS = 160  # to the inch
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: Path,
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    counted: bool = False,
) -> Path:
    """One line for each named (x, y); a `counted` x has whole ticks. The file's ending chooses PNG, SVG or PDF."""
    figure, axes = _canvas()
    for index, (name, (x, y)) in enumerate(series.items()):
        # A line through few points hides where they are, and through one there is none.
        look = {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}
        axes.plot(x, y, label=name, marker="o" if len(x) <= MARKED else None, markersize=4, **look)
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    places = sorted({place for x, _ in series.values() for place in x})
    if log_x:
        _mark(axes.xaxis, places, most=0 if counted else MARKED)
    elif counted or all(float(place).is_integer() for place in places):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if not (log_x or log_y):
        axes.ticklabel_format(useOffset=False)  # a number is written whole, not as what is to be added to another
        if len(places) == 1 and places[0] > 0:  # or the last digits of what stands there would fill the figure
            low, high = axes.get_ylim()
            room = max(high / 10 - (high - low), 0) / 2
            axes.set(xlim=(0, 2 * places[0]), ylim=(low - room, high + room))
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


@dataclass(frozen=True)
class Panel:
    """One matrix among several, and the values at the two ends of its colours."""

    title: str
    values: NDArray[Any]
    low: float
    high: float


def heat_maps(
    panels: Sequence[Panel | None],
    paths: Sequence[Path],
    *,
    across: int,
    rows: Sequence[str],
    columns: Sequence[str],
    x_label: str = "",
    y_label: str = "",
    label: str = "",
    curved: bool = False,
) -> None:
    """Matrices beside each other, `across` of them in a line, with names, if any are given, at the outer ones only.
    None leaves a place empty.

    Panels with the same ends share one bar; those that reach below zero have white in the middle. Cells that are not a
    number are grey. `curved` gives small values more of the colours: they go by the square root.
    """
    lines = -(-len(panels) // across)
    there = [panel for panel in panels if panel is not None]
    wide = _inches(max(panel.values.shape[1] for panel in there), across)
    high = _inches(max(panel.values.shape[0] for panel in there), across)
    dots = DOTS if len(there) <= 12 else DOTS * 2 // 3  # many panels make a large figure as it is
    figure = _figure(across * (wide + 0.25) + 1.8, lines * (high + 0.35) + 1.3)
    axes = figure.subplots(lines, across, squeeze=False)
    common = len({(panel.low, panel.high) for panel in there}) == 1
    image = None
    for place, one in enumerate(axes.flat):
        panel = panels[place] if place < len(panels) else None
        if panel is None:
            one.set_axis_off()
            continue
        image = _fill(one, panel, curved, int(dots * wide), int(dots * high))
        below = panels[place + across] if place + across < len(panels) else None
        _name(one.yaxis, rows if place % across == 0 else (), high)
        _name(one.xaxis, columns if below is None else (), wide)
        if not common:
            figure.colorbar(image, ax=one).ax.tick_params(labelsize=7)
    if common and image is not None:
        figure.colorbar(image, ax=axes, label=label, shrink=0.8 if lines == 1 else 0.5)
    figure.supxlabel(x_label, fontsize=10)
    figure.supylabel(y_label, fontsize=10)
    for path in paths:
        _save(figure, path, dots)
        figure.set_layout_engine("none")  # it stays as it was arranged for the first file


def _fill(axes: Any, panel: Panel, curved: bool, dots_across: int, dots_down: int) -> Any:
    from matplotlib.colors import Normalize, PowerNorm

    rows, columns = panel.values.shape
    norm = PowerNorm(0.5, panel.low, panel.high) if curved else Normalize(panel.low, panel.high)
    values, colours = panel.values, "RdBu_r"
    if panel.low >= 0:
        values, colours = _coarser(values, dots_across, dots_down), "Blues"
    axes.set_facecolor("0.93")
    axes.set_title(panel.title, fontsize=9)
    return axes.imshow(values, colours, norm=norm, aspect="auto", extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))


def _coarser(values: NDArray[Any], columns: int, rows: int) -> NDArray[Any]:
    """No more cells than dots: each is the largest of those it stands for, so that a single one is not lost."""
    import numpy as np

    for axis, room in ((0, rows), (1, columns)):
        count = values.shape[axis]
        if count > room:
            # fmax passes over what is not a number
            values = np.fmax.reduceat(values, np.arange(room) * count // room, axis=axis)
    return values


def _inches(cells: int, across: int) -> float:
    """Room for a name beside each cell where there is one matrix, less where there are many."""
    if across == 1:
        return min(max(0.17 * cells, 2.4), 9)
    least = 0.12 * cells
    return max(least, 1.6) if least <= (3.4 if across <= 4 else 2.2) else 2.2


def _name(axis: Any, names: Sequence[str], inches: float) -> None:
    """Every name where there is room for it, else numbers here and there."""
    axis.set_tick_params(labelsize=7, length=2)
    if len(names) <= inches / 0.115:
        axis.set_ticks(range(len(names)), labels=[name if len(name) <= 16 else f"{name[:15]}…" for name in names])
    else:
        step = 10 ** math.ceil(math.log10(len(names) / inches / 3))
        step = next(finer for finer in (step // 5, step // 2, step) if finer and len(names) / finer <= 3 * inches)
        axis.set_ticks(range(0, len(names), step))
    for text in axis.get_ticklabels():
        text.set_parse_math(False)  # a token may be a dollar
        if axis.axis_name == "x":
            text.set_rotation(90)


@dataclass(frozen=True)
class Line:
    """A mean along x with the ends of its interval, not a number where there is none, and the values it was made of."""

    name: str
    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    singles: Sequence[tuple[float, float]] = ()
    """Places (x, y) of single values."""
    joined: bool = True
    """Whether neighbours belong together, so that a line between them means something."""


def bands(
    panels: Mapping[str, Sequence[Line]],
    paths: Sequence[Path],
    *,
    x_label: str,
    y_label: str,
    remark: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Lines with bands around them, in panels beside each other that share a scale. A name looks the same in all."""
    figure = _figure(max(7, 1 + 4 * len(panels)), 4.4)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    drawn: dict[str, Any] = {}
    for one, (title, lines) in zip(axes, panels.items(), strict=True):
        for line in lines:
            drawn[line.name] = _band(one, line, names.index(line.name))
        one.set_title(title, fontsize=10)
        one.set(xlabel=x_label, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
        one.grid(alpha=0.3)
        _mark(one.xaxis, sorted({place for line in lines for place in line.x}))
        if log_y:
            _plain(one.yaxis)
    axes[0].set_ylabel(y_label)
    if len(names) > 1:
        across = max(1, min(len(names), int(12 * figure.get_figwidth()) // (max(map(len, names)) + 8)))
        shown = [drawn[name] for name in names]
        look = {"frameon": False, "fontsize": 9, "handlelength": 3}
        figure.legend(shown, names, loc="outside upper center", ncols=across, **look)
    _save_all(figure, paths, remark)


def _band(axes: Any, line: Line, number: int) -> Any:
    look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
    style = STYLES[number % len(STYLES)] if line.joined else "none"
    (drawn,) = axes.plot(line.x, line.middle, linestyle=style, **look)
    if line.joined:
        axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.15, linewidth=0)
    axes.vlines(line.x, line.low, line.high, color=look["color"], linewidth=0.8)  # a band around one point is none
    if line.singles:
        axes.plot(*zip(*line.singles, strict=True), linestyle="none", marker=".", color=look["color"], alpha=0.35)
    return drawn


def _mark(axis: Any, places: Sequence[float], most: int = MARKED) -> None:
    """Write the very values that were tried, where there are few."""
    if len(places) <= most:
        axis.set_ticks(places, labels=[f"{place:g}" for place in places])
        axis.set_ticks([], minor=True)
    elif axis.get_scale() == "log":
        _plain(axis)


def _plain(axis: Any) -> None:
    """Numbers instead of powers of ten along a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class Dot:
    """A mean with the ends of its interval, not a number where there is none, and the values it was made of."""

    name: str
    middle: float
    low: float
    high: float
    singles: Sequence[float] = ()


def dots(rows: Sequence[Dot], paths: Sequence[Path], *, x_label: str, remark: str = "", log_x: bool = False) -> None:
    """Means with bars for their intervals, one below the other, so that long names can be read."""
    names = [textwrap.fill(row.name, 44) for row in rows]
    heights = [1 + 0.55 * name.count("\n") for name in names]
    figure = _figure(7.5, 1.3 + 0.34 * sum(heights))
    axes = figure.add_subplot()
    places = [sum(heights[:place]) + heights[place] / 2 for place in range(len(rows))]
    for place, row in zip(places, rows, strict=True):
        axes.plot(row.singles, [place] * len(row.singles), ".", color=COLOURS[0], alpha=0.4, zorder=2)
        axes.hlines(place, row.low, row.high, color=COLOURS[0], linewidth=1.6)
        axes.plot(row.middle, place, "D", color=COLOURS[1], markersize=5, zorder=3)
    axes.set_yticks(places, labels=names)
    axes.set(ylim=(sum(heights), 0), xlabel=x_label, xscale="log" if log_x else "linear")
    if log_x:
        _plain(axes.xaxis)
    axes.grid(axis="x", alpha=0.3)
    _save_all(figure, paths, remark)


@dataclass(frozen=True)
class Written(Panel):
    """A matrix with a text for every cell."""

    texts: Sequence[Sequence[str]]
    framed: tuple[int, int] | None = None
    """Row and column of a cell that stands out."""


def written_maps(
    panels: Sequence[Written],
    paths: Sequence[Path],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    x_label: str,
    y_label: str,
    label: str,
    remark: str = "",
) -> None:
    """Matrices beside each other with numbers written into their cells. Those with the same ends share one bar.

    Cells beyond the ends have the colour of the end. Those that are not a number are grey, and hold their text all the
    same.
    """
    wide, high = max(0.8 * len(columns), 2.4), max(0.55 * len(rows), 1.6)
    common = len({(panel.low, panel.high) for panel in panels}) == 1
    room = wide if common else wide + 1.0  # a bar of its own beside each
    across = max(1, min(len(panels), int(14 // room)))
    lines = -(-len(panels) // across)
    figure = _figure(across * (room + 0.3) + 1.9, lines * (high + 0.4) + 0.9)
    axes = figure.subplots(lines, across, squeeze=False)
    for place, one in enumerate(axes.flat):
        if place >= len(panels):
            one.set_axis_off()
            continue
        ends = {"vmin": panels[place].low, "vmax": panels[place].high}
        image = one.imshow(panels[place].values, "viridis", aspect="auto", **ends)
        one.set_facecolor("0.88")
        one.set_title(panels[place].title, fontsize=10)
        below, left = place + across >= len(panels), place % across == 0
        one.set_xticks(range(len(columns)), labels=columns if below else [])
        one.set_yticks(range(len(rows)), labels=rows if left else [])
        one.set(xlabel=x_label if below else "", ylabel=y_label if left else "")
        _write(one, image, panels[place])
        if not common:
            figure.colorbar(image, ax=one, label=label, extend=_pointed([panels[place]]))
    if common:
        figure.colorbar(image, ax=axes, label=label, extend=_pointed(panels))
    _save_all(figure, paths, remark)


def _pointed(panels: Sequence[Panel]) -> str:
    """At which ends of their bar there is more."""
    below = any((panel.values < panel.low).any() for panel in panels)
    above = any((panel.values > panel.high).any() for panel in panels)
    return {(True, False): "min", (False, True): "max", (True, True): "both"}.get((below, above), "neither")


def _write(axes: Any, image: Any, panel: Written) -> None:
    from matplotlib.patches import Rectangle

    for row, texts in enumerate(panel.texts):
        for column, text in enumerate(texts):
            red, green, blue, there = image.to_rgba(panel.values[row, column])
            dark = there and 0.299 * red + 0.587 * green + 0.114 * blue < 0.45
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    if panel.framed is not None:
        row, column = panel.framed
        corner = (column - 0.46, row - 0.46)
        axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=COLOURS[1], linewidth=3))


def _canvas() -> tuple[Any, Any]:
    figure = _figure(7, 4.2)
    return figure, figure.add_subplot()


def _figure(wide: float, high: float) -> Any:
    # The object interface, not pyplot: no global state, no window, no backend to choose.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, high), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save_all(figure: Any, paths: Sequence[Path], remark: str) -> None:
    """A remark stands below everything else. Names are shown as they are, dollars and all."""
    from matplotlib.text import Text

    if remark:
        figure.supxlabel(textwrap.fill(remark, int(14 * figure.get_figwidth())), fontsize=8)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    for path in paths:
        _save(figure, path)


def _save(figure: Any, path: Path, dots: int = DOTS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # A script that the font lacks is drawn as boxes; the reader sees that without being told.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(path, dpi=dots)
    return path
