"""Points that a person has given, merged into those of the program.

They are in a CSV file with the columns `student`, `exercise` and `points`, and `comment` for the student where there
is one. A table of `anaphor grade` with its empty cells filled in is such a file: what it has from the program is told
by the points that the program gave when the table was written, and changes nothing.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anaphor.config import nearest
from anaphor.course.grading.record import TO_READ, Mark, Record
from anaphor.course.grading.tables import show_points
from anaphor.course.sheet import find_exercise
from anaphor.errors import AnaphorError, ConfigError, DataError

REQUIRED = ("student", "exercise", "points")
MAX_BYTES = 20_000_000
BY_HAND = "by hand"
PROGRAM = ".program.json"
"""File beside the reports with the points that the program gave, by student and exercise."""
FLAGS = re.compile(r" \[[a-z, -]+\]$")
NOTE = re.compile(rf"(^|; ){BY_HAND}(, the program gave .*)?$", re.DOTALL)


@dataclass(frozen=True)
class HandPoints:
    """Points of a person for one exercise of a student."""

    points: float
    comment: str
    """For the student; empty where there is none."""


ByHand = Mapping[tuple[str, str], HandPoints]
"""By student and exercise."""


def read_points(path: Path) -> ByHand:
    """The rows of a file that have points."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"points={path} has more than {MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"points={path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8: save the table as CSV UTF-8") from None
    first = text.partition("\n")[0]
    rows = list(csv.reader(io.StringIO(text), delimiter=";" if first.count(";") > first.count(",") else ","))
    columns = [name.strip().lower() for name in rows[0]] if rows else []
    for name in REQUIRED:
        if name not in columns:
            needed = f"it needs the columns {', '.join(REQUIRED)}"
            raise DataError(f"{path} has no column {name!r} ({needed}){nearest(name, columns)}")
    return dict(_read_rows(path, columns, rows[1:]))


def _read_rows(
    path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[tuple[tuple[str, str], HandPoints]]:
    seen: dict[tuple[str, str], int] = {}
    for number, cells in enumerate(rows, start=2):
        row = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
        student, exercise, points = (row.get(name, "") for name in REQUIRED)
        if not points:
            continue
        key = student.removeprefix("'"), exercise  # a cell that begins like a formula has this mark before it
        where = f"{path} line {number}"
        if key in seen:
            raise DataError(f"{where} gives points to {student} for {exercise}, as line {seen[key]} does: keep one")
        seen[key] = number
        yield key, HandPoints(_read_number(points, exercise, where), _own_comment(row.get("comment", "")))


def _read_number(text: str, exercise: str, where: str) -> float:
    try:
        most = find_exercise(exercise).points
    except AnaphorError as error:
        raise DataError(f"{where}: {error}") from None
    try:
        points = float(text.replace(",", "."))
    except ValueError:
        raise DataError(f"{where} has points={text!r}, which is no number") from None
    if not 0 <= points <= most:
        raise DataError(f"{where} has points={text}; {exercise} has 0 to {show_points(most)}")
    return points


def _own_comment(comment: str) -> str:
    """A comment without what the program adds; empty where the program says that a person has to read."""
    return "" if comment.startswith(TO_READ) else NOTE.sub("", FLAGS.sub("", comment.removeprefix("'")))


def without_program(given: ByHand, reports: Path) -> ByHand:
    """The rows of a person: without those that have what the program gave when the table was written."""
    try:
        known = json.loads((reports / PROGRAM).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return given
    return {key: hand for key, hand in given.items() if known.get(_key(*key)) != hand.points}


def program_points(records: Sequence[Record]) -> bytes:
    """What the program gave, for the next call."""
    found = {_key(record.student, mark.exercise): mark.points for record in records for mark in record.marks}
    return json.dumps(found).encode()


def _key(student: str, exercise: str) -> str:
    return f"{student} {exercise}"


def merge_points(records: Sequence[Record], given: ByHand) -> tuple[list[Record], list[str]]:
    """The records with points by hand, and a line for each that is not used or differs from the program's."""
    lines, used = list[str](), set[tuple[str, str]]()
    merged = []
    for record in records:
        marks = []
        for mark in record.marks:
            hand = given.get((record.student, mark.exercise))
            if hand is None:
                marks.append(mark)
                continue
            used.add((record.student, mark.exercise))
            if mark.points is not None and mark.points != hand.points:  # a person knows better, but should know
                own, found = show_points(hand.points), show_points(mark.points)
                lines.append(f"{record.student} {mark.exercise}: {own} by hand in place of {found}")
            marks.append(_merge(mark, hand))
        merged.append(replace(record, marks=tuple(marks)))
    known = {record.student for record in records if not record.problem}
    for student, exercise in given.keys() - used:
        guess = "" if student in known else nearest(student, known)
        lines.append(f"{student} {exercise}: points by hand, and no such submission{guess}")
    return merged, sorted(lines)


def _merge(mark: Mark, hand: HandPoints) -> Mark:
    comment = "" if hand.comment == mark.comment else hand.comment
    note = BY_HAND
    if mark.points is not None:
        note += f", the program gave {show_points(mark.points)}: {mark.comment}"
    feedback = comment or mark.for_student
    return replace(mark, points=hand.points, comment=f"{comment}; {note}" if comment else note, feedback=feedback)
