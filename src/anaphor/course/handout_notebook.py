"""The notebook of a handout: the exercises, with cells that run their commands and checks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from anaphor.course.handout_pages import HOW_TO, exercise_table, exercise_text, title_line
from anaphor.course.sheet import Exercise, Sheet
from anaphor.course.student_text import check_commands, training_commands

INSTALL = """\
# Installs Anaphor where it is missing, as in Colab. Upload a wheel and give its name, or name an index of your own.
SOURCE = "anaphor"  # or "anaphor-1.0.0-py3-none-any.whl"
try:
    import anaphor
except ModuleNotFoundError:
    %pip install -q {SOURCE}
    import anaphor
"""
FILES = """\
# Writes the files of the handout where they are missing, as in Colab: open them on the left, and hand in all of them.
from pathlib import Path

from anaphor.course.handout import make_handout
from anaphor.course.submission import list_missing, read_numbers, read_submission

here = Path()
if not (here / "course.yaml").is_file():
    make_handout({sheet}, here, student={student}, overwrite=True)
"""
NUMBERS = 'read_numbers(read_submission(here))["{exercise}"]  # what numbers.yaml has now'
MISSING = "# What is still empty\nlist_missing(read_submission(here))"


def notebook_name(sheet: Sheet) -> str:
    return f"sheet-{sheet.number}.ipynb"


def notebook(sheet: Sheet, student: str) -> str:
    """The notebook as JSON."""
    cells = [_cell(number, kind, source) for number, (kind, source) in enumerate(_sources(sheet, student))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _sources(sheet: Sheet, student: str) -> Iterator[tuple[str, str]]:
    """Kind and text of every cell."""
    yield "markdown", "\n\n".join((title_line(sheet, student), sheet.about.strip(), HOW_TO, exercise_table(sheet)))
    yield "code", INSTALL
    yield "code", FILES.format(sheet=repr(sheet.number), student=repr(student))
    for exercise in sheet.exercises:
        yield "markdown", exercise_text(exercise, student)
        yield from (("code", source) for source in _code(exercise, student))
    yield "code", MISSING


def _code(exercise: Exercise, student: str) -> list[str]:
    if exercise.kind == "number":
        return [NUMBERS.format(exercise=exercise.id)]
    return [f"!{command}" for command in (*training_commands(exercise, student), *check_commands(exercise))]


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    cell = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.strip().splitlines(keepends=True),
    }
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}
