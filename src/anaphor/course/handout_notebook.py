"""The notebook of a handout: the exercises, with cells for code, and cells that run commands and checks.

A cell for code writes the file of an exercise: with the stub, or in the teacher's copy with right code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from anaphor.course.handout_pages import HOW_TO, TIMES, exercise_table, exercise_text, title_line
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
    make_handout({sheet}, here, student={student}{teacher}, overwrite=True)
"""
WRITE_FILE = "%%writefile {file}\n{text}"
WORK_HERE = """\
In this notebook, code is written in the cells that begin with `%%writefile`: running one writes its file, and replaces
what was in it. If you would rather write in the files, leave these cells out."""
NUMBERS = 'read_numbers(read_submission(here))["{exercise}"]  # what numbers.yaml has now'
MISSING = "# What is still empty, or cannot be read\nlist_missing(read_submission(here))"


def notebook_name(sheet: Sheet) -> str:
    return f"sheet-{sheet.number}.ipynb"


def notebook(sheet: Sheet, student: str, code: Mapping[str, bytes], *, teacher: bool = False) -> str:
    """The notebook as JSON.

    Args:
        sheet: The sheet.
        student: Whose numbers it has.
        code: The Python files that its cells write.
        teacher: Whether it is of the teacher's copy.
    """
    sources = _sources(sheet, student, code, teacher)
    cells = [_cell(number, kind, source) for number, (kind, source) in enumerate(sources)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _sources(sheet: Sheet, student: str, code: Mapping[str, bytes], teacher: bool) -> Iterator[tuple[str, str]]:
    """Kind and text of every cell."""
    parts = [title_line(sheet, student), sheet.about.strip(), HOW_TO.strip(), *([WORK_HERE] if code else [])]
    yield "markdown", "\n\n".join((*parts, exercise_table(sheet), TIMES))
    yield "code", INSTALL
    as_teacher = ", teacher=True" if teacher else ""
    yield "code", FILES.format(sheet=repr(sheet.number), student=repr(student), teacher=as_teacher)
    written: set[str] = set()
    for exercise in sheet.exercises:
        yield "markdown", exercise_text(exercise, student)
        if exercise.kind == "code" and exercise.file in code and exercise.file not in written:
            written.add(exercise.file)
            yield "code", WRITE_FILE.format(file=exercise.file, text=code[exercise.file].decode())
        yield from (("code", source) for source in _commands(exercise, student))
    yield "code", MISSING


def _commands(exercise: Exercise, student: str) -> list[str]:
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
