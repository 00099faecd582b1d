"""What a study measured as a figure: lines with bands, maps with numbers, or dots with bars, as its axes want it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from anaphor.draw import Annotated, Dot, Line, annotated_heat_maps, bands, dots
from anaphor.errors import DataError
from anaphor.studies.groups import Axes, Group, Metric, best_of, is_numeric, label, told, varied
from anaphor.studies.statistics import interval
from anaphor.studies.tables import places

ENDINGS = ("png", "svg")
WIDE = 8  # a scale whose highest value is so many times its lowest is logarithmic
SPREAD = 4  # times as far as the best is from the middle: beyond it colours end
ALIKE = 0.2  # of the colours: cells that share no more of them look alike
NAMED = 3  # so many settings are named below a figure; more are counted


def draw_study(
    groups: Sequence[Group], axes: Axes, metric: Metric, folder: Path, tested: Sequence[Group] = ()
) -> list[Path]:
    """`study.png` and `.svg`, or a pair for each axis of a search. None where no two groups can be compared.

    `tested` are the same settings with their test scores, which are drawn beside the others, but for a search.
    """
    free = varied(groups, axes)
    scales = {name: values for name, values in free.items() if is_numeric(values)}
    names = {name: values for name, values in free.items() if name not in scales}
    if sum(group.ranked for group in groups) < 2:
        return []
    try:
        if not scales:
            return _dots(groups, tested, names, metric, folder)
        if len(scales) > 1 and len(groups) < math.prod(map(len, free.values())) / 2:
            return [path for name in scales for path in _cloud(groups, name, names, metric, folder)]
        # A third scale is treated like names: the one with the fewest values.
        for name in sorted(scales, key=lambda name: len(scales[name]))[: len(scales) - 2]:
            names[name] = scales.pop(name)
        return (_lines if len(scales) == 1 else _maps)(groups, tested, scales, names, metric, folder)
    except OSError as error:
        raise DataError(f"cannot write the figures to {folder}: {error.strerror or error}") from None


def _lines(
    groups: Sequence[Group], tested: Sequence[Group], scales: Axes, names: Axes, metric: Metric, folder: Path
) -> list[Path]:
    """A line for each value of the axis with most names, and a panel for each value of any others.

    Where there are test scores, each panel has one for them to its right.
    """
    ((scale, values),) = scales.items()
    most = max(names, key=lambda name: len(names[name]), default="")
    both, kind = _splits(groups, tested, metric)
    panels: dict[str, list[Line]] = {}
    for where, part in product(_places({name: names[name] for name in names if name != most}), both):
        for name in names.get(most, [None]):
            of = {group.parameters[scale]: group for group in _at(both[part], where | ({most: name} if most else {}))}
            if of:
                line = _line(told(name), values, [of.get(value) for value in values], metric)
                panels.setdefault(_title(where, part), []).append(line)
    paths = _paths(folder, "study")
    bands(
        panels, paths, x_label=scale, y_label=_y_label(groups, replace(metric, name=kind)),
        remark=_remark([*groups, *tested], metric), log_x=_wide(values), log_y=_steep([*groups, *tested]),
    )  # fmt: skip
    return paths


def _line(name: str, x: Sequence[float], groups: Sequence[Group | None], metric: Metric) -> Line:
    """What has no result leaves a gap."""
    ends = [(math.nan,) * 3 if group is None else _ends(group, metric) for group in groups]
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
            middle, low, high = zip(*(_ends(group, metric) for group in here), strict=True)
            lines.append(Line(label(where), x, middle, low, high, joined=False))
    tried = sorted(place for line in lines for place in line.x)
    paths = _paths(folder, f"study-{scale}")
    bands(
        {"": lines}, paths, x_label=scale, y_label=_y_label(groups, metric), remark=_remark(groups, metric),
        log_x=_wide(tried) and tried[len(tried) // 2] < tried[-1] / 3, log_y=_steep(groups),
    )  # fmt: skip
    return paths


def _maps(
    groups: Sequence[Group], tested: Sequence[Group], scales: Axes, names: Axes, metric: Metric, folder: Path
) -> list[Path]:
    """The first scale to the right, the second upwards, and a panel for each name. The best cell has a frame.

    Test scores have the colours of the others, and a frame around what was chosen without them. Each name has colours
    of its own where common ones would not tell its cells apart.
    """
    (right, columns), (up, rows) = scales.items()
    rows = rows[::-1]
    written, best = places(groups), best_of(groups, metric)
    both, kind = _splits(groups, tested, metric)
    there = [where for where in _places(names) if _at([*groups, *tested], where)]
    ends = _scales([_at([*groups, *tested], where) for where in there], metric)
    own = f"each {' and '.join(names)} has colours of its own" if len(set(ends)) > 1 else ""
    panels = []
    for (where, (low, high)), part in product(zip(there, ends, strict=True), both):
        values, framed = np.full((len(rows), len(columns)), math.nan), None
        texts = [["–"] * len(columns) for _ in rows]
        for group in _at(both[part], where):
            row, column = rows.index(group.parameters[up]), columns.index(group.parameters[right])
            half = interval(group.values).half
            values[row, column] = group.mean
            texts[row][column] = format(group.mean, written) + ("" if half is None else f"\n± {half:{written}}")
            framed = (row, column) if best and group.parameters == best.parameters else framed
        if not np.isnan(values).all():
            panels.append(Annotated(_title(where, part), values, low, high, texts, framed))
    paths = _paths(folder, "study")
    annotated_heat_maps(
        panels, paths, rows=[*map(told, rows)], columns=[*map(told, columns)], x_label=right, y_label=up,
        label=kind, remark="; ".join(filter(None, [_meant(groups), own, _left_out(groups)])),
    )  # fmt: skip
    return paths


def _dots(groups: Sequence[Group], tested: Sequence[Group], names: Axes, metric: Metric, folder: Path) -> list[Path]:
    """The best on top, each with its test score below it, if there is one."""
    ranked = sorted((group for group in groups if group.ranked), key=lambda group: metric.cost(group.mean))
    both, kind = _splits(groups, tested, metric)
    rows = []
    for best, part in product(ranked, both):
        of = {name: best.parameters[name] for name in names}
        name = ", ".join(filter(None, [told(*of.values()) if len(of) == 1 else label(of), part]))
        for group in _at(both[part], best.parameters):
            rows.append(Dot(name, *_ends(group, metric), group.values if len(group.values) > 1 else ()))
    paths = _paths(folder, "study")
    shown = [*groups, *tested]
    dots(
        rows, paths, x_label=_y_label(groups, replace(metric, name=kind)), remark=_remark(shown, metric),
        log_x=_steep(shown),
    )  # fmt: skip
    return paths


def _splits(groups: Sequence[Group], tested: Sequence[Group], metric: Metric) -> tuple[dict[str, Sequence[Group]], str]:
    """What each split measured by its name, and what that is; a split by itself needs no name of its own."""
    split, _, kind = metric.name.partition(" ")
    return ({split: groups, "test": tested}, kind) if tested else ({"": groups}, metric.name)


def _title(where: Mapping[str, Any], split: str) -> str:
    return ", ".join(filter(None, [label(where) if where else "", split]))


def _places(axes: Axes) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _at(groups: Sequence[Group], where: Mapping[str, Any]) -> list[Group]:
    return [group for group in groups if group.ranked and all(group.parameters[name] == where[name] for name in where)]


def _ends(group: Group, metric: Metric) -> tuple[float, float, float]:
    """Mean and interval, not a number where there is none. An interval ends where the metric does."""
    of = interval(group.values)
    low = math.nan if of.low is None else max(of.low, metric.least)
    return of.mean, low, math.nan if of.high is None else of.high


def _wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > WIDE * min(values)


def _steep(groups: Sequence[Group]) -> bool:
    """One setting that went wrong would press all others into one line."""
    return _wide([group.mean for group in groups if group.ranked])


def _scales(panels: Sequence[Sequence[Group]], metric: Metric) -> list[tuple[float, float]]:
    """The ends of each panel's colours: the same for all, unless the cells of one would then look alike."""
    low, high = _colours([group for panel in panels for group in panel], metric)
    own = [_colours(panel, metric) for panel in panels]
    shares = [min(end, high) - max(start, low) for start, end in own if start < end]
    return own if min(shares, default=math.inf) < (high - low) * ALIKE else [(low, high)] * len(panels)


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


def _remark(groups: Sequence[Group], metric: Metric) -> str:
    """What is not drawn as it is."""
    lows = [low for group in groups if group.ranked and (low := interval(group.values).low) is not None]
    cut = f"intervals are cut off at {metric.least:g}, the least that there can be"
    return "; ".join(filter(None, [_left_out(groups), cut if min(lows, default=math.inf) < metric.least else ""]))


def _left_out(groups: Sequence[Group]) -> str:
    """A remark on what is not drawn."""
    left = [*dict.fromkeys(f"{group} ({group.note or 'no result'})" for group in groups if not group.ranked)]
    named = "; ".join(left) if len(left) <= NAMED else f"{len(left)} settings that cannot be ranked"
    return f"not drawn: {named}" if left else ""


def _paths(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.{ending}" for ending in ENDINGS]
