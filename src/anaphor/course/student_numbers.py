"""The numbers of any exercise and student. `handout` writes the inputs, `grade` compares the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anaphor.course.numbers import sheet_000, sheet_001, sheet_002, sheet_003, sheet_004
from anaphor.course.numbers.values import NumberMark, Numbers, mark_numbers, seed_random

TABLES = (sheet_000, sheet_001, sheet_002, sheet_003, sheet_004)
NUMBERS: Mapping[str, Callable[[str], Numbers]] = {
    name: make for module in TABLES for name, make in module.NUMBERS.items()
}
"""For each exercise with numbers of a student's own a function of the student's ID."""
SEEDS = 9000


def student_numbers(exercise: str, student: str) -> Numbers:
    """Inputs and results of an exercise for a student; without any where the exercise has none."""
    make = NUMBERS.get(exercise)
    return Numbers() if make is None else make(student)


def mark(exercise: str, student: str, found: Mapping[str, Any]) -> list[NumberMark]:
    """What a student wrote below an exercise in `numbers.yaml`, marked."""
    return mark_numbers(student_numbers(exercise, student), found)


def student_seed(student: str) -> int:
    """Seed of a student's trainings; 0 without an ID."""
    return seed_random("seed", student).randrange(1, SEEDS) if student else 0
