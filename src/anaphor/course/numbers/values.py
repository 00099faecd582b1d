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

DIGITS = 3
"""Significant digits that are asked for."""
TOLERANCE = 0.01
"""Relative difference that a number may have that is not whole: three digits differ by half of it at most, and the rest
is for what was rounded on the way. Whole numbers must be equal."""
SMALL = 5e-4
"""Difference that a number may have beside the largest of its list, and from zero."""
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
    are_letters: bool = False
    """Whether each value is a letter of options, or several of them."""


@dataclass(frozen=True)
class NumberMark:
    """Whether one number is right."""

    name: str
    is_right: bool
    comment: str
    """What is wrong, without the result; empty if nothing is."""
    is_misread: bool = False
    """Whether it is no value of the kind that is asked for, so that nothing was compared."""


def seed_random(topic: str, student: str) -> random.Random:
    """Random numbers that depend on these two alone, on every machine."""
    return random.Random(f"{topic}/{student}")  # seeded with the SHA-512 of the text


def mark_numbers(numbers: Numbers, found: Mapping[str, Any]) -> list[NumberMark]:
    """Every number of an exercise that was asked for, marked."""
    misread = {name: find_misread(numbers, name, found.get(name)) for name in numbers.expected}
    parsed = {name: parse_value(found.get(name)) for name in numbers.expected}
    complete = {name: value for name, value in parsed.items() if value is not None and not misread[name]}
    wrong = {} if numbers.judge is None else numbers.judge(complete)
    marks = []
    for name, expected in numbers.expected.items():
        comment = "empty" if is_empty(found.get(name)) else misread[name]
        if not comment and numbers.judge is not None:
            comment = wrong.get(name, "")
        elif not comment:
            comment = "" if _is_close(parsed[name], expected) else "not right"
        marks.append(NumberMark(name, not comment, comment, bool(misread[name])))
    return marks


def is_empty(value: Any) -> bool:
    """Whether nothing was written."""
    return value in (None, "", [])


def find_misread(numbers: Numbers, name: str, found: Any) -> str:
    """What is wrong with the form of a value; empty if nothing is, or if there is none. The result is not told."""
    if is_empty(found):
        return ""
    expected, parsed = parse_value(numbers.expected[name]), parse_value(found)
    if numbers.are_letters:
        is_right = parsed is not None and all(isinstance(one, str) for one in _as_list(parsed))
        letters = "".join(map(str, _as_list(parsed))) if is_right else "-"
        is_right = bool(re.fullmatch(r"[ ,;.()]*([a-h][ ,;.()]*)+", letters))
    else:
        is_right = _shape(parsed) == _shape(expected)
    return "" if is_right else f"{_show_given(found)} is not {describe_kind(numbers, name)}"


def describe_kind(numbers: Numbers, name: str) -> str:
    """What a value should be, with an example: "a list of 2 numbers, as in [1, 2]"."""
    if numbers.are_letters:
        return "a letter of the options, or several, as in b or ad"
    value = parse_value(numbers.expected[name])
    if isinstance(value, str):
        return "a word"
    if not isinstance(value, list):
        return "a number, as in 18528, 0.125 or 1/8"
    if isinstance(value[0], list):
        return f"{_describe(value)}, as in [[1, 2], [3, 4]]"
    return f"{_describe(value)} number{'s' if len(value) > 1 else ''}, as in [1, 2]"


def _show_given(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


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


def _is_close(found: Any, expected: Any, largest: float | None = None) -> bool:
    """Whether a parsed value is right: whole numbers exactly, others by their first digits."""
    if isinstance(expected, list | tuple):
        largest = largest_of(expected) if largest is None else largest
        return all(_is_close(one, other, largest) for one, other in zip(found, expected, strict=True))
    wanted = parse_value(expected)
    if isinstance(wanted, str):
        return bool(found == wanted)
    if isinstance(expected, int) or (isinstance(expected, Fraction) and expected.denominator == 1):
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return math.isclose(found, wanted, rel_tol=TOLERANCE, abs_tol=SMALL * (largest or abs(wanted) or 1))


def largest_of(values: Any) -> float:
    """The largest absolute value of a list of numbers, or of lists; 0 of words."""
    if isinstance(values, list | tuple):
        return max(map(largest_of, values), default=0.0)
    value = parse_value(values)
    return abs(value) if isinstance(value, float) else 0.0


def _shape(value: Any) -> Any:
    return [_shape(part) for part in value] if isinstance(value, list) else type(value)


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
