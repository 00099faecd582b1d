"""What a study measured as a figure: lines with bands, maps with numbers, or dots with bars, as its axes want it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from anaphor.draw import Dot, Line, Written, bands, dots, written_maps
from anaphor.errors import DataError
from anaphor.studies.groups import Axes, Group, Metric, best_of, is_numeric, label, told, varied
from anaphor.studies.statistics import interval
from anaphor.studies.tables import places

ENDINGS = ("png", "svg")
WIDE = 8  # a scale whose highest value is so many times its lowest is logarithmic
SPREAD = 4  # times as far as the best is from the middle: beyond it colours end
NAMED = 3  # so many settings are named below a figure; more are counted


def draw_study(groups: Sequence[Group], axes: Axes, metric: Metric, folder: Path) -> list[Path]:
    """`study.png` and `.svg`, or a pair for each axis of a search. None where no two groups can be compared."""
    free = varied(groups, axes)
    scales = {name: values for name, values in free.items() if is_numeric(values)}
    names = {name: values for name, values in free.items() if name not in scales}
    if sum(group.ranked for group in groups) < 2:
        return []
    try:
        if not scales:
            return _dots(groups, names, metric, folder)
        if len(scales) > 1 and len(groups) < math.prod(map(len, free.values())) / 2:
            return [path for name in scales for path in _cloud(groups, name, names, metric, folder)]
        # A third scale is treated like names: the one with the fewest values.
        for name in sorted(scales, key=lambda name: len(scales[name]))[: len(scales) - 2]:
            names[name] = scales.pop(name)
        return (_lines if len(scales) == 1 else _maps)(groups, scales, names, metric, folder)
    except OSError as error:
        raise DataError(f"cannot write the figures to {folder}: {error.strerror or error}") from None


def _lines(groups: Sequence[Group], scales: Axes, names: Axes, metric: Metric, folder: Path) -> list[Path]:
    """A line for each value of the axis with most names, and a panel for each value of any others."""
    ((scale, values),) = scales.items()
    most = max(names, key=lambda name: len(names[name]), default="")
    panels: dict[str, list[Line]] = {}
    for where in _places({name: names[name] for name in names if name != most}):
        for name in names.get(most, [None]):
            of = {group.parameters[scale]: group for group in _at(groups, where | ({most: name} if most else {}))}
            if of:
                line = _line(told(name), values, [of.get(value) for value in values])
                panels.setdefault(label(where) if where else "", []).append(line)
    paths = _paths(folder, "study")
    bands(
        panels, paths, x_label=scale, y_label=_y_label(groups, metric), remark=_left_out(groups), log_x=_wide(values),
        log_y=_steep(groups),
    )  # fmt: skip
    return paths


def _line(name: str, x: Sequence[float], groups: Sequence[Group | None]) -> Line:
    """What has no result leaves a gap."""
    ends = [(math.nan,) * 3 if group is None else _ends(group) for group in groups]
    several = [(place, group) for place, group in zip(x, groups, strict=True) if group and len(group.values) > 1]
    singles = [(place, value) for place, group in several for value in group.values]
    middle, low, high = zip(*ends, strict=True)
    return Line(name, x, middle, low, high, singles)


def _cloud(groups: Sequence[Group], scale: str, names: Axes, metric: Metric, folder: Path) -> list[Path]:
    """A search tries other values of all axes each time: its settings have no neighbours to be joined with."""
    lines = []
    for where in _places(names):
        here = sorted(_at(groups, where), key=lambda group: group.parameters[scale])
        if here:
            x = [group.parameters[scale] for group in here]
            middle, low, high = zip(*map(_ends, here), strict=True)
            lines.append(Line(label(where), x, middle, low, high, joined=False))
    tried = sorted(place for line in lines for place in line.x)
    paths = _paths(folder, f"study-{scale}")
    bands(
        {"": lines}, paths, x_label=scale, y_label=_y_label(groups, metric), remark=_left_out(groups),
        log_x=_wide(tried) and tried[len(tried) // 2] < tried[-1] / 3, log_y=_steep(groups),
    )  # fmt: skip
    return paths


def _maps(groups: Sequence[Group], scales: Axes, names: Axes, metric: Metric, folder: Path) -> list[Path]:
    """The first scale to the right, the second upwards, and a panel for each name. The best cell has a frame."""
    (right, columns), (up, rows) = scales.items()
    rows = rows[::-1]
    (low, high), written, best = _colours(groups, metric), places(groups), best_of(groups, metric)
    panels = []
    for where in _places(names):
        values, framed = np.full((len(rows), len(columns)), math.nan), None
        texts = [["–"] * len(columns) for _ in rows]
        for group in _at(groups, where):
            row, column = rows.index(group.parameters[up]), columns.index(group.parameters[right])
            half = interval(group.values).half
            values[row, column] = group.mean
            texts[row][column] = format(group.mean, written) + ("" if half is None else f"\n± {half:{written}}")
            framed = (row, column) if group is best else framed
        if not np.isnan(values).all():
            panels.append(Written(label(where) if where else "", values, low, high, texts, framed))
    paths = _paths(folder, "study")
    written_maps(
        panels, paths, rows=[*map(told, rows)], columns=[*map(told, columns)], x_label=right, y_label=up,
        label=metric.name, remark="; ".join(filter(None, [_meant(groups), _left_out(groups)])),
    )  # fmt: skip
    return paths


def _dots(groups: Sequence[Group], names: Axes, metric: Metric, folder: Path) -> list[Path]:
    """The best on top."""
    ranked = sorted((group for group in groups if group.ranked), key=lambda group: metric.cost(group.mean))
    rows = []
    for group in ranked:
        of = {name: group.parameters[name] for name in names}
        name = told(*of.values()) if len(of) == 1 else label(of)
        rows.append(Dot(name, *_ends(group), group.values if len(group.values) > 1 else ()))
    paths = _paths(folder, "study")
    dots(rows, paths, x_label=_y_label(groups, metric), remark=_left_out(groups), log_x=_steep(groups))
    return paths


def _places(axes: Axes) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _at(groups: Sequence[Group], where: Mapping[str, Any]) -> list[Group]:
    return [group for group in groups if group.ranked and all(group.parameters[name] == where[name] for name in where)]


def _ends(group: Group) -> tuple[float, float, float]:
    """Mean and interval, not a number where there is none."""
    of = interval(group.values)
    return of.mean, math.nan if of.low is None else of.low, math.nan if of.high is None else of.high


def _wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > WIDE * min(values)


def _steep(groups: Sequence[Group]) -> bool:
    """One setting that went wrong would press all others into one line."""
    return _wide([group.mean for group in groups if group.ranked])


def _colours(groups: Sequence[Group], metric: Metric) -> tuple[float, float]:
    """The ends of the colours. One setting that went wrong must not make all others look alike."""
    costs = sorted(metric.cost(group.mean) for group in groups if group.ranked)
    middle = next((cost for cost in costs[len(costs) // 2 :] if cost > costs[0]), costs[0])
    ends = (metric.cost(costs[0]), metric.cost(min(costs[-1], middle + SPREAD * (middle - costs[0]))))
    return min(ends), max(ends)


def _y_label(groups: Sequence[Group], metric: Metric) -> str:
    return f"{metric.name}\n({_meant(groups)})"


def _meant(groups: Sequence[Group]) -> str:
    several = any(len(group.values) > 1 for group in groups if group.ranked)
    return "mean and 95 % interval over seeds" if several else "one seed"


def _left_out(groups: Sequence[Group]) -> str:
    """A remark on what is not drawn."""
    left = [f"{group} ({group.note or 'no result'})" for group in groups if not group.ranked]
    named = "; ".join(left) if len(left) <= NAMED else f"{len(left)} settings that cannot be ranked"
    return f"not drawn: {named}" if left else ""


def _paths(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.{ending}" for ending in ENDINGS]
