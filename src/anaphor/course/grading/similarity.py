"""Which submissions are alike: the same weights, or the same code up to names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from anaphor.course.grading.fingerprint import fingerprints
from anaphor.course.grading.record import Mark, Record
from anaphor.course.sheet import read_sheet

MAX_NAMED = 5
"""Students that a comment names."""


def flag_similar(records: Sequence[Record]) -> list[Record]:
    """The records with a flag and a comment where an exercise is as somebody else's. Points stay as they are."""
    code, weights = _owners(records, "code"), _owners(records, "weights")
    given = {sheet: _given_digests(sheet) for sheet in {record.sheet for record in records if record.sheet}}
    twice = _twice(records)
    flagged = []
    for record in records:
        marks = [_flag(mark, record, code, weights, given) for mark in record.marks]
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


def _flag(
    mark: Mark, record: Record, code: Owners, weights: Owners, given: Mapping[str, Mapping[str, set[str]]]
) -> Mark:
    notes = [*_notes(mark, record, code, weights, given[record.sheet])]
    if not notes:
        return mark
    flags = (*mark.flags, *dict.fromkeys(flag for flag, _ in notes))
    return replace(mark, flags=flags, comment="; ".join([mark.comment, *(text for _, text in notes)]))


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
