"""Tables and figures of a study.

Tables are written as Markdown, CSV with all digits, and LaTeX. Figures are lines with bands, heat maps with numbers, or
dots with bars, depending on the axes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np

from anaphor.draw import Dot, Line, bands, dots
from anaphor.draw.cells import Annotated, annotated_heat_maps
from anaphor.errors import DataError
from anaphor.files import replace_file
from anaphor.metrics.statistics import Interval, choose_decimals, confidence_interval
from anaphor.studies.axes import format_setting, format_value
from anaphor.studies.groups import Axes, Group, Objective, find_best, is_numeric, varied_axes

Columns = Mapping[str, Sequence[Interval | int | None]]
Row = Sequence[str]

EXACT = ".10g"
MARKDOWN = str.maketrans({"\\": r"\\", "|": r"\|", "<": r"\<", "\n": "<br>"})
# Special characters of TeX, by commands that need no package.
TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", '"': r"\symbol{34}", "±": r"$\pm$", "\n": " ",
    }
)  # fmt: skip

SUFFIXES = ("png", "svg")
LOG_RATIO = 8  # largest over smallest value above which a scale is logarithmic
COLOR_RANGE = 4  # times the distance of the best from the median: worse values share a color
MIN_COLOR_SHARE = 0.2  # of a common color scale that a panel must use to share it
MAX_NAMES = 3  # settings named below a figure; more are counted


def write_tables(groups: Sequence[Group], axes: Axes, objective: Objective, columns: Columns, folder: Path) -> str:
    """Write `table.md`, `table.csv` and `table.tex` to a folder. Returns the Markdown."""
    header, rows = build_table(groups, axes, objective, format_columns(columns), choose_format(groups))
    right = [is_numeric(values) for values in axes.values()] + [True] * (3 + len(columns))
    texts = {
        "md": to_markdown(header, rows, right),
        "csv": to_csv(*build_table(groups, axes, objective, exact_columns(columns), EXACT)),
        "tex": to_latex(header, rows, right),
    }
    for suffix, text in texts.items():
        path = folder / f"table.{suffix}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise DataError(f"cannot write the table to {path}: {error.strerror or error}") from None
    return texts["md"]


def build_table(
    groups: Sequence[Group], axes: Axes, objective: Objective, columns: Mapping[str, Row], number_format: str
) -> tuple[list[str], list[list[str]]]:
    """Header, and a row for each group: axes, mean, half-width, seeds, further columns, and notes if any."""
    header = [*axes, objective.title, "±", "seeds", *columns]
    rows = []
    for index, group in enumerate(groups):
        of = confidence_interval(group.values) if group.values else None
        mean = "" if of is None else format(of.mean, number_format)
        half = "" if of is None or of.half_width is None else format(of.half_width, number_format)
        seeds = f"{len(group.seeds)} of {len(group.seeds) + group.failed}" if group.failed else str(len(group.seeds))
        more = [cells[index] for cells in columns.values()]
        rows.append([*(format_value(group.parameters[name]) for name in axes), mean, half, seeds, *more])
    if any(group.note for group in groups):
        header.append("note")
        for row, group in zip(rows, groups, strict=True):
            row.append(group.note)
    return header, rows


def format_columns(columns: Columns) -> dict[str, Row]:
    """For people: an interval in one cell, counts with separators."""
    return {
        name: ["" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
        for name, cells in columns.items()
    }


def exact_columns(columns: Columns) -> dict[str, Row]:
    """For programs: one number in each cell, so that a half-width has a column of its own."""
    exact: dict[str, Row] = {}
    for name, cells in columns.items():
        exact[name] = [
            "" if cell is None else str(cell) if isinstance(cell, int) else format(cell.mean, EXACT) for cell in cells
        ]
        if any(isinstance(cell, Interval) for cell in cells):
            halves = [cell.half_width if isinstance(cell, Interval) else None for cell in cells]
            exact[f"{name} ±"] = ["" if half is None else format(half, EXACT) for half in halves]
    return exact


def choose_format(groups: Sequence[Group]) -> str:
    """One number format for a column: that of the interval with the median number of digits."""
    found = [confidence_interval(group.values) for group in groups if group.values]
    chosen = [of for of in found if of.half_width is not None] or found
    return f".{median_low([choose_decimals(of.mean, of.half_width) for of in chosen])}f" if chosen else ".2f"


def to_markdown(header: Row, rows: Sequence[Row], right: Sequence[bool]) -> str:
    """Aligned columns. `right` says which ones hold numbers; those beyond it are text."""
    cells = [[cell.translate(MARKDOWN) for cell in row] for row in (header, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [*right, *(False for _ in widths[len(right) :])]
    rule = [f"{'-' * (width - 1)}:" if number else "-" * width for width, number in zip(widths, aligned, strict=True)]

    def pad_cells(row: Row) -> Row:
        each = zip(row, widths, aligned, strict=True)
        return [cell.rjust(width) if number else cell.ljust(width) for cell, width, number in each]

    return "".join(f"| {' | '.join(row)} |\n" for row in (pad_cells(cells[0]), rule, *map(pad_cells, cells[1:])))


def to_csv(header: Row, rows: Sequence[Row]) -> str:
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows([header, *rows])
    return output.getvalue()


def to_latex(header: Row, rows: Sequence[Row], right: Sequence[bool]) -> str:
    """A tabular that needs no package."""
    shape = "".join("r" if number else "l" for number in right) + "l" * (len(header) - len(right))
    lines = [" & ".join(cell.translate(TEX) for cell in row) + r" \\" for row in (header, *rows)]
    body = "\n".join([r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"])
    return f"\\begin{{tabular}}{{{shape}}}\n{body}\n\\end{{tabular}}\n"


def draw_study(
    groups: Sequence[Group], axes: Axes, objective: Objective, folder: Path, tested: Sequence[Group] = ()
) -> list[Path]:
    """Draw `study.png` and `.svg`, or a pair for each axis of a search; nothing where no two groups compare.

    `tested` are the same settings with their test scores, drawn beside the others (except for a search).
    """
    varied = varied_axes(groups, axes)
    numeric = {name: values for name, values in varied.items() if is_numeric(values)}
    named = {name: values for name, values in varied.items() if name not in numeric}
    if sum(group.is_ranked for group in groups) < 2:
        return []
    try:
        if not numeric:
            return _draw_dots(groups, tested, named, objective, folder)
        if len(numeric) > 1 and len(groups) < math.prod(map(len, varied.values())) / 2:
            return [path for name in numeric for path in _draw_search(groups, name, named, objective, folder)]
        # From a third numeric axis on, those with the fewest values are treated like names.
        for name in sorted(numeric, key=lambda name: len(numeric[name]))[: len(numeric) - 2]:
            named[name] = numeric.pop(name)
        return (_draw_lines if len(numeric) == 1 else _draw_maps)(groups, tested, numeric, named, objective, folder)
    except OSError as error:
        raise DataError(f"cannot write the figures to {folder}: {error.strerror or error}") from None


def _draw_lines(
    groups: Sequence[Group], tested: Sequence[Group], numeric: Axes, named: Axes, objective: Objective, folder: Path
) -> list[Path]:
    """A line for each value of the axis with most names, a panel for each value of the others and for each split."""
    ((axis, values),) = numeric.items()
    largest = max(named, key=lambda name: len(named[name]), default="")
    splits, label = _split_groups(groups, tested, objective)
    panels: dict[str, list[Line]] = {}
    for fixed, split in product(_combinations({name: named[name] for name in named if name != largest}), splits):
        for name in named.get(largest, [None]):
            chosen = _select(splits[split], fixed | ({largest: name} if largest else {}))
            of = {group.parameters[axis]: group for group in chosen}
            if of:
                line = _line(format_value(name), values, [of.get(value) for value in values], objective)
                panels.setdefault(_title(fixed, split), []).append(line)
    paths, shown = _paths(folder, "study"), [*groups, *tested]
    bands(
        panels, paths, x_label=axis, y_label=f"{label}\n({_describe_bands(groups)})", remark=_remark(shown, objective),
        log_x=_is_wide(values), log_y=_have_wide_means(shown),
    )  # fmt: skip
    return paths


def _line(name: str, x: Sequence[float], groups: Sequence[Group | None], objective: Objective) -> Line:
    """A missing result leaves a gap."""
    bounds = [(math.nan,) * 3 if group is None else _bounds(group, objective) for group in groups]
    several = [(at, group) for at, group in zip(x, groups, strict=True) if group and len(group.values) > 1]
    points = [(at, value) for at, group in several for value in group.values]
    mean, low, high = zip(*bounds, strict=True)
    return Line(name, x, mean, low, high, points)


def _draw_search(groups: Sequence[Group], axis: str, named: Axes, objective: Objective, folder: Path) -> list[Path]:
    """Single points: settings of a search have no neighbors to connect them with."""
    lines = []
    for fixed in _combinations(named):
        chosen = sorted(_select(groups, fixed), key=lambda group: group.parameters[axis])
        if chosen:
            x = [group.parameters[axis] for group in chosen]
            mean, low, high = zip(*(_bounds(group, objective) for group in chosen), strict=True)
            lines.append(Line(format_setting(fixed), x, mean, low, high, joined=False))
    tried = sorted(at for line in lines for at in line.x)
    paths = _paths(folder, f"study-{axis}")
    bands(
        {"": lines}, paths, x_label=axis, y_label=f"{objective.title}\n({_describe_bands(groups)})",
        remark=_remark(groups, objective), log_x=_is_wide(tried) and tried[len(tried) // 2] < tried[-1] / 3,
        log_y=_have_wide_means(groups),
    )  # fmt: skip
    return paths


def _draw_maps(
    groups: Sequence[Group], tested: Sequence[Group], numeric: Axes, named: Axes, objective: Objective, folder: Path
) -> list[Path]:
    """The first numeric axis to the right, the second upwards, and a panel for each name and split.

    The setting that is best on validation has a frame, for test scores as well. A name has its own color scale where
    the common one would not distinguish its cells.
    """
    (right, columns), (up, rows) = numeric.items()
    rows = rows[::-1]
    number_format, best = choose_format(groups), find_best(groups, objective)
    splits, label = _split_groups(groups, tested, objective)
    present = [fixed for fixed in _combinations(named) if _select([*groups, *tested], fixed)]
    ranges = _color_ranges([_select([*groups, *tested], fixed) for fixed in present], objective)
    remark = f"each value of {' and '.join(named)} has its own color scale" if len(set(ranges)) > 1 else ""
    panels = []
    for (fixed, (low, high)), split in product(zip(present, ranges, strict=True), splits):
        values, framed = np.full((len(rows), len(columns)), math.nan), None
        texts = [["–"] * len(columns) for _ in rows]
        for group in _select(splits[split], fixed):
            row, column = rows.index(group.parameters[up]), columns.index(group.parameters[right])
            half = confidence_interval(group.values).half_width
            values[row, column] = group.mean
            texts[row][column] = format(group.mean, number_format) + (
                "" if half is None else f"\n± {half:{number_format}}"
            )
            framed = (row, column) if best and group.parameters == best.parameters else framed
        if not np.isnan(values).all():
            panels.append(Annotated(_title(fixed, split), values, low, high, texts, framed))
    paths = _paths(folder, "study")
    annotated_heat_maps(
        panels, paths, rows=[*map(format_value, rows)], columns=[*map(format_value, columns)], x_label=right,
        y_label=up, label=label, remark="; ".join(filter(None, [_describe_bands(groups), remark, _not_drawn(groups)])),
    )  # fmt: skip
    return paths


def _draw_dots(
    groups: Sequence[Group], tested: Sequence[Group], named: Axes, objective: Objective, folder: Path
) -> list[Path]:
    """The best on top, each with its test score below it, if there is one."""
    ranked = sorted((group for group in groups if group.is_ranked), key=lambda group: objective.cost(group.mean))
    splits, label = _split_groups(groups, tested, objective)
    rows = []
    for best, split in product(ranked, splits):
        of = {name: best.parameters[name] for name in named}
        name = ", ".join(filter(None, [format_value(*of.values()) if len(of) == 1 else format_setting(of), split]))
        for group in _select(splits[split], best.parameters):
            rows.append(Dot(name, *_bounds(group, objective), group.values if len(group.values) > 1 else ()))
    paths, shown = _paths(folder, "study"), [*groups, *tested]
    dots(
        rows, paths, x_label=f"{label}\n({_describe_bands(groups)})", remark=_remark(shown, objective),
        log_x=_have_wide_means(shown),
    )  # fmt: skip
    return paths


def _split_groups(
    groups: Sequence[Group], tested: Sequence[Group], objective: Objective
) -> tuple[dict[str, Sequence[Group]], str]:
    """Groups by name of the split, and the label of their values; a single split needs no name of its own."""
    if not tested:
        return {"": groups}, objective.title
    return {objective.split: groups, "test": tested}, objective.metric.label


def _title(fixed: Mapping[str, Any], split: str) -> str:
    return ", ".join(filter(None, [format_setting(fixed) if fixed else "", split]))


def _combinations(axes: Axes) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _select(groups: Sequence[Group], fixed: Mapping[str, Any]) -> list[Group]:
    return [g for g in groups if g.is_ranked and all(g.parameters[name] == value for name, value in fixed.items())]


def _bounds(group: Group, objective: Objective) -> tuple[float, float, float]:
    """Mean and interval, NaN where there is none, cut off at the smallest and the largest possible value."""
    of, metric = confidence_interval(group.values), objective.metric
    low = math.nan if of.low is None else max(of.low, metric.minimum)
    return of.mean, low, math.nan if of.high is None else min(of.high, metric.maximum)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > LOG_RATIO * min(values)


def _have_wide_means(groups: Sequence[Group]) -> bool:
    """On a linear scale one very bad setting would hide the differences between the others."""
    return _is_wide([group.mean for group in groups if group.is_ranked])


def _color_ranges(panels: Sequence[Sequence[Group]], objective: Objective) -> list[tuple[float, float]]:
    """Range of each panel's colors: a common one, unless a panel would use too little of it."""
    low, high = _color_range([group for panel in panels for group in panel], objective)
    own = [_color_range(panel, objective) for panel in panels]
    shares = [min(end, high) - max(start, low) for start, end in own if start < end]
    return own if min(shares, default=math.inf) < (high - low) * MIN_COLOR_SHARE else [(low, high)] * len(panels)


def _color_range(groups: Sequence[Group], objective: Objective) -> tuple[float, float]:
    """One very bad setting does not stretch the range."""
    costs = sorted(objective.cost(group.mean) for group in groups if group.is_ranked)
    middle = next((cost for cost in costs[len(costs) // 2 :] if cost > costs[0]), costs[0])
    ends = (objective.cost(costs[0]), objective.cost(min(costs[-1], middle + COLOR_RANGE * (middle - costs[0]))))
    return min(ends), max(ends)


def _describe_bands(groups: Sequence[Group]) -> str:
    has_several = any(len(group.values) > 1 for group in groups if group.is_ranked)
    return "mean and 95 % interval over seeds" if has_several else "one seed"


def _remark(groups: Sequence[Group], objective: Objective) -> str:
    """What is drawn differently from what was measured."""
    minimum, maximum = objective.metric.minimum, objective.metric.maximum
    found = [confidence_interval(group.values) for group in groups if group.is_ranked]
    ends = [f"{minimum:g}, the minimum"] if any(of.low is not None and of.low < minimum for of in found) else []
    ends += [f"{maximum:g}, the maximum"] if any(of.high is not None and of.high > maximum for of in found) else []
    cut = f"intervals are cut off at {' and at '.join(ends)}" if ends else ""
    return "; ".join(filter(None, [_not_drawn(groups), cut]))


def _not_drawn(groups: Sequence[Group]) -> str:
    left = [*dict.fromkeys(f"{group} ({group.note or 'no result'})" for group in groups if not group.is_ranked)]
    names = "; ".join(left) if len(left) <= MAX_NAMES else f"{len(left)} settings that cannot be ranked"
    return f"not drawn: {names}" if left else ""


def _paths(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.{suffix}" for suffix in SUFFIXES]
