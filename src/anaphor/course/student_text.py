"""The texts of an exercise for one student: `{{name}}` stands for a value of the student's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from anaphor.config import nearest
from anaphor.course.sheet import Exercise
from anaphor.course.student_numbers import student_numbers, student_seed
from anaphor.errors import ConfigError

NAME = re.compile(r"\{\{(\w+)\}\}")


def student_values(exercise: Exercise, student: str) -> dict[str, str]:
    """What `{{name}}` stands for in the text and the commands of an exercise: inputs of its numbers, and the seed."""
    return {"seed": str(student_seed(student)), **student_numbers(exercise.id, student).given}


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with values in the place of their names."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            known = ", ".join(values)
            raise ConfigError(f"{match[0]} stands for nothing{nearest(name, values)} (known: {known})")
        return values[name]

    return NAME.sub(value, text)


def training_commands(exercise: Exercise, student: str) -> list[str]:
    """What the student types to make the runs of an exercise, and its other commands."""
    values = student_values(exercise, student)
    return [fill(one, values) for one in (*(run.command for run in exercise.runs), *exercise.commands)]


def check_commands(exercise: Exercise) -> list[str]:
    """What the student types to check the code of an exercise."""
    return [check.command(exercise.file) for check in exercise.checks]
