"""Curves, heat maps and dot plots of plain arrays. Colors are distinct for color-blind readers and in gray."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anaphor.files import open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Palette of Okabe and Ito, darkest first, and five colors for figures of many lines; each line has its own style and
# marker as well.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
          "#882255", "#999933", "#7F7F7F", "#332288", "#8B5A2B")  # fmt: skip
MAX_TICKS = 12  # points that fit next to each other
MAX_INSIDE = 4  # names in a legend that leave room for the lines
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DPI = 160
SUFFIXES = (".png", ".svg", ".pdf")
PDF_SETTINGS: Any = {"pdf.fonttype": 42}  # fonts as outlines that publishers take, not as procedures
PDF_METADATA = {"CreationDate": None}  # the same figure is the same file
MIN_RANGE = 0.1  # of values without intervals, relative to their size: smaller differences may be noise
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))


def line_style(number: int) -> dict[str, Any]:
    """Color, line style and marker of a line. The thirteenth has the first one's color again, with another style."""
    place = number + number // len(COLORS)
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": STYLES[place % len(STYLES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


def figure_paths(stem: Path) -> list[Path]:
    """The files of a figure: PNG to look at, SVG for a page, PDF for a paper."""
    return [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]


def figure_lines(paths: Iterable[Path | str]) -> list[str]:
    """A line of text for each figure: its first file and the suffixes of the others, as in `curves.png, .svg, .pdf`."""
    figures: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        figures.setdefault(path.with_suffix(""), []).append(path)
    return [", ".join([str(first), *(path.suffix for path in others)]) for first, *others in figures.values()]


def curves(
    series: Mapping[str, tuple[Sequence[float] | NDArray[Any], Sequence[float] | NDArray[Any]]],
    path: Path,
    *further: Path,
    x_label: str,
    y_label: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    integer_x: bool = False,
) -> Path:
    """One line per named (x, y); `integer_x` puts ticks at integers only. The suffix chooses PNG, SVG or PDF; `further`
    files have the same figure. Returns the first path."""
    figure, axes = _canvas()
    for index, (name, (x, y)) in enumerate(series.items()):
        # Few points are marked; a single one would not be visible otherwise.
        style = line_style(index) | ({} if len(x) <= MAX_TICKS else {"marker": None})
        axes.plot(x, y, label=name, markersize=4, **style)
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    values = sorted({value for x, _ in series.values() for value in x})
    if log_x:
        set_ticks(axes.xaxis, values, most=0 if integer_x else MAX_TICKS)
    elif integer_x or all(float(value).is_integer() for value in values):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if log_y:
        set_log_ticks(axes.yaxis)
    if not (log_x or log_y):
        axes.ticklabel_format(useOffset=False)  # full numbers instead of an offset
        if len(values) == 1 and values[0] > 0:  # widen the y range, or rounding differences would fill the figure
            low, high = axes.get_ylim()
            margin = max(high / 10 - (high - low), 0) / 2
            axes.set(xlim=(0, 2 * values[0]), ylim=(low - margin, high + margin))
    axes.grid(alpha=0.3)
    if len(series) > MAX_INSIDE:
        figure.set_figwidth(figure.get_figwidth() * 1.4)
        figure.legend(loc="outside right upper", frameon=False)
    elif len(series) > 1:
        axes.legend(frameon=False)
    _save(figure, (path, *further))
    return path


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
    """A matrix as a heat map with a color bar, in the colors of attention maps unless values are negative. NaN cells
    stay white."""
    figure, axes = _canvas()
    is_signed = any(value < 0 for row in values for value in row)
    image = axes.imshow(values, cmap="viridis" if is_signed else "Blues", aspect="auto")
    axes.set_xticks(range(len(columns)), labels=list(columns), rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), labels=list(rows))
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    figure.colorbar(image, label=label)
    _save(figure, [path])
    return path


@dataclass(frozen=True)
class Panel:
    """A matrix, and the values at the two ends of its color scale."""

    title: str
    values: NDArray[Any]
    low: float
    high: float
    scale: Literal["linear", "sqrt"] = field(default="linear", kw_only=True)
    """How values become colors; by their square root small ones are visible."""


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
) -> None:
    """Heat maps side by side, `across` per row; tick labels, if given, at the outer panels only. None leaves a gap.

    Panels with equal limits share one color bar; signed ones have a diverging color map. NaN cells are gray."""
    lines = -(-len(panels) // across)
    drawn = [panel for panel in panels if panel is not None]
    wide = _inches(max(panel.values.shape[1] for panel in drawn), across)
    high = _inches(max(panel.values.shape[0] for panel in drawn), across)
    dpi = DPI if len(drawn) <= 12 else DPI * 2 // 3  # a figure of many panels is large
    figure = new_figure(across * (wide + 0.25) + 1.8, lines * (high + 0.35) + 1.3)
    axes = figure.subplots(lines, across, squeeze=False)
    common = len({(panel.low, panel.high) for panel in drawn}) == 1
    image = None
    for place, one in enumerate(axes.flat):
        panel = panels[place] if place < len(panels) else None
        if panel is None:
            one.set_axis_off()
            continue
        image = _fill(one, panel, int(dpi * wide), int(dpi * high))
        below = panels[place + across] if place + across < len(panels) else None
        _label_axis(one.yaxis, rows if place % across == 0 else (), high)
        _label_axis(one.xaxis, columns if below is None else (), wide)
        if not common:
            figure.colorbar(image, ax=one).ax.tick_params(labelsize=7)
    if common and image is not None:
        if label and drawn[0].scale == "sqrt":
            label = f"{label}, colors by its square root"
        figure.colorbar(image, ax=axes, label=label, shrink=0.8 if lines == 1 else 0.5)
    figure.supxlabel(x_label, fontsize=10)
    figure.supylabel(y_label, fontsize=10)
    _save(figure, paths, dpi)


def _fill(axes: Any, panel: Panel, columns_max: int, rows_max: int) -> Any:
    from matplotlib.colors import Normalize, PowerNorm

    rows, columns = panel.values.shape
    norm = PowerNorm(0.5, panel.low, panel.high) if panel.scale == "sqrt" else Normalize(panel.low, panel.high)
    values, colormap = panel.values, "RdBu_r"
    if panel.low >= 0:
        values, colormap = _downsample(values, columns_max, rows_max), "Blues"
    axes.set_facecolor("0.93")
    axes.set_title(panel.title, fontsize=9)
    return axes.imshow(values, colormap, norm=norm, aspect="auto", extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))


def _downsample(values: NDArray[Any], columns: int, rows: int) -> NDArray[Any]:
    """Max-pool to at most one cell per pixel, so that a single large value is not lost."""
    import numpy as np

    for axis, limit in ((0, rows), (1, columns)):
        count = values.shape[axis]
        if count > limit:
            # fmax ignores NaN
            values = np.fmax.reduceat(values, np.arange(limit) * count // limit, axis=axis)
    return values


def _inches(cells: int, across: int) -> float:
    """Size of a panel: a single one has room for a label at each cell, several are smaller."""
    if across == 1:
        return min(max(0.17 * cells, 2.4), 9)
    least = 0.12 * cells
    return max(least, 1.6) if least <= (3.4 if across <= 4 else 2.2) else 2.2


def _label_axis(axis: Any, names: Sequence[str], inches: float) -> None:
    """Every label if there is room, else numbers at regular distances."""
    axis.set_tick_params(labelsize=7, length=2)
    if len(names) <= inches / 0.115:
        axis.set_ticks(range(len(names)), labels=[name if len(name) <= 16 else f"{name[:15]}…" for name in names])
    else:
        step = 10 ** math.ceil(math.log10(len(names) / inches / 3))
        step = next(finer for finer in (step // 5, step // 2, step) if finer and len(names) / finer <= 3 * inches)
        axis.set_ticks(range(0, len(names), step))
    for text in axis.get_ticklabels():
        text.set_parse_math(False)  # a token may contain a dollar sign
        if axis.axis_name == "x":
            text.set_rotation(90)


@dataclass(frozen=True)
class Line:
    """Means along x with interval bounds (NaN where there is none) and the single values."""

    name: str
    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float] = ()
    """Lower interval bounds; none means no intervals."""
    high: Sequence[float] = ()
    singles: Sequence[tuple[float, float]] = ()
    """Points (x, y) of single values."""
    joined: bool = True
    """Whether points are connected by a line."""


@dataclass(frozen=True)
class Scale:
    """The scale of an axis: what it shows, and whether it is logarithmic."""

    label: str
    is_log: bool = False


def bands(
    panels: Mapping[str, Sequence[Line]],
    paths: Sequence[Path],
    *,
    x_label: str,
    y_label: str,
    remark: str = "",
    log_x: bool = False,
    log_y: bool = False,
    own_scales: Mapping[str, Scale] | None = None,
) -> None:
    """Lines with interval bands, in panels side by side. A name has the same color in all. Panels have a common scale
    unless they show another quantity: `own_scales` has the scales of these, by title, and those with equal ones have it
    in common."""
    common = Scale(y_label, log_y)
    scales = [(own_scales or {}).get(title, common) for title in panels]
    figure = new_figure(max(7, 1 + 4 * len(panels)), 4.4)
    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    handles: dict[str, Any] = {}
    first: dict[Scale, Any] = {}  # axes of each scale that are furthest to the left
    for place, (scale, (title, lines)) in enumerate(zip(scales, panels.items(), strict=True)):
        one = figure.add_subplot(1, len(panels), place + 1, sharey=first.get(scale))
        for line in lines:
            handles[line.name] = _band(one, line, names.index(line.name))
        one.set_title(title, fontsize=10)
        one.set(xlabel=x_label, xscale="log" if log_x else "linear", yscale="log" if scale.is_log else "linear")
        one.grid(alpha=0.3)
        set_ticks(one.xaxis, sorted({value for line in lines for value in line.x}))
        if scale.is_log:
            set_log_ticks(one.yaxis)
        if scale in first:
            one.tick_params(labelleft=False)
        else:
            one.set_ylabel(scale.label)
            first[scale] = one
    for scale, one in first.items():
        drawn = [line for of, lines in zip(scales, panels.values(), strict=True) for line in lines if of == scale]
        if all(math.isnan(value) for line in drawn for value in line.low):
            _widen(one.yaxis, [value for line in drawn for value in line.middle])
    if len(names) > 1:
        across = max(1, min(len(names), int(12 * figure.get_figwidth()) // (max(map(len, names)) + 8)))
        style = {"frameon": False, "fontsize": 9, "handlelength": 3}
        figure.legend([handles[name] for name in names], names, loc="outside upper center", ncols=across, **style)
    save_all(figure, paths, remark)


def _band(axes: Any, line: Line, number: int) -> Any:
    style = line_style(number) if line.joined else line_style(number) | {"linestyle": "none"}
    (handle,) = axes.plot(line.x, line.middle, markersize=5, **style)
    if len(line.low) and line.joined:
        axes.fill_between(line.x, line.low, line.high, color=style["color"], alpha=0.15, linewidth=0)
    if len(line.low):  # a band around a single point is invisible
        axes.vlines(line.x, line.low, line.high, color=style["color"], linewidth=0.8)
    if line.singles:
        axes.plot(*zip(*line.singles, strict=True), linestyle="none", marker=".", color=style["color"], alpha=0.35)
    return handle


def _widen(axis: Any, values: Sequence[float]) -> None:
    """Show at least MIN_RANGE around values whose noise is unknown, instead of enlarging differences between them."""
    finite = [value for value in values if math.isfinite(value)]
    middle = (min(finite) + max(finite)) / 2 if finite else 0.0
    half = MIN_RANGE / 2 * abs(middle)
    if finite and max(finite) - min(finite) < 2 * half:
        (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(middle - half, middle + half)


def set_ticks(axis: Any, values: Sequence[float], most: int = MAX_TICKS) -> None:
    """Ticks exactly at the values, if there are few."""
    if len(values) <= most:
        axis.set_ticks(values, labels=[f"{value:g}" for value in values])
        axis.set_ticks([], minor=True)
    elif axis.get_scale() == "log":
        set_log_ticks(axis)


def set_log_ticks(axis: Any) -> None:
    """Plain numbers instead of powers of ten on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1, 2, 3, 4, 6, 8) if high < 10 * low else (1, 2, 5) if high < 100 * low else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class Dot:
    """A mean with interval bounds (NaN where there is none) and the single values."""

    name: str
    middle: float
    low: float
    high: float
    singles: Sequence[float] = ()


def dots(rows: Sequence[Dot], paths: Sequence[Path], *, x_label: str, remark: str = "", log_x: bool = False) -> None:
    """Means with interval bars, one per row, so that long names are readable."""
    dot_panels({Scale(x_label, log_x): rows}, paths, remark)


def dot_panels(panels: Mapping[Scale, Sequence[Dot]], paths: Sequence[Path], remark: str = "") -> None:
    """Means with interval bars, one per row, in a panel for each scale. All panels have the same rows."""
    names = [textwrap.fill(row.name, 44) for row in next(iter(panels.values()))]
    heights = [1 + 0.55 * name.count("\n") for name in names]
    figure = new_figure(7.5 if len(panels) == 1 else 2.5 + 3.2 * len(panels), 1.3 + 0.34 * sum(heights))
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    positions = [sum(heights[:index]) + heights[index] / 2 for index in range(len(names))]
    for axes, (scale, rows) in zip(all_axes, panels.items(), strict=True):
        for y, row in zip(positions, rows, strict=True):
            axes.plot(row.singles, [y] * len(row.singles), ".", color=COLORS[0], alpha=0.4, zorder=2)
            axes.hlines(y, row.low, row.high, color=COLORS[0], linewidth=1.6)
            axes.plot(row.middle, y, "D", color=COLORS[1], markersize=5, zorder=3)
        axes.set(xlabel=scale.label, xscale="log" if scale.is_log else "linear")
        if all(math.isnan(row.low) for row in rows):
            _widen(axes.xaxis, [row.middle for row in rows])
        if scale.is_log:
            set_log_ticks(axes.xaxis)
        axes.grid(axis="x", alpha=0.3)
    all_axes[0].set_yticks(positions, labels=names)
    all_axes[0].set(ylim=(sum(heights), 0))
    save_all(figure, paths, remark)


def learning_curves(
    rows: Mapping[str, Mapping[str, Mapping[str, Sequence[Mapping[float, float]]]]], paths: Sequence[Path], x_label: str
) -> None:
    """Curves of several runs: a row of panels with a common scale for each quantity, in it a panel for each setting, in
    it the named series. Each run of a series is a thin line {x: y}, their mean a thick one."""
    titles = list(dict.fromkeys(title for panels in rows.values() for title in panels))
    across = len(titles)
    figure = new_figure(max(7, 1 + 3 * across), 0.6 + 2.8 * len(rows))
    grid = figure.subplots(len(rows), across, squeeze=False, sharex=True, sharey="row")
    handles: dict[str, Any] = {}
    for place, (y_label, panels) in enumerate(rows.items()):
        grid[place, 0].set_ylabel(y_label)
        for axes, title in zip(grid[place], titles, strict=True):
            for number, (name, runs) in enumerate(panels.get(title, {}).items()):
                style = line_style(number)
                for run in runs if len(runs) > 1 else ():
                    axes.plot(*zip(*run.items(), strict=True), linewidth=0.8, alpha=0.35, **style | {"marker": None})
                common = sorted(set.intersection(*map(set, runs)))
                mean = [sum(run[x] for run in runs) / len(runs) for x in common]
                (handles[name],) = axes.plot(common, mean, markersize=3.5, **style)
            axes.set_title("" if place else textwrap.fill(title, 40), fontsize=10)
            axes.set_xlabel(x_label if place == len(rows) - 1 else "")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.3)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    save_all(figure, paths, "")


def _canvas() -> tuple[Any, Any]:
    figure = new_figure(7, 4.2)
    return figure, figure.add_subplot()


def new_figure(wide: float, high: float) -> Any:
    # The object interface instead of pyplot: no global state, window or backend.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, high), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_all(figure: Any, paths: Sequence[Path], remark: str) -> None:
    """Save with the remark at the bottom. Names are not parsed as math, so that they may contain dollar signs."""
    from matplotlib.text import Text

    if remark:
        figure.supxlabel(textwrap.fill(remark, int(14 * figure.get_figwidth())), fontsize=8)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    _save(figure, paths)


def _save(figure: Any, paths: Sequence[Path], dpi: int = DPI) -> None:
    from matplotlib import rc_context

    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = path.suffix[1:]
        with warnings.catch_warnings(), rc_context(PDF_SETTINGS):
            # Characters missing from the font are drawn as boxes, which the reader sees.
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            drawn = io.BytesIO()  # a signal while it is drawn leaves no half of a file
            figure.savefig(drawn, dpi=dpi, format=kind, metadata=PDF_METADATA if kind == "pdf" else None)
        with open(open_file(path), "wb") as file:
            file.write(drawn.getbuffer())
        figure.set_layout_engine("none")  # all files have the layout of the first
