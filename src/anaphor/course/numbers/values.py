"""Numbers of a student: the inputs that a text shows, the results, and whether those of a student are right.

A value is a number, a word, or a list of values. A number may be written as a fraction ("1/12"). Many inputs have more
than one right answer (a query that selects a value): there a judge looks at what was given.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

TOLERANCE = 0.01
"""Relative difference that a number may have: two digits, rounded, or three."""
ABSOLUTE = 5e-4
LARGE_EXPONENT = re.compile(r"[eE][+-]?[\d_]{4}")


@dataclass(frozen=True)
class Numbers:
    """Inputs and results of one exercise for one student."""

    given: Mapping[str, str] = field(default_factory=dict)
    """What the text of the exercise shows in place of {{name}}."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """What `numbers.yaml` should have, by name; where many values are right, one of them."""
    judge: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
    """Where many values are right: what is wrong with each name, empty if nothing."""


@dataclass(frozen=True)
class NumberMark:
    """Whether one number is right."""

    name: str
    is_right: bool
    comment: str
    """What is wrong, without the result; empty if nothing is."""


def seed_random(topic: str, student: str) -> random.Random:
    """Random numbers that depend on these two alone, on every machine."""
    return random.Random(f"{topic}/{student}")  # seeded with the SHA-512 of the text


def mark_numbers(numbers: Numbers, found: Mapping[str, Any]) -> list[NumberMark]:
    """Every number of an exercise that was asked for, marked."""
    parsed = {name: parse_value(found.get(name)) for name in numbers.expected}
    wrong: Mapping[str, str] = {}
    complete = {name: value for name, value in parsed.items() if value is not None}
    if numbers.judge is not None:
        wrong = numbers.judge(complete)
    marks = []
    for name, expected in numbers.expected.items():
        if parsed[name] is None:
            comment = "empty" if found.get(name) in (None, "", []) else "not a number, a word, or a list of them"
        elif numbers.judge is not None:
            comment = wrong.get(name, "")
        else:
            comment = compare(parsed[name], parse_value(expected))
        marks.append(NumberMark(name, not comment, comment))
    return marks


def parse_value(value: Any) -> Any:
    """A value with fractions as numbers; None where it is no value."""
    if isinstance(value, list | tuple):
        parts = [parse_value(part) for part in value]
        return None if not parts or any(part is None for part in parts) else parts
    if isinstance(value, bool):
        return "yes" if value else "no"  # as YAML reads these words
    if isinstance(value, int | float | Fraction):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str) and value.strip():
        if LARGE_EXPONENT.search(value):
            return None  # its digits would fill the memory
        try:
            return float(Fraction(value.strip().replace(" ", "").replace("−", "-")))
        except OverflowError:
            return None
        except (ValueError, ZeroDivisionError):
            return " ".join(value.casefold().split())
    return None


def compare(found: Any, expected: Any) -> str:
    """What is wrong with a parsed value, without the result; empty if nothing is."""
    if _shape(found) != _shape(expected):
        return f"it is {_describe(found)}; expected: {_describe(expected)}"
    return "" if _is_close(found, expected) else "not right"


def _is_close(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return all(_is_close(one, other) for one, other in zip(found, expected, strict=True))
    if isinstance(expected, str):
        return bool(found == expected)
    return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=ABSOLUTE)


def _shape(value: Any) -> Any:
    return [_shape(part) for part in value] if isinstance(value, list) else type(value)


def describe_value(value: Any) -> str:
    """What kind of value it is, without what it is: "a number", "a list of 2"."""
    return _describe(parse_value(value))


def _describe(value: Any) -> str:
    if not isinstance(value, list):
        return "a word" if isinstance(value, str) else "a number"
    if value and isinstance(value[0], list):
        return f"a list of {len(value)} lists of {'/'.join(sorted({str(len(_as_list(row))) for row in value}))}"
    return f"a list of {len(value)}"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def plain_fraction(value: Any) -> Any:
    """A value as `numbers.yaml` has it: fractions as text, other numbers as they are."""
    if isinstance(value, list | tuple):
        return [plain_fraction(part) for part in value]
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else str(value)
    return round(value, 6) if isinstance(value, float) else value


def show(value: Any) -> str:
    """A value as a text shows it: `(1, 2)`, `[[1, 0], [0, 1]]`."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(show, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
