"""Which settings can be told apart: groups along one axis, and groups against each other with p-values corrected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from anaphor.studies.groups import Axes, Group, Metric, label
from anaphor.studies.statistics import (
    ENOUGH,
    Difference,
    TextDifference,
    alike,
    holm,
    paired_difference,
    selected,
    with_half,
)

ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """One group against another."""

    one: Group
    other: Group
    difference: Difference | None
    """One minus other over their common seeds; None where they have none."""
    p: float | None
    """Corrected for all comparisons that were made together; None with too few seeds to judge by."""

    @property
    def apart(self) -> bool:
        return self.p is not None and self.p < ALPHA

    def size(self, metric: Metric) -> str:
        """`0.9 ± 1.5 PPL`, whichever of the two is better."""
        assert self.difference is not None, "they have seeds in common"
        return f"{with_half(abs(self.difference.mean), self.difference.half)} {metric.short}"


def compare(pairs: Iterable[tuple[Group, Group]]) -> list[Comparison]:
    """Every pair, by Holm's correction for all of them."""
    return _compared(pairs, lambda p_values, seeds: holm(p_values))


def compare_best(best: Group, others: Iterable[Group]) -> list[Comparison]:
    """The best against each of the others, by a correction for having chosen it by the same numbers."""
    return _compared(((best, other) for other in others), selected)


def _compared(
    pairs: Iterable[tuple[Group, Group]], corrected: Callable[[Sequence[float], int], list[float]]
) -> list[Comparison]:
    """`corrected` makes p-values of all pairs and the number of seeds into those that are told."""
    found = [(one, other, _difference(one, other)) for one, other in pairs]
    judged = {place: p for place, (*_, difference) in enumerate(found) if (p := _p(difference)) is not None}
    seeds = max((difference.seeds for *_, difference in found if difference is not None), default=0)
    told = dict(zip(judged, corrected([*judged.values()], seeds), strict=True))
    return [Comparison(*of, told.get(place)) for place, of in enumerate(found)]


def p_told(p: float) -> str:
    """No more digits than matter."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.{3 if p < 0.1 else 2}f}"


def same(one: Group, other: Group) -> bool:
    """Whether two groups are equal to the digits shown, seed by seed."""
    return one.seeds == other.seeds and alike(one.values, other.values)


def told_of_text(names: tuple[str, str], text: TextDifference, runs: int) -> str:
    """What the losses of two settings on the same tokens say; nothing where they cannot be judged.

    With too few seeds the comparison is of the very runs that there are, and the sentence says so.
    """
    found = text.loss
    if found.half is None or found.p is None:
        return ""
    if max(abs(found.mean), found.half) < 0.0005:
        return f"on the same tokens {names[0]} and {names[1]} lose the same."
    size = f"{abs(found.mean):.3f} ± {found.half:.3f} nats {'less' if found.mean < 0 else 'more'}"
    how = f"(block bootstrap over {text.over}, {p_told(found.p)})"
    order = "may change on other text" if found.p > ALPHA else "is not an accident of this text"
    if runs >= ENOUGH:
        return f"on the same tokens {names[0]} loses {size} than {names[1]} {how}, so the order {order}."
    which = "this very run" if runs == 1 else f"these very {runs} runs"
    return (
        f"on the same tokens {which} of {names[0]} {'loses' if runs == 1 else 'lose'} {size} than "
        f"{'that' if runs == 1 else 'those'} of {names[1]} {how}, so their order {order}; of other seeds this says "
        f"nothing."
    )


def _difference(one: Group, other: Group) -> Difference | None:
    return paired_difference(one, other) if set(one.seeds) & set(other.seeds) else None


def _p(difference: Difference | None) -> float | None:
    return None if difference is None or difference.seeds < ENOUGH else difference.p


@dataclass(frozen=True)
class Slice:
    """What is found along one axis: a group for each value, over the same other settings and seeds at each."""

    name: str
    where: Mapping[str, Any]
    """Other axes that are held at one value."""
    averaged: tuple[str, ...]
    """Other axes whose values were averaged, seed by seed."""
    groups: tuple[Group, ...]
    complete: bool
    """Whether nothing had to be left out for want of a result at one of the values."""

    @property
    def place(self) -> str:
        """`with model lstm, `, or nothing."""
        return f"with {label(self.where)}, " if self.where else ""

    @property
    def described(self) -> str:
        """` (on average over layers)`, or nothing."""
        missing = "" if self.complete else ", where nothing is missing"
        if not self.averaged:
            return f" ({missing.removeprefix(', ')})" if missing else ""
        return f" (on average over {' and '.join(self.averaged)}{missing})"


def along(groups: Sequence[Group], axes: Axes, name: str, where: Mapping[str, Any]) -> Slice:
    """Only settings and seeds that have a result at every value count, or the averages would be of unlike things."""
    others = [other for other in axes if other != name and other not in where]
    found: dict[Any, dict[tuple[Any, ...], float]] = {value: {} for value in axes[name]}
    for group in groups:
        if group.ranked and all(group.parameters[other] == value for other, value in where.items()):
            rest = tuple(group.parameters[other] for other in others)
            found[group.parameters[name]] |= {
                (seed, *rest): value for seed, value in zip(group.seeds, group.values, strict=True)
            }
    there = {value: cells for value, cells in found.items() if cells}
    shared = set.intersection(*(set(cells) for cells in there.values())) if there else set()
    seeds = sorted({seed for seed, *_ in shared})
    settings = sorted({key[1:] for key in shared}, key=str)
    # Rather a setting less than a seed less: without seeds nothing can be judged.
    settings = [of for of in settings if all((seed, *of) in shared for seed in seeds)] or settings
    seeds = [seed for seed in seeds if all((seed, *of) in shared for of in settings)]
    made = tuple(
        Group({name: value}, tuple(seeds), tuple(fmean(cells[(seed, *of)] for of in settings) for seed in seeds))
        for value, cells in there.items()
        if seeds
    )
    whole = len({key for cells in there.values() for key in cells}) == len(seeds) * len(settings)
    return Slice(name, dict(where), tuple(others), made, whole)
