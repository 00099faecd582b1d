"""Findings of a study in sentences that the numbers support: the best setting, trends, rankings, failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import Any

from anaphor.metrics.statistics import are_equal_as_shown, confidence_interval, few_seeds_warning, format_interval
from anaphor.studies.axes import format_value
from anaphor.studies.groups import (
    Axes,
    Comparison,
    Group,
    Objective,
    Slice,
    are_equal,
    compare,
    compare_best,
    find_best,
    format_p,
    is_numeric,
    slice_axis,
    varied_axes,
)

MAX_NAMES = 6  # named in a sentence; more are counted
MAX_TRENDS = 6  # along one axis; more are averaged


def describe_findings(groups: Sequence[Group], axes: Axes, objective: Objective) -> list[str]:
    """Sentences: the best, what does not differ from it, trends and rankings along each axis, and what failed."""
    ranked = sorted((group for group in groups if group.is_ranked), key=lambda group: objective.cost(group.mean))
    varied = varied_axes(groups, axes)
    found = [*_describe_best(groups, ranked, objective), _warn_of_few_seeds(ranked)]
    if len(varied) > 1 or any(map(is_numeric, varied.values())):  # otherwise the ranking says the same
        found += _compare_with_best(ranked, objective)
    return _sentences(
        [*found, *_describe_axes(groups, varied, objective), *_describe_failed(groups), *_describe_unranked(groups)]
    )


def describe_trends(groups: Sequence[Group], axes: Axes, objective: Objective) -> list[str]:
    """Trends and rankings only, for test scores, by which nothing may be chosen."""
    warning = _warn_of_few_seeds([group for group in groups if group.is_ranked])
    along_axes = _describe_axes(groups, varied_axes(groups, axes), objective)
    return _sentences([warning, *along_axes, *_describe_failed(groups), *_describe_unranked(groups)])


def _sentences(found: Sequence[str]) -> list[str]:
    return [f"{sentence[0].upper()}{sentence[1:]}" for sentence in found if sentence]


def _warn_of_few_seeds(ranked: Sequence[Group]) -> str:
    return few_seeds_warning(max(len(group.seeds) for group in ranked)) if len(ranked) > 1 else ""


def _describe_axes(groups: Sequence[Group], varied: Axes, objective: Objective) -> Iterator[str]:
    numeric = [name for name, values in varied.items() if is_numeric(values)]
    names = [name for name in varied if name not in numeric]
    for name in numeric:
        for fixed in _combinations(varied, names):
            yield describe_trend(slice_axis(groups, varied, name, fixed), objective)
    for name in names:
        yield from _ranking(slice_axis(groups, varied, name, {}), objective)


def _combinations(varied: Axes, names: Sequence[str]) -> list[dict[str, Any]]:
    """All values of the axes without an order, for a trend each."""
    lines = [dict(zip(names, values, strict=True)) for values in product(*(varied[name] for name in names))]
    return lines if len(lines) <= MAX_TRENDS else [{}]


def _describe_best(groups: Sequence[Group], ranked: Sequence[Group], objective: Objective) -> Iterator[str]:
    best = find_best(ranked, objective)
    if best is None:
        has_notes = not ranked and any(group.note and group.values for group in groups)
        reason = "the settings cannot be compared" if has_notes else "no setting has a result for all its seeds"
        yield f"no best setting: {reason}."
        return
    start = f"best of {len(ranked)} settings: " if len(ranked) > 1 else "result of "
    seeds = f"{len(best.seeds)} seed{'s' if len(best.seeds) > 1 else ''}"
    yield f"{start}{best}: {confidence_interval(best.values)} {objective.unit} ({seeds})."


def _compare_with_best(ranked: Sequence[Group], objective: Objective) -> Iterator[str]:
    """The best against the second best, and against all others with a result for all their seeds, among which it was
    selected."""
    best = find_best(ranked, objective)
    others = [group for group in ranked if group is not best and not group.failed]
    if best is None or not others:
        return
    equal = [group for group in others if are_equal(best, group)]
    if equal:
        names = "; ".join(map(str, equal)) if len(equal) <= MAX_NAMES else f"{len(equal)} others"
        yield f"equal to it in the digits shown: {names}."
    compared = compare_best(best, [other for other in others if other not in equal])
    if not compared:
        return
    tested = [one for one in compared if one.p is not None]
    second = compared[0]
    if second.difference is not None:
        verdict = ""
        if second.p is not None:
            among = f", corrected for selection among {len(tested) + 1} settings" if len(tested) > 1 else ""
            verdict = f", {_significance(second)} ({format_p(second.p)}{among})"
        yield f"second best: {second.second}, a difference of {second.format_difference(objective)}{verdict}."
    close = [one.second for one in tested if not one.is_significant]
    if len(tested) < 2:
        return
    if close:
        names = f": {'; '.join(map(str, close))}" if len(close) <= MAX_NAMES else ""
        yield f"{len(close)} of the {len(tested)} others do not differ significantly from the best{names}."
    else:
        yield f"all {len(tested)} others differ significantly from the best."


def _significance(one: Comparison) -> str:
    return "significant" if one.is_significant else "not significant"


def _ranking(found: Slice, objective: Objective) -> Iterator[str]:
    """Names in order, and which pairs of them differ."""
    ordered = sorted(found.groups, key=lambda group: objective.cost(group.mean))
    if len(ordered) < 2:
        return
    names = ", ".join(f"{format_value(group.parameters[found.axis])} {_mean(group)}" for group in ordered)
    yield f"by {found.axis}, best first: {names} {objective.unit}{found.suffix}."
    pairs = list(combinations(ordered, 2))
    equal = [pair for pair in pairs if are_equal(*pair)]
    if equal and len(ordered) > 2:  # of two the ranking shows it
        yield f"equal in the digits shown: {_join([' and '.join(_names(found, *pair)) for pair in equal], 'pairs')}."
    compared = [one for one in compare(pair for pair in pairs if pair not in equal) if one.p is not None]
    correction = f" (p-values corrected for {len(compared)} comparisons)" if len(compared) > 1 else ""
    for word in ("significant", "not significant"):
        these = [one for one in compared if _significance(one) == word]
        if len(these) > MAX_NAMES:
            yield f"{word}: {len(these)} of {len(compared)} differences{correction}."
        elif these:
            yield f"{word} differences{correction}: {'; '.join(_pair(found, one, objective) for one in these)}."


def _names(found: Slice, *groups: Group) -> list[str]:
    return [format_value(group.parameters[found.axis]) for group in groups]


def _pair(found: Slice, one: Comparison, objective: Objective) -> str:
    names = " and ".join(_names(found, one.first, one.second))
    return f"{names} ({one.format_difference(objective)}, {format_p(one.p or 0.0)})"


def _describe_failed(groups: Sequence[Group]) -> Iterator[str]:
    failed = [group for group in groups if group.failed]
    if failed:
        count, cells = sum(group.failed for group in failed), sum(len(group.seeds) + group.failed for group in groups)
        names = [f"{group} ({_missing(group)})" for group in failed]
        yield f"{count} of {cells} cells {'has' if count == 1 else 'have'} no result: {_join(names, 'settings')}."


def _missing(group: Group) -> str:
    """How many seeds have no result, with the reason where it is given nowhere else."""
    count = f"{group.failed} of {len(group.seeds) + group.failed} seeds"
    return f"{count}: {group.note}" if group.note and not group.values else count


def _describe_unranked(groups: Sequence[Group]) -> Iterator[str]:
    """One sentence for all that are left out for the same reason."""
    unranked = [group for group in groups if group.values and not group.is_ranked]
    for note in dict.fromkeys(group.note for group in unranked):
        names = [f"{group}: {_number(group)}" for group in unranked if group.note == note]
        yield f"not ranked: {_join(names, 'settings')}{f' ({note})' if note else ''}."


def _number(group: Group) -> str:
    is_finite = all(map(math.isfinite, group.values))
    return str(confidence_interval(group.values)) if is_finite else "not a finite number for every seed"


def _join(names: Sequence[str], kind: str) -> str:
    more = f"; and {len(names) - MAX_NAMES} more {kind}" if len(names) > MAX_NAMES else ""
    return f"{'; '.join(names[:MAX_NAMES])}{more}"


def describe_trend(found: Slice, objective: Objective) -> str:
    """One sentence on a numeric axis, from a comparison of every value with the best one; empty for one value."""
    groups = found.groups
    if len(groups) < 2:
        return ""
    best = min(groups, key=lambda group: objective.cost(group.mean))
    compared = compare_best(best, [group for group in groups if group is not best])
    has_few_seeds = any(one.p is None for one in compared)
    worse = [one.second for one in compared if one.is_significant]
    if all(are_equal_as_shown([best.mean], [g.mean]) if has_few_seeds else are_equal(best, g) for g in groups):
        text = f"{objective.label} is the same at every {found.axis} ({_mean(best)})"
    elif has_few_seeds:
        text = _extremes(groups, best, objective)
    elif not worse:
        text = f"no significant effect of {found.axis} on {objective.label}{_largest_possible(compared, objective)}"
    elif (plateau := _find_plateau(groups, worse, objective)) is None:
        text = _without_shape(found, best, worse, objective)
    else:
        text = f"{objective.label} {_shape(found, plateau, compared, objective)}"
    return f"{found.prefix}{text}{found.suffix}."


def _find_plateau(groups: Sequence[Group], worse: Sequence[Group], objective: Objective) -> tuple[int, int] | None:
    """First and last of the neighbors that do not differ from the best; None where the curve is not monotonic around
    them or worse values lie between them."""
    close = [index for index, group in enumerate(groups) if group not in worse]
    first, last = close[0], close[-1]
    costs = [objective.cost(group.mean) for group in groups]
    falls = all(a > b for a, b in pairwise(costs[: first + 1]))
    rises = all(a < b for a, b in pairwise(costs[last:]))
    return (first, last) if len(close) == last - first + 1 and falls and rises else None


def _shape(found: Slice, plateau: tuple[int, int], compared: Sequence[Comparison], objective: Objective) -> str:
    groups, (first, last) = found.groups, plateau
    at, means = _names(found, *groups), [_mean(group) for group in groups]
    better, worse = ("falls", "rises") if objective.is_minimized else ("rises", "falls")
    parts = []
    if first > 0:
        parts.append(f"{better} with {found.axis} until {at[first]} (from {means[0]} at {at[0]} to {means[first]})")
    if last > first:
        flat = [one for one in compared if not one.is_significant]
        until = f"until {at[last]}" if last < len(groups) - 1 else f"up to {at[last]}"
        parts.append(f"does not change significantly {until}{_largest_possible(flat, objective)}")
    if last < len(groups) - 1:
        axis = f" with {found.axis}" if first == 0 else ""
        parts.append(f"{worse}{axis} (from {means[last]} at {at[last]} to {means[-1]} at {at[-1]})")
    return ", then ".join(parts)


def _extremes(groups: Sequence[Group], best: Group, objective: Objective) -> str:
    """With few seeds nothing more is claimed."""
    worst = max(groups, key=lambda group: objective.cost(group.mean))
    low, high = ("lowest", "highest") if objective.is_minimized else ("highest", "lowest")
    return f"{objective.label} is {low} at {best} ({_mean(best)}) and {high} at {worst} ({_mean(worst)})"


def _without_shape(found: Slice, best: Group, worse: Sequence[Group], objective: Objective) -> str:
    close = _names(found, *(group for group in found.groups if group is not best and group not in worse))
    also = f", not significantly different from that at {', '.join(close)}" if close else ""
    low = "lowest" if objective.is_minimized else "highest"
    return f"{objective.label} has no simple trend with {found.axis}: {low} at {best} ({_mean(best)}){also}"


def _largest_possible(compared: Sequence[Comparison], objective: Objective) -> str:
    """The largest difference inside the intervals: not significant does not mean equal."""
    bounds = [abs(end) for one in compared if (of := one.difference) for end in (of.low, of.high) if end is not None]
    return f" (differences up to {max(bounds):.2g} {objective.unit} are possible)" if bounds else ""


def _mean(group: Group) -> str:
    return format_interval(group.mean, None)
