"""What a study measured, as plain data: one group for each setting, with one value for each seed that finished."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anaphor.errors import ConfigError

Axes = Mapping[str, Sequence[Any]]
GOALS = ("minimize", "maximize")


@dataclass(frozen=True)
class Metric:
    """What a study chooses by."""

    name: str
    """Shown at figures and tables, such as `validation perplexity`."""
    short: str
    """Used in sentences, such as `PPL`."""
    goal: str = "minimize"
    """Or `maximize`."""
    least: float = -math.inf
    """No value can be below this."""

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise ConfigError(f"goal={self.goal!r} is none: choose one of {', '.join(GOALS)}")

    def cost(self, value: float) -> float:
        """Less is better, whatever the goal."""
        return value if self.goal == "minimize" else -value


@dataclass(frozen=True)
class Group:
    """All seeds of one setting."""

    parameters: Mapping[str, Any]
    """Axis and value, in the order of the axes; a value is a number, a name, a bool or None."""
    seeds: tuple[int, ...]
    """Those that finished, in ascending order."""
    values: tuple[float, ...]
    """The metric for each of them."""
    note: str = ""
    """Why this is not comparable with the others; such a group is never ranked."""
    failed: int = 0
    """How many seeds have no value."""

    def __post_init__(self) -> None:
        assert len(self.seeds) == len(self.values), "one value for each seed"

    @property
    def ranked(self) -> bool:
        """Whether its mean is a number that may be compared."""
        return bool(self.values) and not self.note and all(map(math.isfinite, self.values))

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values) if self.values else math.nan

    def __str__(self) -> str:
        return label(self.parameters)


def best_of(groups: Sequence[Group], metric: Metric) -> Group | None:
    """The best of those with all their seeds, if any: a mean may be good because the bad seeds failed."""
    whole = [group for group in groups if group.ranked and not group.failed]
    return min(whole, key=lambda group: metric.cost(group.mean), default=None)


def told(value: Any) -> str:
    """A value of an axis as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(told, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def label(parameters: Mapping[str, Any]) -> str:
    """`width 256, layers 2`."""
    return ", ".join(f"{name} {told(value)}" for name, value in parameters.items()) or "the only setting"


def is_numeric(values: Sequence[Any]) -> bool:
    """Whether an axis is a scale: numbers have an order and distances, names have neither."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def varied(groups: Sequence[Group], axes: Axes) -> dict[str, list[Any]]:
    """The axes that tell groups apart: more than one value, and not merely another axis under a second name.

    Axes that were varied together (a width and a size of the embedding that equals it) are one axis. Numbers are in
    ascending order, names in the order they were given.
    """
    kept: dict[str, list[Any]] = {}
    for name, values in axes.items():
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1 and not any(_one_to_one(groups, name, other) for other in kept):
            kept[name] = sorted(distinct) if is_numeric(distinct) else distinct
    return kept


def _one_to_one(groups: Sequence[Group], name: str, other: str) -> bool:
    pairs = {(group.parameters[name], group.parameters[other]) for group in groups}
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    if not len(pairs) == len(set(first)) == len(set(second)):
        return False
    # A search never takes a number twice, on any axis: numbers that go together also rise or fall together.
    return not is_numeric(first + second) or [one for _, one in sorted(pairs)] in (sorted(second), sorted(second)[::-1])
