"""Axes of a study: lists of values, or ranges to search in; and its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphor.config import look_up
from anaphor.errors import ConfigError

DISTRIBUTIONS = {
    "uniform": "uniform",
    "log_uniform": "uniform in the logarithm",
    "int_uniform": "uniform integers",
    "int_log_uniform": "integers, uniform in the logarithm",
}
MAX_SEEDS = 1000


@dataclass(frozen=True)
class Axis:
    """Values to try, and the settings of each."""

    name: str
    values: tuple[Any, ...]
    """As shown in tables and figures: numbers, names, True, False or None."""
    settings: tuple[Mapping[str, Any], ...]
    """Usually the one setting that the axis is named after; a named variant may have several."""

    def to_plain(self) -> dict[str, Any]:
        if all(set(settings) == {self.name} for settings in self.settings):
            return {"values": [settings[self.name] for settings in self.settings]}
        return {"settings": {label: dict(given) for label, given in zip(self.values, self.settings, strict=True)}}


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    name: str
    low: float
    high: float
    distribution: str = "uniform"

    def __post_init__(self) -> None:
        look_up(DISTRIBUTIONS, self.distribution, "distribution")
        given = f"{self.name}: min={self.low}, max={self.high}"
        if not self.low < self.high:
            raise ConfigError(f"{given}: min must be below max")
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ConfigError(f"{given}: both must be finite")
        if self.is_integer and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise ConfigError(f"{given}: distribution {self.distribution} needs integers")
        if self.is_log and self.low <= 0:
            raise ConfigError(f"{given}: on a logarithmic scale min must be above 0")

    def to_plain(self) -> dict[str, Any]:
        return {"min": self.low, "max": self.high, "distribution": self.distribution}

    @property
    def is_log(self) -> bool:
        return self.distribution in ("log_uniform", "int_log_uniform")

    @property
    def is_integer(self) -> bool:
        return self.distribution in ("int_uniform", "int_log_uniform")

    @property
    def middle(self) -> float:
        return int(self.low + self.high) // 2 if self.is_integer else (self.low + self.high) / 2


def read_axis(name: str, given: Any, path: Path) -> Axis | Range:
    """`{values: [...]}`, `{value: x}`, `{settings: {label: {...}}}`, or `{min, max, distribution}`."""
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: {name}={given!r}: write `{name}: {{values: [...]}}`")
    keys = set(given)
    if keys in ({"values"}, {"settings"}) and given[min(keys)] in ([], {}):
        raise ConfigError(f"{path}: {name} has no {min(keys)}: give at least one")
    if keys == {"values"} and isinstance(given["values"], list) and given["values"]:
        return make_axis(name, given["values"], path)
    if keys == {"value"}:
        return make_axis(name, [given["value"]], path)
    if keys == {"settings"} and isinstance(given["settings"], dict) and given["settings"]:
        for label, settings in given["settings"].items():
            if not isinstance(settings, dict):
                raise ConfigError(f"{path}: {name}, {label}: {settings!r} must be a mapping of settings")
        # YAML reads some names as dates, which neither JSON nor a table has.
        labels = (label if isinstance(label, str | int | float | None) else str(label) for label in given["settings"])
        return Axis(name, tuple(labels), tuple(given["settings"].values()))
    if {"min", "max"} <= keys <= {"min", "max", "distribution"}:
        ends = [given["min"], given["max"]]
        if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            raise ConfigError(f"{path}: {name}: min={ends[0]!r}, max={ends[1]!r}: both must be numbers")
        default = "int_uniform" if all(isinstance(end, int) for end in ends) else "uniform"
        try:
            return Range(name, ends[0], ends[1], str(given.get("distribution", default)))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    raise ConfigError(f"{path}: {name} has {', '.join(map(str, given))}: it needs values, settings, or min and max")


def make_axis(name: str, values: list[Any], path: Path | str = "") -> Axis:
    """An axis named after the setting that it varies; a list among the values is one value."""
    where = f"{path}: " if path else ""
    for value in values:
        if isinstance(value, dict | set):
            raise ConfigError(f"{where}{name}: {value!r} must be a number, a name or a list of them")
    labels = tuple(map(to_label, values))
    if len(set(labels)) < len(labels):
        raise ConfigError(f"{where}{name} has a duplicate value: {', '.join(map(str, labels))}")
    return Axis(name, labels, tuple({name: value} for value in values))


def to_label(value: Any) -> Any:
    """A hashable value: a list becomes a name such as `[1, 0.5]`, with all digits of its numbers."""
    if not isinstance(value, list | tuple):
        return value
    return f"[{', '.join(str(item) if isinstance(item, float) else format_value(to_label(item)) for item in value)}]"


def format_value(value: Any) -> str:
    """A value of an axis for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(format_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_setting(parameters: Mapping[str, Any]) -> str:
    """`width 256, layers 2`."""
    return ", ".join(f"{name} {format_value(value)}" for name, value in parameters.items()) or "the only setting"


def read_seeds(given: Any) -> tuple[int, ...]:
    """A list of seeds, or their number."""
    if type(given) is int and given > MAX_SEEDS:
        raise ConfigError(f"seeds={given} is more than {MAX_SEEDS:,} seeds; a file has one seed as `seeds: [{given}]`")
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return tuple(range(given))
    if not isinstance(given, list) or not all(type(item) is int for item in given):
        raise ConfigError(f"seeds={given!r}: give the number of seeds, at least 1, or a list of integers")
    return tuple(given)
