"""Results of a study as plain data: one group for each setting, with a value for each seed, and their comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from anaphor.errors import ConfigError
from anaphor.metrics.labels import Label
from anaphor.metrics.result import Metric
from anaphor.metrics.statistics import (
    MIN_SEEDS,
    BlockDifference,
    Difference,
    are_equal_as_shown,
    format_interval,
    holm_correction,
    selection_correction,
    t_test,
)
from anaphor.studies.axes import format_setting

Axes = Mapping[str, Sequence[Any]]
ALPHA = 0.05  # level of significance


@dataclass(frozen=True)
class Objective:
    """What settings are compared by: a metric of the task on a split."""

    metric: Metric
    split: str = "validation"

    @property
    def title(self) -> str:
        """In tables and figures: `validation loss`."""
        return f"{self.split} {self.metric.label}"

    @property
    def axis(self) -> str:
        """The title with its unit, for heads of tables and axes of figures: `validation loss (nats per token)`."""
        return Label(self.title, self.metric.unit).axis

    @property
    def label(self) -> str:
        """In sentences: `loss`, or `test loss`."""
        return self.metric.label if self.split == "validation" else self.title

    @property
    def unit(self) -> str:
        """After numbers in sentences."""
        return self.metric.unit or self.label

    @property
    def is_minimized(self) -> bool:
        return self.metric.goal == "min"

    def cost(self, value: float) -> float:
        """The value with the sign that makes smaller ones better."""
        return value if self.is_minimized else -value


@dataclass(frozen=True)
class Group:
    """All seeds of one setting."""

    parameters: Mapping[str, Any]
    """Value on each axis, in the order of the axes: a number, a name, a bool or None."""
    seeds: tuple[int, ...]
    """Those that finished, in ascending order."""
    values: tuple[float, ...]
    """Value of the metric for each of them."""
    note: str = ""
    """Why it cannot be compared with other settings; then it is never ranked."""
    failed: int = 0
    """Number of seeds without a value."""

    def __post_init__(self) -> None:
        assert len(self.seeds) == len(self.values), "one value for each seed"

    @property
    def is_ranked(self) -> bool:
        return bool(self.values) and not self.note and all(map(math.isfinite, self.values))

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values) if self.values else math.nan

    def __str__(self) -> str:
        return format_setting(self.parameters)


def find_best(groups: Sequence[Group], objective: Objective) -> Group | None:
    """The best group with all its seeds; one without them may be good only because its bad seeds failed."""
    complete = [group for group in groups if group.is_ranked and not group.failed]
    return min(complete, key=lambda group: objective.cost(group.mean), default=None)


def is_numeric(values: Sequence[Any]) -> bool:
    """Whether an axis has numbers, so that its values have an order and distances."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def varied_axes(groups: Sequence[Group], axes: Axes) -> dict[str, list[Any]]:
    """Axes with several values, without those that merely repeat another one.

    Axes that vary together (a width and an embedding size equal to it) are one axis. Numbers are sorted, names keep
    their order.
    """
    kept: dict[str, list[Any]] = {}
    for name, values in axes.items():
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1 and not any(_is_one_to_one(groups, name, other) for other in kept):
            kept[name] = sorted(distinct) if is_numeric(distinct) else distinct
    return kept


def _is_one_to_one(groups: Sequence[Group], name: str, other: str) -> bool:
    pairs = {(group.parameters[name], group.parameters[other]) for group in groups}
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    if not len(pairs) == len(set(first)) == len(set(second)):
        return False
    # A search draws every number once, on any axis: only numbers that rise or fall together count as one axis.
    return not is_numeric(first + second) or [b for _, b in sorted(pairs)] in (sorted(second), sorted(second)[::-1])


@dataclass(frozen=True)
class Comparison:
    """One group against another."""

    first: Group
    second: Group
    difference: Difference | None
    """First minus second over their common seeds; None where they have none."""
    p: float | None
    """Corrected for all comparisons that were made together; None with too few seeds."""

    @property
    def is_significant(self) -> bool:
        return self.p is not None and self.p < ALPHA

    def format_difference(self, objective: Objective) -> str:
        """`0.9 ± 1.5 nats`, without sign."""
        assert self.difference is not None, "they have seeds in common"
        return f"{format_interval(abs(self.difference.mean), self.difference.half_width)} {objective.unit}"


def paired_difference(first: Group, second: Group, level: float = 0.95) -> Difference:
    """First minus second over their common seeds; fewer than two of them give neither interval nor p-value."""
    other = dict(zip(second.seeds, second.values, strict=True))
    pairs = [value - other[seed] for seed, value in zip(first.seeds, first.values, strict=True) if seed in other]
    if not pairs:
        raise ConfigError(f"{first} and {second} have no seed in common: {list(first.seeds)} and {list(second.seeds)}")
    return t_test(pairs, level)


def compare(pairs: Iterable[tuple[Group, Group]]) -> list[Comparison]:
    """Compare every pair, with Holm's correction for all of them."""
    return _compare(pairs, lambda p_values, seeds: holm_correction(p_values))


def compare_best(best: Group, others: Iterable[Group]) -> list[Comparison]:
    """Compare the best with each of the others, corrected for its selection by the same values."""
    return _compare(((best, other) for other in others), selection_correction)


def _compare(
    pairs: Iterable[tuple[Group, Group]], correct: Callable[[Sequence[float], int], list[float]]
) -> list[Comparison]:
    """`correct` gets the p-values of all pairs and the number of seeds."""
    differences = [
        (first, second, paired_difference(first, second) if set(first.seeds) & set(second.seeds) else None)
        for first, second in pairs
    ]
    p_values = {
        index: found.p
        for index, (*_, found) in enumerate(differences)
        if found is not None and found.seeds >= MIN_SEEDS and found.p is not None
    }
    seeds = max((found.seeds for *_, found in differences if found is not None), default=0)
    corrected = dict(zip(p_values, correct([*p_values.values()], seeds), strict=True))
    return [Comparison(*found, corrected.get(index)) for index, found in enumerate(differences)]


def find_undistinguished(groups: Sequence[Group], objective: Objective) -> set[int]:
    """Where the best is, and those that do not differ significantly from it. With too few seeds for p-values the best
    alone, and what is equal to it in the digits shown."""
    best = find_best(groups, objective)
    if best is None:
        return set()
    others = [group for group in groups if group is not best and group.is_ranked and not group.failed]
    equal = [group for group in others if are_equal(best, group)]
    compared = compare_best(best, [group for group in others if group not in equal])
    close = [one.second for one in compared if one.p is not None and not one.is_significant]
    return {index for index, group in enumerate(groups) if any(group is one for one in (best, *equal, *close))}


def format_p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.{3 if p < 0.1 else 2}f}"


def are_equal(first: Group, second: Group) -> bool:
    """Whether two groups are equal to the digits shown, seed by seed."""
    return first.seeds == second.seeds and are_equal_as_shown(first.values, second.values)


def describe_block_difference(names: tuple[str, str], found: BlockDifference, runs: int, items: str) -> str:
    """What the losses of two settings on the same items say; empty where they cannot be judged.

    With fewer than `MIN_SEEDS` runs of each the comparison is of these runs only, and the sentence says so.
    """
    mean = found.mean
    if mean.half_width is None or mean.p is None:
        return ""
    if max(abs(mean.mean), mean.half_width) < 0.0005:
        return f"on the same {items} {names[0]} and {names[1]} have the same mean loss."
    direction = "lower" if mean.mean < 0 else "higher"
    size = f"{format_interval(abs(mean.mean), mean.half_width)} {direction}"
    method = f"(block bootstrap over {found.variance_from}, {format_p(mean.p)})"
    order = "may differ on other text" if mean.p > ALPHA else "is significant for text of this kind"
    which, limit = "", ""
    if runs < MIN_SEEDS:
        which = "this run of " if runs == 1 else f"these {runs} runs of "
        limit = ", but nothing is known about other seeds"
    return (
        f"on the same {items} the mean loss of {which}{names[0]} is {size} than that of {names[1]} {method}; their "
        f"order {order}{limit}."
    )


@dataclass(frozen=True)
class Slice:
    """Results along one axis: a group for each value, over the same other settings and seeds."""

    axis: str
    fixed: Mapping[str, Any]
    """Other axes that are held at one value."""
    averaged: tuple[str, ...]
    """Other axes whose values were averaged, seed by seed."""
    groups: tuple[Group, ...]
    is_complete: bool
    """Whether no result had to be left out because one is missing at another value."""

    @property
    def prefix(self) -> str:
        """`with model lstm, `, or empty."""
        return f"with {format_setting(self.fixed)}, " if self.fixed else ""

    @property
    def suffix(self) -> str:
        """` (averaged over layers)`, or empty."""
        parts = [f"averaged over {' and '.join(self.averaged)}"] if self.averaged else []
        parts += [] if self.is_complete else ["where no result is missing"]
        return f" ({', '.join(parts)})" if parts else ""


def slice_axis(groups: Sequence[Group], axes: Axes, name: str, fixed: Mapping[str, Any]) -> Slice:
    """Average over the other axes. Only settings and seeds with a result at every value count, for fair means."""
    others = [other for other in axes if other != name and other not in fixed]
    found: dict[Any, dict[tuple[Any, ...], float]] = {value: {} for value in axes[name]}
    for group in groups:
        if group.is_ranked and all(group.parameters[other] == value for other, value in fixed.items()):
            rest = tuple(group.parameters[other] for other in others)
            found[group.parameters[name]] |= {
                (seed, *rest): value for seed, value in zip(group.seeds, group.values, strict=True)
            }
    present = {value: cells for value, cells in found.items() if cells}
    shared = set.intersection(*(set(cells) for cells in present.values())) if present else set()
    seeds = sorted({seed for seed, *_ in shared})
    settings = sorted({key[1:] for key in shared}, key=str)
    # Drop settings rather than seeds: without seeds there is no interval.
    settings = [of for of in settings if all((seed, *of) in shared for seed in seeds)] or settings
    seeds = [seed for seed in seeds if all((seed, *of) in shared for of in settings)]
    averages = tuple(
        Group({name: value}, tuple(seeds), tuple(fmean(cells[(seed, *of)] for of in settings) for seed in seeds))
        for value, cells in present.items()
        if seeds
    )
    is_complete = len({key for cells in present.values() for key in cells}) == len(seeds) * len(settings)
    return Slice(name, dict(fixed), tuple(others), averages, is_complete)
