"""Which submissions are alike: the same weights, the same code up to names, the same answers or figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from anaphor.course.grading.fingerprint import fingerprints
from anaphor.course.grading.record import Mark, Record
from anaphor.course.sheet import read_sheet
from anaphor.course.student_text import fill, student_values

MAX_NAMED = 5
"""Students that a comment names."""
MIN_ANSWER = 40
"""Characters of an answer from which on it is compared: short ones are written alike by many."""


def flag_similar(records: Sequence[Record]) -> list[Record]:
    """The records with a flag and a comment where an exercise is as somebody else's. Points stay as they are."""
    code, weights, texts = _owners(records, "code"), _owners(records, "weights"), _texts(records)
    given = {sheet: _given_digests(sheet) for sheet in {record.sheet for record in records if record.sheet}}
    twice = _twice(records)
    flagged = []
    for record in records:
        marks = [
            _flag(mark, [*_notes(mark, record, code, weights, given[record.sheet]), *_text_notes(mark, record, texts)])
            for mark in record.marks
        ]
        flags = (*record.flags, *(["same-student"] if (record.student, record.sheet) in twice else []))
        flagged.append(replace(record, marks=tuple(marks), flags=flags))
    return flagged


Owners = Mapping[tuple[str, str, str], list[str]]


def _owners(records: Sequence[Record], kind: Literal["code", "weights"]) -> Owners:
    """Students by sheet, exercise and digest."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        for place, digest in getattr(record, kind).items():
            exercise = place.partition("::")[0]
            students = found.setdefault((record.sheet, exercise, digest), [])
            if record.student not in students:
                students.append(record.student)
    return found


def _twice(records: Sequence[Record]) -> set[tuple[str, str]]:
    """Student and sheet of submissions that there are more than once."""
    keys = [(record.student, record.sheet) for record in records if record.sheet]
    return {key for key in keys if keys.count(key) > 1}


def _given_digests(sheet: str) -> dict[str, set[str]]:
    """Digests of what the handout gives, and of the teacher's solutions."""
    folder = read_sheet(sheet).folder
    return {
        name: {
            digest
            for path in sorted((folder / name).rglob("*.py"))
            for digest in fingerprints(path.read_bytes()).values()
        }
        for name in ("stubs", "solutions")
    }  # fmt: skip


def _flag(mark: Mark, notes: Sequence[tuple[str, str]]) -> Mark:
    """The row with flags and a longer comment. The student's stays as it is: it names nobody else."""
    if not notes:
        return mark
    flags = (*mark.flags, *dict.fromkeys(flag for flag, _ in notes))
    comment = "; ".join([mark.comment, *(text for _, text in notes)])
    return replace(mark, flags=flags, comment=comment, feedback=mark.for_student)


def _texts(records: Sequence[Record]) -> Owners:
    """Students by sheet, exercise and what they wrote or drew."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        for mark in record.marks:
            for key in _text_keys(mark, record):
                students = found.setdefault((record.sheet, mark.exercise, key), [])
                if record.student not in students:
                    students.append(record.student)
    return found


def _text_keys(mark: Mark, record: Record) -> list[str]:
    """An answer in words without its spacing, and a figure byte by byte; not numbers, which are a student's own."""
    is_answer = mark.handed_in and read_sheet(record.sheet).find(mark.exercise).kind == "answer"
    text = _plain(mark.handed_in) if is_answer else ""
    return [one for one in (text if len(text) >= MIN_ANSWER else "", mark.figure) if one]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _text_notes(mark: Mark, record: Record, texts: Owners) -> Iterator[tuple[str, str]]:
    for key in _text_keys(mark, record):
        others = [one for one in texts[record.sheet, mark.exercise, key] if one != record.student]
        kind = "figure" if key == mark.figure else "answer"
        if others:
            yield f"same-{kind}", f"the {kind} is the same as that of {_name(others)}"
        if kind == "answer":
            exercise = read_sheet(record.sheet).find(mark.exercise)
            solution = fill(exercise.solution, student_values(exercise, record.student)) if exercise.solution else ""
            if _plain(solution) == key:
                yield "same-as-solution", "the answer is the solution word by word"


def _notes(
    mark: Mark, record: Record, code: Owners, weights: Owners, given: Mapping[str, set[str]]
) -> Iterator[tuple[str, str]]:
    """Flags of an exercise, with a comment each."""
    for place, digest in record.code.items():
        exercise, _, name = place.partition("::")
        if exercise != mark.exercise or digest in given["stubs"]:
            continue
        others = [one for one in code[record.sheet, exercise, digest] if one != record.student]
        if others:
            yield "same-code", f"{name} is the same code up to names as that of {_name(others)}"
        if digest in given["solutions"]:
            yield "same-as-solution", f"{name} is the same code up to names as the solution"
    for place, digest in record.weights.items():
        exercise, _, run = place.partition("::")
        others = [one for one in weights[record.sheet, exercise, digest] if one != record.student]
        if exercise == mark.exercise and others:
            yield "same-weights", f"{run} has the same weights as that of {_name(others)}"


def _name(students: Sequence[str]) -> str:
    rest = len(students) - MAX_NAMED
    return ", ".join(students[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
