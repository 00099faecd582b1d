"""Figures of a study: lines with bands, heat maps with numbers, or dots with bars, depending on the axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from anaphor.draw import Dot, Line, Scale, bands, dot_panels, figure_paths
from anaphor.draw.cells import Annotated, annotated_heat_maps
from anaphor.errors import DataError
from anaphor.metrics.labels import label_setting
from anaphor.metrics.statistics import confidence_interval
from anaphor.studies.axes import format_setting, format_value
from anaphor.studies.groups import Axes, Group, Objective, find_best, is_numeric, varied_axes

LOG_RATIO = 8  # largest over smallest value above which a scale is logarithmic
COLOR_RANGE = 4  # times the distance of the best from the median: worse values share a color
MIN_COLOR_SHARE = 0.2  # of a common color scale that a panel must use to share it
MAX_NAMES = 3  # settings named below a figure; more are counted


@dataclass(frozen=True)
class View:
    """What a figure shows: the settings by one metric, and, beside them, by their test scores if there are any."""

    objective: Objective
    groups: Sequence[Group]
    tested: Sequence[Group] = ()

    @property
    def all_groups(self) -> list[Group]:
        return [*self.groups, *self.tested]

    @property
    def splits(self) -> dict[str, Sequence[Group]]:
        """Groups by name of the split; a single one needs no name."""
        return {self.objective.split: self.groups, "test": self.tested} if self.tested else {"": self.groups}

    @property
    def label(self) -> str:
        return self.objective.metric.axis if self.tested else self.objective.axis

    @property
    def scale(self) -> Scale:
        # A metric that ends on both sides, such as accuracy, has the same scale for everybody.
        is_open = math.isinf(self.objective.metric.maximum)
        is_log = is_open and _have_wide_means(self.all_groups)
        return Scale(f"{self.label}\n({_describe_bands(self.groups)})", is_log)


def draw_study(
    groups: Sequence[Group],
    axes: Axes,
    objective: Objective,
    folder: Path,
    tested: Sequence[Group] = (),
    others: Sequence[View] = (),
) -> list[Path]:
    """Draw `study.png`, `.svg` and `.pdf`, or three files for each axis of a search; nothing where no two groups
    compare.

    `tested` are the same settings with their test scores, drawn beside the others (except for a search). `others` have
    them by further metrics, which get a panel each.
    """
    varied = varied_axes(groups, axes)
    numeric = {name: values for name, values in varied.items() if is_numeric(values)}
    named = {name: values for name, values in varied.items() if name not in numeric}
    if sum(group.is_ranked for group in groups) < 2:
        return []
    views = [View(objective, groups, tested), *(one for one in others if any(of.is_ranked for of in one.groups))]
    try:
        if not numeric:
            return _draw_dots(views, named, folder)
        if len(numeric) > 1 and len(groups) < math.prod(map(len, varied.values())) / 2:
            return [path for name in numeric for path in _draw_search(views, name, named, folder)]
        # From a third numeric axis on, those with the fewest values are treated like names.
        for name in sorted(numeric, key=lambda name: len(numeric[name]))[: len(numeric) - 2]:
            named[name] = numeric.pop(name)
        return (_draw_lines if len(numeric) == 1 else _draw_maps)(views, numeric, named, folder)
    except OSError as error:
        raise DataError(f"cannot write the figures to {folder}: {error.strerror or error}") from None


def _draw_lines(views: Sequence[View], numeric: Axes, named: Axes, folder: Path) -> list[Path]:
    """A line for each value of the axis with most names, a panel for each value of the others, for each split and each
    metric."""
    ((axis, values),) = numeric.items()
    largest = max(named, key=lambda name: len(named[name]), default="")
    panels: dict[str, list[Line]] = {}
    scales: dict[str, Scale] = {}
    fixed_axes = _combinations({name: named[name] for name in named if name != largest})
    for view, fixed in product(views, fixed_axes):
        for (split, groups), name in product(view.splits.items(), named.get(largest, [None])):
            chosen = _select(groups, fixed | ({largest: name} if largest else {}))
            of = {group.parameters[axis]: group for group in chosen}
            if of:
                line = _line(format_value(name), values, [of.get(value) for value in values], view.objective)
                title = _title(view if len(views) > 1 else None, fixed, split)
                panels.setdefault(title, []).append(line)
                scales[title] = view.scale
    paths, first = figure_paths(folder / "study"), views[0].scale
    bands(
        panels, paths, x_label=label_setting(axis).axis, y_label=first.label, remark=_remark(views),
        log_x=_is_wide(values), log_y=first.is_log, own_scales=scales,
    )  # fmt: skip
    return paths


def _line(name: str, x: Sequence[float], groups: Sequence[Group | None], objective: Objective) -> Line:
    """A missing result leaves a gap."""
    bounds = [(math.nan,) * 3 if group is None else _bounds(group, objective) for group in groups]
    several = [(at, group) for at, group in zip(x, groups, strict=True) if group and len(group.values) > 1]
    points = [(at, value) for at, group in several for value in group.values]
    mean, low, high = zip(*bounds, strict=True)
    return Line(name, x, mean, low, high, points)


def _draw_search(views: Sequence[View], axis: str, named: Axes, folder: Path) -> list[Path]:
    """Single points: settings of a search have no neighbors to connect them with."""
    panels: dict[str, list[Line]] = {}
    scales: dict[str, Scale] = {}
    for number, (view, fixed) in enumerate(product(views, _combinations(named))):
        title = view.objective.metric.label if number and len(views) > 1 else ""
        chosen = sorted(_select(view.groups, fixed), key=lambda group: group.parameters[axis])
        if chosen:
            x = [group.parameters[axis] for group in chosen]
            mean, low, high = zip(*(_bounds(group, view.objective) for group in chosen), strict=True)
            panels.setdefault(title, []).append(Line(format_setting(fixed), x, mean, low, high, joined=False))
            scales[title] = replace(view, tested=()).scale
    tried = sorted(at for line in next(iter(panels.values())) for at in line.x)
    paths, first = figure_paths(folder / f"study-{axis}"), next(iter(scales.values()))
    bands(
        panels, paths, x_label=label_setting(axis).axis, y_label=first.label,
        remark=_remark([replace(view, tested=()) for view in views]),
        log_x=_is_wide(tried) and tried[len(tried) // 2] < tried[-1] / 3, log_y=first.is_log, own_scales=scales,
    )  # fmt: skip
    return paths


def _draw_maps(views: Sequence[View], numeric: Axes, named: Axes, folder: Path) -> list[Path]:
    """The first numeric axis to the right, the second upwards, and a panel for each name, split and metric.

    The setting that is best on validation has a frame, by every metric and for test scores as well. A name has its own
    color scale where the common one would not distinguish its cells.
    """
    (right, columns), (up, rows) = numeric.items()
    rows = rows[::-1]
    best = find_best(views[0].groups, views[0].objective)
    panels: list[Annotated] = []
    remark = ""
    for view in views:
        present = [fixed for fixed in _combinations(named) if _select(view.all_groups, fixed)]
        ranges = _color_ranges([_select(view.all_groups, fixed) for fixed in present], view.objective)
        remark = f"each value of {' and '.join(named)} has its own color scale" if len(set(ranges)) > 1 else remark
        label = view.label if len(views) > 1 else ""
        for (fixed, (low, high)), (split, groups) in product(zip(present, ranges, strict=True), view.splits.items()):
            values, framed = np.full((len(rows), len(columns)), math.nan), None
            texts = [["–"] * len(columns) for _ in rows]
            for group in _select(groups, fixed):
                row, column = rows.index(group.parameters[up]), columns.index(group.parameters[right])
                values[row, column] = group.mean
                texts[row][column] = str(confidence_interval(group.values)).replace(" ±", "\n±")
                framed = (row, column) if best and group.parameters == best.parameters else framed
            if not np.isnan(values).all():
                title = _title(view if len(views) > 1 else None, fixed, split)
                panels.append(Annotated(title, values, low, high, texts, framed, label))
    paths, remarks = figure_paths(folder / "study"), [_describe_bands(views[0].groups), remark, _not_drawn(views)]
    annotated_heat_maps(
        panels, paths, rows=[*map(format_value, rows)], columns=[*map(format_value, columns)],
        x_label=label_setting(right).axis, y_label=label_setting(up).axis, label=views[0].label,
        remark="; ".join(filter(None, remarks)),
    )  # fmt: skip
    return paths


def _draw_dots(views: Sequence[View], named: Axes, folder: Path) -> list[Path]:
    """The best on top, each with its test score below it, if there is one; a panel for each metric."""
    first = views[0]
    ranked = sorted(
        (group for group in first.groups if group.is_ranked), key=lambda group: first.objective.cost(group.mean)
    )
    panels: dict[Scale, list[Dot]] = {view.scale: [] for view in views}
    for best, split in product(ranked, first.splits):
        of = {name: best.parameters[name] for name in named}
        name = ", ".join(filter(None, [format_value(*of.values()) if len(of) == 1 else format_setting(of), split]))
        if not _select(first.splits[split], best.parameters):
            continue
        for view in views:
            found = _select(view.splits.get(split, ()), best.parameters)
            bounds = _bounds(found[0], view.objective) if found else (math.nan,) * 3
            singles = found[0].values if found and len(found[0].values) > 1 else ()
            panels[view.scale].append(Dot(name, *bounds, singles))
    paths = figure_paths(folder / "study")
    dot_panels(panels, paths, _remark(views))
    return paths


def _title(view: View | None, fixed: Mapping[str, Any], split: str) -> str:
    """Title of a panel; a view is named where there are several."""
    metric = "" if view is None else view.objective.metric.label
    return ", ".join(filter(None, [metric, format_setting(fixed) if fixed else "", split]))


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


def _remark(views: Sequence[View]) -> str:
    """What is drawn differently from what was measured."""
    ends: dict[str, None] = {}
    for view in views:
        minimum, maximum = view.objective.metric.minimum, view.objective.metric.maximum
        found = [confidence_interval(group.values) for group in view.all_groups if group.is_ranked]
        if any(of.low is not None and of.low < minimum for of in found):
            ends[f"{minimum:g}, the minimum"] = None
        if any(of.high is not None and of.high > maximum for of in found):
            ends[f"{maximum:g}, the maximum"] = None
    cut = f"intervals are cut off at {' and at '.join(ends)}" if ends else ""
    return "; ".join(filter(None, [_not_drawn(views), cut]))


def _not_drawn(views: Sequence[View]) -> str:
    """Settings that are not ranked by the first metric."""
    left = [*dict.fromkeys(f"{one} ({one.note or 'no result'})" for one in views[0].all_groups if not one.is_ranked)]
    names = "; ".join(left) if len(left) <= MAX_NAMES else f"{len(left)} settings that cannot be ranked"
    return f"not drawn: {names}" if left else ""
