"""What a study varies: an axis with values one can list, or a range to search in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.studies.groups import told

DISTRIBUTIONS = {
    "uniform": "every number alike",
    "log_uniform": "every order of magnitude alike",
    "int_uniform": "every whole number alike",
    "int_log_uniform": "whole numbers, every order of magnitude alike",
}


@dataclass(frozen=True)
class Axis:
    """Values to be tried, and what each of them sets."""

    name: str
    values: tuple[Any, ...]
    """As tables and figures show them: numbers, names, True, False or None."""
    settings: tuple[Mapping[str, Any], ...]
    """Mostly one setting, the one that the axis is called after; a named variant may set several."""

    def to_plain(self) -> dict[str, Any]:
        if all(set(settings) == {self.name} for settings in self.settings):
            return {"values": [settings[self.name] for settings in self.settings]}
        return {"settings": {label: dict(said) for label, said in zip(self.values, self.settings, strict=True)}}


@dataclass(frozen=True)
class Range:
    """Numbers from the lowest to the highest, both included."""

    name: str
    low: float
    high: float
    distribution: str = "uniform"

    def __post_init__(self) -> None:
        look_up(DISTRIBUTIONS, self.distribution, "distribution")
        if not self.low < self.high:
            raise ConfigError(f"{self.name} goes from {self.low} to {self.high}: min must be below max")
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ConfigError(f"{self.name} goes from {self.low} to {self.high}: both must be finite")
        if self.whole and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise ConfigError(f"{self.name} goes from {self.low} to {self.high} in whole numbers: both must be whole")
        if self.logarithmic and self.low <= 0:
            raise ConfigError(f"{self.name} begins at {self.low}: on a logarithmic scale it must be above 0")

    def to_plain(self) -> dict[str, Any]:
        return {"min": self.low, "max": self.high, "distribution": self.distribution}

    @property
    def logarithmic(self) -> bool:
        return self.distribution in ("log_uniform", "int_log_uniform")

    @property
    def middle(self) -> float:
        return int(self.low + self.high) // 2 if self.whole else (self.low + self.high) / 2

    @property
    def whole(self) -> bool:
        return self.distribution in ("int_uniform", "int_log_uniform")


def read_axis(name: str, given: Any, path: Path) -> Axis | Range:
    """`{values: [...]}`, `{value: x}`, `{settings: {label: {...}}}`, or `{min, max, distribution}`."""
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: {name} holds `values: [...]`, not {given!r}")
    keys = set(given)
    if keys in ({"values"}, {"settings"}) and given[min(keys)] in ([], {}):
        raise ConfigError(f"{path}: {name} has no {min(keys)}: there must be at least one")
    if keys == {"values"} and isinstance(given["values"], list) and given["values"]:
        return plain_axis(name, given["values"], path)
    if keys == {"value"}:
        return plain_axis(name, [given["value"]], path)
    if keys == {"settings"} and isinstance(given["settings"], dict) and given["settings"]:
        for label, settings in given["settings"].items():
            if not isinstance(settings, dict):
                raise ConfigError(f"{path}: {name}, {label} holds settings, not {settings!r}")
        return Axis(name, tuple(given["settings"]), tuple(given["settings"].values()))
    if {"min", "max"} <= keys <= {"min", "max", "distribution"}:
        ends = [given["min"], given["max"]]
        if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            raise ConfigError(f"{path}: {name} goes from a number to a number, not from {ends[0]!r} to {ends[1]!r}")
        usual = "int_uniform" if all(isinstance(end, int) for end in ends) else "uniform"
        try:
            return Range(name, ends[0], ends[1], str(given.get("distribution", usual)))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    raise ConfigError(
        f"{path}: {name} holds {sorted(map(str, keys))}, but it needs a list of values, a value, named settings, "
        f"or min and max"
    )


def plain_axis(name: str, values: list[Any], path: Path | str = "") -> Axis:
    """An axis called after the setting that it varies; a list among the values is one value."""
    for value in values:
        if isinstance(value, dict | set):
            raise ConfigError(f"{path}: {name} takes numbers, names and lists of them, not {value!r}")
    labels = tuple(map(as_label, values))
    if len(set(labels)) < len(labels):
        raise ConfigError(f"{path}: {name} takes the same value twice: {', '.join(map(str, labels))}")
    return Axis(name, labels, tuple({name: value} for value in values))


def as_label(value: Any) -> Any:
    """A value that can be looked up: a list becomes one name, `[1, 0.5]`, with all digits of its numbers."""
    if not isinstance(value, list | tuple):
        return value
    return f"[{', '.join(str(item) if isinstance(item, float) else told(as_label(item)) for item in value)}]"
