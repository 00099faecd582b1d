"""What a study found, in words: sentences that follow from the numbers, and never say more than they support."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

from anaphor.studies.comparisons import Comparison, Slice, along, compare, compare_best, p_told, same
from anaphor.studies.groups import Axes, Group, Metric, best_of, is_numeric, told, varied
from anaphor.studies.statistics import interval, warn_of_few, with_half
from anaphor.studies.trends import trend

NAMED = 6  # so many are named in a sentence; more are counted
LINES = 6  # so many trends along one axis are told one by one; of more the average


def findings(groups: Sequence[Group], axes: Axes, metric: Metric) -> list[str]:
    """Sentences: the best, what cannot be told apart from it, trends and rankings along each axis, and what failed."""
    ranked = sorted((group for group in groups if group.ranked), key=lambda group: metric.cost(group.mean))
    free = varied(groups, axes)
    found = [*_best(groups, ranked, metric), _few(ranked)]
    if len(free) > 1 or any(map(is_numeric, free.values())):  # else the ranking says it all
        found += _ahead(ranked, metric)
    return _written([*found, *_along_axes(groups, free, metric), *_failed(groups), *_unranked(groups)])


def described(groups: Sequence[Group], axes: Axes, metric: Metric) -> list[str]:
    """Trends and rankings alone, for scores by which nothing may be chosen."""
    few = _few([group for group in groups if group.ranked])
    along_axes = _along_axes(groups, varied(groups, axes), metric)
    return _written([few, *along_axes, *_failed(groups), *_unranked(groups)])


def _written(found: Sequence[str]) -> list[str]:
    return [f"{sentence[0].upper()}{sentence[1:]}" for sentence in found if sentence]


def _few(ranked: Sequence[Group]) -> str:
    return warn_of_few(max(len(group.seeds) for group in ranked)) if len(ranked) > 1 else ""


def _along_axes(groups: Sequence[Group], free: Axes, metric: Metric) -> Iterator[str]:
    scales = [name for name, values in free.items() if is_numeric(values)]
    names = [name for name in free if name not in scales]
    for name in scales:
        for where in _lines(free, names):
            yield trend(along(groups, free, name, where), metric)
    for name in names:
        yield from _ranking(along(groups, free, name, {}), metric)


def _lines(free: Axes, names: Sequence[str]) -> list[dict[str, Any]]:
    """Every value of the axes that are no scales, for a trend of its own."""
    lines = [dict(zip(names, values, strict=True)) for values in product(*(free[name] for name in names))]
    return lines if len(lines) <= LINES else [{}]


def _best(groups: Sequence[Group], ranked: Sequence[Group], metric: Metric) -> Iterator[str]:
    best = best_of(ranked, metric)
    if best is None:
        noted = not ranked and any(group.note and group.values for group in groups)
        why = "no settings can be compared" if noted else "no setting has a result for all its seeds"
        yield f"{why}, so none is called the best."
        return
    many = f"best of {len(ranked)} settings: " if len(ranked) > 1 else "result of "
    seeds = f"{len(best.seeds)} seed{'s' if len(best.seeds) > 1 else ''}"
    yield f"{many}{best}: {interval(best.values)} {metric.short} ({seeds})."


def _ahead(ranked: Sequence[Group], metric: Metric) -> Iterator[str]:
    """The best against the next, and against all others."""
    best = best_of(ranked, metric)
    others = [group for group in ranked if group is not best]
    if best is None or not others:
        return
    equal = [group for group in others if same(best, group)]
    if equal:
        names = "; ".join(map(str, equal)) if len(equal) <= NAMED else f"{len(equal)} others"
        yield f"the same to the digits shown: {names}."
    compared = compare_best(best, [other for other in others if other not in equal])
    if not compared:
        return
    judged = [one for one in compared if one.p is not None]
    following = compared[0]
    if following.difference is not None:
        verdict = ""
        if following.p is not None:
            among = f" after correction for the choice among {len(judged) + 1} settings" if len(judged) > 1 else ""
            noise = "beyond" if following.apart else "within"
            verdict = f", {noise} noise ({p_told(following.p)}{among})"
        yield f"the next, {following.other}, differs from it by {following.size(metric)}{verdict}."
    close = [one.other for one in judged if not one.apart]
    if len(judged) < 2:
        return
    if close:
        names = f": {'; '.join(map(str, close))}" if len(close) <= NAMED else ""
        yield f"{len(close)} of the {len(judged)} others cannot be told apart from it{names}."
    else:
        yield f"it can be told apart from all {len(judged)} others."


def _ranking(found: Slice, metric: Metric) -> Iterator[str]:
    """Names in order, and which pairs of them differ."""
    ordered = sorted(found.groups, key=lambda group: metric.cost(group.mean))
    if len(ordered) < 2:
        return
    names = ", ".join(f"{told(group.parameters[found.name])} {with_half(group.mean, None)}" for group in ordered)
    yield f"by {found.name}, best first: {names} {metric.short}{found.described}."
    pairs = list(combinations(ordered, 2))
    equal = [pair for pair in pairs if same(*pair)]
    if equal and len(ordered) > 2:  # of two the ranking shows it
        names = "; ".join(" and ".join(told(group.parameters[found.name]) for group in pair) for pair in equal[:NAMED])
        more = f"; and {len(equal) - NAMED} more pairs" if len(equal) > NAMED else ""
        yield f"the same to the digits shown: {names}{more}."
    compared = [one for one in compare(pair for pair in pairs if pair not in equal) if one.p is not None]
    apart, close = [one for one in compared if one.apart], [one for one in compared if not one.apart]
    times = f" (p corrected for {len(compared)} comparisons)" if len(compared) > 1 else ""
    for these, noise in ((apart, "beyond noise"), (close, "within noise")):
        if len(these) > NAMED:
            yield f"{len(these)} of {len(compared)} pairs differ {noise}{times}."
        elif these:
            yield f"differences {noise}{times}: {'; '.join(_pair(found, pair, metric) for pair in these)}."


def _pair(found: Slice, pair: Comparison, metric: Metric) -> str:
    names = [told(group.parameters[found.name]) for group in (pair.one, pair.other)]
    return f"{' and '.join(names)} ({pair.size(metric)}, {p_told(pair.p or 0.0)})"


def _failed(groups: Sequence[Group]) -> Iterator[str]:
    failed = [group for group in groups if group.failed]
    if failed:
        count, cells = sum(group.failed for group in failed), sum(len(group.seeds) + group.failed for group in groups)
        names = [f"{group} ({_missing(group)})" for group in failed]
        more = f"; and {len(names) - NAMED} more settings" if len(names) > NAMED else ""
        verb = "has" if count == 1 else "have"
        yield f"{count} of {cells} cells {verb} no result: {'; '.join(names[:NAMED])}{more}."


def _missing(group: Group) -> str:
    """How many seeds have no result; and why, where that is told nowhere else."""
    count = f"{group.failed} of {len(group.seeds) + group.failed} seeds"
    return f"{count}: {group.note}" if group.note and not group.values else count


def _unranked(groups: Sequence[Group]) -> Iterator[str]:
    """Those that are left out for one reason are told of together."""
    left = [group for group in groups if group.values and not group.ranked]
    for note in dict.fromkeys(group.note for group in left):
        names = [f"{group}: {_number(group)}" for group in left if group.note == note]
        more = f"; and {len(names) - NAMED} more settings" if len(names) > NAMED else ""
        yield f"not ranked: {'; '.join(names[:NAMED])}{more}{f' ({note})' if note else ''}."


def _number(group: Group) -> str:
    finite = all(map(math.isfinite, group.values))
    return str(interval(group.values)) if finite else "not a finite number for every seed"
