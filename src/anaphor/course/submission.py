"""A handout folder as a student left it: its `course.yaml`, and what is found in it.

    sheet: "002"
    student: ada            # empty where the handout was made without --student
    version: 1              # of the sheet
    files: [attention.py, …, answers.md, numbers.yaml]

`files` are those to fill in; runs and figures lie where their exercises say (`ExpectedRun.folder`, `Exercise.file`).
Nothing here runs what a student wrote, and nothing imports torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphor.config import nearest
from anaphor.course.numbers.values import find_misread, is_empty
from anaphor.course.sheet import ANSWERS, NUMBERS, Exercise, Sheet, read_sheet
from anaphor.course.student_numbers import student_numbers
from anaphor.errors import AnaphorError, ConfigError, DataError
from anaphor.files import write_file
from anaphor.yaml_files import dump_yaml, read_mapping

MANIFEST = "course.yaml"
PLACEHOLDER = "*(your answer)*"
"""What a handout has below a heading of `answers.md`; left there, the answer is empty."""
MANIFEST_VALUES: dict[str, tuple[type, str]] = {
    "sheet": (str, "the number of a sheet in quotes"),
    "student": (str, "an ID, or '' for none"),
    "version": (int, "a whole number"),
    "files": (list, "a list of names"),
}
"""What a manifest has."""
STUDENT = re.compile(r"[\w.@+-]{1,64}")
HEADING = re.compile(r"^## +(\d{3}\.\S+).*$", re.MULTILINE)
MAX_BYTES = 1_000_000
"""Of a file with answers."""


@dataclass(frozen=True)
class Submission:
    """A handout folder, by its manifest."""

    folder: Path
    sheet: Sheet
    student: str
    version: int
    files: tuple[str, ...]


def check_student(student: str) -> str:
    """An ID that may be part of a file name, or an error."""
    if student and (not STUDENT.fullmatch(student) or set(student) == {"."}):
        raise ConfigError(f"student={student!r} has other characters than letters, digits and . @ + - _, or over 64")
    return student


def write_manifest(folder: Path, sheet: Sheet, student: str, files: list[str]) -> None:
    values = {"sheet": sheet.number, "student": student, "version": sheet.version, "files": files}
    write_file(folder / MANIFEST, dump_yaml(values).encode())


def read_submission(folder: Path | str) -> Submission:
    """The submission in a folder, or an error of one line."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder} has no {MANIFEST}: it is no folder that `anaphor handout` made")
    values = _read_manifest(path)
    for name, (kind, described) in MANIFEST_VALUES.items():
        if not isinstance(values.get(name), kind):
            raise DataError(f"{path} has {name}={values.get(name)!r}; `anaphor handout` writes {described} there")
    files = tuple(map(str, values["files"]))
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DataError(f"{path} names {name!r}, which is not inside the folder")
    student = check_student(values["student"])
    return Submission(folder, read_sheet(values["sheet"]), student, values["version"], files)


def _read_manifest(path: Path) -> dict[str, Any]:
    """The values of a manifest. An ID or a sheet without its quotes, which YAML takes for a number, is text."""
    values = read_mapping(path)
    for name in ("sheet", "student"):
        if isinstance(values.get(name), int | float) and not isinstance(values[name], bool):
            text = path.read_text(encoding="utf-8")
            written = re.search(rf"^{name}:[ \t]*([^\s#]+)[ \t]*(#.*)?$", text, re.MULTILINE)
            if written:
                values[name] = written[1]
    return values


def read_student(folder: Path) -> str:
    """The ID in a manifest that may be wrong otherwise; empty where there is none."""
    try:
        return check_student(str(_read_manifest(folder / MANIFEST).get("student") or ""))
    except AnaphorError:
        return ""


def read_answers(submission: Submission) -> dict[str, str]:
    """Every answer in words by the id of its exercise, for all that have one; empty where nothing was written."""
    wanted = [exercise.id for exercise in submission.sheet.exercises if exercise.kind == "answer"]
    text = _read(submission.folder / ANSWERS)
    parts = HEADING.split(text)[1:]
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    return {name: _clean(found.get(name, "")) for name in wanted}


def _clean(answer: str) -> str:
    """An answer without the placeholder and the headings of the next part."""
    lines = [line for line in answer.splitlines() if not line.startswith("# ")]
    return "\n".join(lines).replace(PLACEHOLDER, "").strip()


def read_numbers(submission: Submission) -> dict[str, dict[str, Any]]:
    """What a student wrote into `numbers.yaml`, by exercise and name; without names where nothing was written."""
    path = submission.folder / NUMBERS
    values = read_mapping(path) if path.is_file() else {}
    wanted = [exercise.id for exercise in submission.sheet.exercises if exercise.kind == "number"]
    found = {name: values.get(name) for name in wanted}
    return {name: dict(value) if isinstance(value, dict) else {} for name, value in found.items()}


def list_missing(submission: Submission) -> list[str]:
    """The exercises for which nothing was handed in: without a number, an answer, a run, a figure or a file; and a line
    for each number that cannot be read. Code that is a stub still is there; `anaphor check` tells."""
    return [*list_empty(submission), *(f"{where}: {text}" for where, text in find_misread_numbers(submission))]


def find_misread_numbers(submission: Submission) -> list[tuple[str, str]]:
    """What in `numbers.yaml` is not of the form that is asked for: where, and why. No result is told."""
    try:
        values = read_numbers(submission)
        written = read_mapping(submission.folder / NUMBERS) if (submission.folder / NUMBERS).is_file() else {}
    except (AnaphorError, OSError, UnicodeDecodeError) as error:
        return [(NUMBERS, _in_folder(error, submission.folder))]
    known = [exercise.id for exercise in submission.sheet.exercises if exercise.kind == "number"]
    found = [(NUMBERS, f"there is no {name!r}{nearest(name, known)}") for name in written if name not in known]
    for exercise, own in values.items():
        if written.get(exercise) is not None and not isinstance(written[exercise], dict):
            found.append((exercise, f"{written[exercise]!r:.40} is not a list of names with their values"))
        numbers = student_numbers(exercise, submission.student)
        names = numbers.expected
        found += [(exercise, f"there is no {name!r}{nearest(str(name), names)}") for name in own if name not in names]
        is_begun = not all(map(is_empty, own.values()))
        for name in names:
            problem = find_misread(numbers, name, own.get(name))
            if not problem and is_begun and is_empty(own.get(name)):
                problem = "empty"
            found += [(f"{exercise} {name}", problem)] if problem else []
    return found


def _in_folder(error: Exception, folder: Path) -> str:
    """An error without the folder, in which the student is."""
    return " ".join(str(error).replace(f"{folder}/", "").split())


def list_empty(submission: Submission) -> list[str]:
    """The exercises for which nothing was handed in."""
    try:
        numbers = read_numbers(submission)
    except (AnaphorError, OSError, UnicodeDecodeError):
        numbers = {}
    answers, missing = read_answers(submission), list[str]()
    for exercise in submission.sheet.exercises:
        if exercise.kind == "number":
            found = not numbers or not all(map(is_empty, numbers[exercise.id].values()))
        elif exercise.kind == "answer":
            found = bool(answers[exercise.id])
        elif exercise.kind == "run":
            found = all((submission.folder / run.folder).is_dir() for run in exercise.runs)
        else:
            found = (submission.folder / exercise.file).is_file()
        missing += [] if found else [exercise.id]
    return missing


def find_code(submission: Submission, exercise: Exercise) -> Path | None:
    """The file in which the student's own is, if it is there."""
    path = submission.folder / exercise.file
    return path if path.is_file() else None


def _read(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")
