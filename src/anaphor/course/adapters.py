"""Checks of a sheet for graders that exist: test files of Otter, and cells of nbgrader. Nothing here imports torch.

They call `assert_passes`, which needs Anaphor where they run. The student's code runs in the same process there: a
grader that must not be deceived is `anaphor grade`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pprint import pformat
from typing import Any

from anaphor.course.sheet import CodeCheck, Exercise, Sheet


def assert_passes(target: str, reference: str) -> None:
    """Raise an AssertionError with the mistakes of a class or function of a student's.

    Args:
        target: `FILE.py::NAME`.
        reference: What it is compared with, a name of `anaphor check list`.
    """
    from anaphor.course.catalog import find_reference
    from anaphor.course.check import check
    from anaphor.course.student import load_subject

    report = check(find_reference(reference), load_subject(target))
    assert report.passed, "; ".join(f"{one.name}: {one.text}" for one in report.mistakes)


def _lines(exercise: Exercise, check: CodeCheck) -> list[str]:
    return [
        "from anaphor.course.adapters import assert_passes",
        f"assert_passes({f'{exercise.file}::{check.name}'!r}, {check.reference!r})",
    ]


def _key(exercise: Exercise) -> str:
    """The ID as other graders allow it: letters, digits and underscores."""
    return re.sub(r"\W", "_", exercise.id)


def otter_files(sheet: Sheet) -> dict[str, str]:
    """A test file for each exercise with code, by its name: `q002_2a.py`."""
    files = {}
    for exercise in sheet.exercises:
        if exercise.checks:
            cases = [
                {"code": "\n".join(f">>> {line}" for line in _lines(exercise, check)), "hidden": False, "locked": False}
                for check in exercise.checks
            ]
            suite = {"cases": cases, "scored": True, "setup": "", "teardown": "", "type": "doctest"}
            test = {"name": f"q{_key(exercise)}", "points": exercise.points, "suites": [suite]}
            files[f"q{_key(exercise)}.py"] = f"OK_FORMAT = True\n\ntest = {pformat(test, sort_dicts=False)}\n"
    return files


def nbgrader_files(sheet: Sheet) -> dict[str, str]:
    """A notebook with a cell for each exercise with code, to be copied into an assignment: locked, with its points."""
    cells = [_nbgrader_cell(exercise) for exercise in sheet.exercises if exercise.checks]
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return {f"nbgrader-{sheet.number}.ipynb": json.dumps(notebook, indent=1) + "\n"}


def _nbgrader_cell(exercise: Exercise) -> dict[str, Any]:
    key = f"check_{_key(exercise)}"
    metadata = {
        "grade": True, "grade_id": key, "locked": True, "points": exercise.points, "schema_version": 3,
        "solution": False, "task": False,
    }  # fmt: skip
    lines = [line for check in exercise.checks for line in _lines(exercise, check)]
    source = [f"# {exercise.id} {exercise.title}", *dict.fromkeys(lines)]
    return {
        "cell_type": "code", "id": key, "metadata": {"nbgrader": metadata}, "execution_count": None, "outputs": [],
        "source": "\n".join(source).splitlines(keepends=True),
    }  # fmt: skip


ADAPTERS: Mapping[str, Callable[[Sheet], dict[str, str]]] = {"otter": otter_files, "nbgrader": nbgrader_files}
"""Files by the name of a grader."""
