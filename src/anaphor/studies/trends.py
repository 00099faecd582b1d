"""How a metric goes along a scale, in words: better up to a plateau, flat within noise, worse after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from anaphor.studies.comparisons import Comparison, Slice, compare_best, same
from anaphor.studies.groups import Group, Metric, told
from anaphor.studies.statistics import alike, with_half


@dataclass(frozen=True)
class Plateau:
    """The values that cannot be told apart from the best one, if they are neighbours."""

    first: int
    last: int


def trend(found: Slice, metric: Metric) -> str:
    """One sentence from a comparison of every value with the best one; nothing where there are no two values."""
    groups = found.groups
    if len(groups) < 2:
        return ""
    best = min(groups, key=lambda group: metric.cost(group.mean))
    compared = compare_best(best, [group for group in groups if group is not best])
    few = any(one.p is None for one in compared)
    if all(alike([best.mean], [group.mean]) if few else same(best, group) for group in groups):
        said = f"{metric.short} is the same at every {found.name} ({_mean(best)})"
    elif few:
        said = _ends(groups, best, metric)
    elif not any(one.apart for one in compared):
        said = f"no effect of {found.name} on {metric.short} can be told from noise{_within(compared, metric)}"
    else:
        apart = [one.other for one in compared if one.apart]
        plateau = _plateau(groups, apart, metric)
        if plateau is None:
            said = _unsorted(found, best, apart, metric)
        else:
            said = f"{metric.short} {_shape(found, plateau, compared, metric)}"
    return f"{found.place}{said}{found.described}."


def _plateau(groups: Sequence[Group], apart: Sequence[Group], metric: Metric) -> Plateau | None:
    """None where values that are worse lie between those that are not, or where the way to it goes up and down."""
    same = [place for place, group in enumerate(groups) if group not in apart]
    first, last = same[0], same[-1]
    costs = [metric.cost(group.mean) for group in groups]
    sinking = all(one > other for one, other in pairwise(costs[: first + 1]))
    rising = all(one < other for one, other in pairwise(costs[last:]))
    return Plateau(first, last) if len(same) == last - first + 1 and sinking and rising else None


def _shape(found: Slice, plateau: Plateau, compared: Sequence[Comparison], metric: Metric) -> str:
    groups, (first, last) = found.groups, (plateau.first, plateau.last)
    at = [told(group.parameters[found.name]) for group in groups]
    means = [_mean(group) for group in groups]
    better, worse = ("falls", "rises") if metric.goal == "minimize" else ("rises", "falls")
    parts = []
    if first > 0:
        parts.append(f"{better} with {found.name} until {at[first]} (from {means[0]} at {at[0]} to {means[first]})")
    if last > first:
        flat = [one for one in compared if not one.apart]
        until = f"until {at[last]}" if last < len(groups) - 1 else f"up to {at[last]}"
        parts.append(f"is flat within noise {until}{_within(flat, metric)}")
    if last < len(groups) - 1:
        axis = f" with {found.name}" if first == 0 else ""
        parts.append(f"{worse}{axis} (from {means[last]} at {at[last]} to {means[-1]} at {at[-1]})")
    return ", then ".join(parts)


def _ends(groups: Sequence[Group], best: Group, metric: Metric) -> str:
    """Too few seeds for more than what there is to see."""
    worst = max(groups, key=lambda group: metric.cost(group.mean))
    low, high = ("lowest", "highest") if metric.goal == "minimize" else ("highest", "lowest")
    return f"{metric.short} is {low} at {best} ({_mean(best)}) and {high} at {worst} ({_mean(worst)})"


def _unsorted(found: Slice, best: Group, apart: Sequence[Group], metric: Metric) -> str:
    same = [told(group.parameters[found.name]) for group in found.groups if group is not best and group not in apart]
    also = f", and cannot be told apart from that at {', '.join(same)}" if same else ""
    low = "lowest" if metric.goal == "minimize" else "highest"
    return f"{metric.short} has no simple trend with {found.name}: it is {low} at {best} ({_mean(best)}){also}"


def _within(compared: Sequence[Comparison], metric: Metric) -> str:
    """How large a difference would still fit, so that flat is not taken for equal."""
    bounds = [abs(end) for one in compared if (of := one.difference) for end in (of.low, of.high) if end is not None]
    return f" (differences of up to {max(bounds):.2g} {metric.short} would fit)" if bounds else ""


def _mean(group: Group) -> str:
    return with_half(group.mean, None)
