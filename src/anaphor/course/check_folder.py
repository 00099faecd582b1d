"""Check the form of a handout folder before it is handed in: what is missing, and what cannot be read.

Nothing here says whether a result is right, nothing of the folder is executed, and torch is not imported.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from anaphor.course.check_report import CheckReport, Finding
from anaphor.course.placeholder import find_placeholder
from anaphor.course.sheet import Exercise
from anaphor.course.submission import Submission, find_misread_numbers, list_empty, read_submission

PACKAGES = ("torch", "numpy", "anaphor")
"""What code may import beside Python's standard library and its neighbors: the rest may be missing where it is
graded."""
IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
"""How files of images begin."""


def check_folder(folder: Path) -> CheckReport:
    """What is missing in a handout folder, and what cannot be read, a finding each."""
    submission = read_submission(folder)
    empty = list_empty(submission)
    findings = [Finding("missing", name, "nothing is handed in yet") for name in empty]
    findings += [Finding("misread", where, text) for where, text in find_misread_numbers(submission)]
    for file in submission.sheet.code_files:
        if (folder / file).is_file():
            findings += _check_code(submission, folder / file)
    for exercise in submission.sheet.exercises:
        if exercise.kind == "figure" and exercise.id not in empty:
            findings += _check_figure(exercise, folder / exercise.file)
    checked = [f"{kind}s" for kind in dict.fromkeys(exercise.kind for exercise in submission.sheet.exercises)]
    return CheckReport(str(folder), f"sheet {submission.sheet.number}", tuple(findings), tuple(checked))


def _check_code(submission: Submission, path: Path) -> Iterator[Finding]:
    """Whether a file can be imported, as far as its text tells, and what of it waits for code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        yield Finding("syntax-error", f"{path.name}:{line}" if line else path.name, getattr(error, "msg", str(error)))
        return
    for node, package in _imported(tree):
        is_beside = (path.parent / f"{package}.py").is_file() or (path.parent / package).is_dir()
        if package not in (*sys.stdlib_module_names, *PACKAGES) and not is_beside:
            text = f"it imports {package}, which may be missing where it is graded: use torch, NumPy and Python's own"
            yield Finding("other-package", f"{path.name}:{node.lineno}", text)
    defined = {getattr(node, "name", "") for node in tree.body}
    defined |= {one.id for node in tree.body for one in ast.walk(node) if isinstance(one, ast.Name)}
    for exercise in submission.sheet.exercises:
        for check in exercise.checks if exercise.file == path.name else ():
            placeholder = find_placeholder(path, check.name)
            if placeholder is not None:
                yield Finding("not-written", placeholder.where, f"{exercise.id} waits for code: {placeholder.source}")
            elif check.name not in defined:
                yield Finding("missing", exercise.id, f"{path.name} has no {check.name}")


def _imported(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Imports, and the packages that they name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, name.name.partition(".")[0]) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module.partition(".")[0]


def _check_figure(exercise: Exercise, path: Path) -> Iterator[Finding]:
    with path.open("rb") as file:
        start = file.read(8)
    if not any(start.startswith(known) for known in IMAGES):
        yield Finding("misread", exercise.file, f"{exercise.id} is no image that a report can show: use PNG or JPEG")
