"""Grades as tables: our own, and those that Moodle, Canvas and Gradescope take."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anaphor.course.grading.record import Mark, Record
from anaphor.course.sheet import Exercise, read_sheet

COLUMNS = ("student", "exercise", "points", "max_points", "comment")
Rows = list[list[str]]


def write_table(records: Sequence[Record], layout: str) -> str:
    """The text of a CSV file in a layout of `LAYOUTS`."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(
        [[_plain(cell) for cell in row] for row in LAYOUTS[layout](records)]
    )
    return file.getvalue()


def _plain(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    is_number = cell.replace(".", "", 1).lstrip("-").isdecimal()
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") and not is_number else cell


def own_layout(records: Sequence[Record]) -> Rows:
    """A row for each student and exercise."""
    rows: Rows = [[*COLUMNS]]
    for record in records:
        if record.problem:
            rows.append([record.student, "", "", "", f"not graded: {record.problem}"])
        for mark in record.marks:
            comment = f"{mark.comment} [{', '.join(mark.flags)}]" if mark.flags else mark.comment
            rows.append(
                [record.student, mark.exercise, show_points(mark.points), show_points(mark.max_points), comment]
            )
    return rows


def moodle(records: Sequence[Record]) -> Rows:
    """A row for each student: `ID number`, and for each exercise its points and its feedback."""
    exercises = _exercises(records)
    header = ["ID number"]
    for exercise in exercises:
        header += [f"{exercise.id} {exercise.title}", f"{exercise.id} (feedback)"]
    rows: Rows = [header]
    for student, marks in _by_student(records).items():
        row = [student]
        for exercise in exercises:
            mark = marks.get(exercise.id)
            row += ["", ""] if mark is None else [show_points(mark.points), mark.comment]
        rows.append(row)
    return rows


def canvas(records: Sequence[Record]) -> Rows:
    """A row for each student with the columns of Canvas, below a row of the points that are possible."""
    exercises = _exercises(records)
    rows: Rows = [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *(f"{one.id} {one.title}" for one in exercises)]
    ]
    rows.append(["    Points Possible", "", "", "", "", *(show_points(one.points) for one in exercises)])
    for student, marks in _by_student(records).items():
        found = [marks.get(one.id) for one in exercises]
        points = ["" if mark is None else show_points(mark.points) for mark in found]
        rows.append([student, "", "", student, "", *points])
    return rows


def gradescope(records: Sequence[Record]) -> Rows:
    """A row for each student with the columns of Gradescope's own table of grades."""
    exercises = _exercises(records)
    names = [f"{one.id} {one.title} ({show_points(one.points)} pts)" for one in exercises]
    rows: Rows = [["Name", "SID", "Email", "Total Score", "Max Points", "Status", *names]]
    total = sum(one.points for one in exercises if not one.bonus)
    for student, marks in _by_student(records).items():
        found = [marks.get(one.id) for one in exercises]
        sum_of = sum(mark.points or 0 for mark in found if mark is not None)
        is_whole = all(mark is not None and mark.points is not None for mark in found)
        email = student if "@" in student else ""
        rows.append([
            student, "" if email else student, email, show_points(sum_of), show_points(total),
            "Graded" if is_whole else "Ungraded",
            *("" if mark is None else show_points(mark.points) for mark in found),
        ])  # fmt: skip
    return rows


LAYOUTS: Mapping[str, Callable[[Sequence[Record]], Rows]] = {
    "anaphor": own_layout, "moodle": moodle, "canvas": canvas, "gradescope": gradescope,
}  # fmt: skip


def gradescope_results(record: Record) -> dict[str, Any]:
    """What an autograder of Gradescope writes as `results.json`: one test for each exercise that has points."""
    tests = [
        {"name": mark.exercise, "score": mark.points, "max_score": mark.max_points, "output": mark.comment}
        for mark in record.marks
        if mark.points is not None
    ]
    return {"tests": tests, "visibility": "after_published"}


def rows_as_plain(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Every row as JSON has it."""
    rows = list[dict[str, Any]]()
    for record in records:
        known: dict[str, Any] = {"student": record.student, "sheet": record.sheet}
        if record.problem:
            comment = f"not graded: {record.problem}"
            flags = ["not-graded", *record.flags]
            rows.append(
                {**known, "exercise": None, "points": None, "max_points": None, "comment": comment, "flags": flags}
            )
        for mark in record.marks:
            rows.append({
                **known, "exercise": mark.exercise, "points": mark.points, "max_points": mark.max_points,
                "comment": mark.comment, "flags": [*record.flags, *mark.flags],
            })  # fmt: skip
    return rows


def show_points(points: float | None) -> str:
    return "" if points is None else f"{points:g}"


def _exercises(records: Sequence[Record]) -> list[Exercise]:
    """Exercises of all sheets that were handed in, in their order."""
    sheets = sorted({record.sheet for record in records if record.sheet})
    return [exercise for sheet in sheets for exercise in read_sheet(sheet).exercises]


def _by_student(records: Sequence[Record]) -> dict[str, dict[str, Mark]]:
    """The row of each student; of an exercise that was handed in twice, the last."""
    found: dict[str, dict[str, Mark]] = {}
    for record in records:
        if not record.problem:
            found.setdefault(record.student, {}).update({mark.exercise: mark for mark in record.marks})
    return found
