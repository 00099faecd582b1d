"""Grades as tables: our own, and those that Moodle, Canvas and Gradescope take."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anaphor.course.grading.record import Mark, Record
from anaphor.course.sheet import Exercise, read_sheet

COLUMNS = ("student", "exercise", "points", "max_points", "comment")
NOT_GRADED = "not graded: the submission cannot be read"
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
            rows.append(
                [record.student, "", "", "", f"not graded: {record.problem_line} [{', '.join(_flags(record))}]"]
            )
        for mark in record.marks:
            comment = f"{mark.comment} [{', '.join(mark.flags)}]" if mark.flags else mark.comment
            rows.append(
                [record.student, mark.exercise, show_points(mark.points), show_points(mark.max_points), comment]
            )
    return rows


def moodle(records: Sequence[Record]) -> Rows:
    """A row for each student: `ID number`, for each exercise its points and its feedback, and the total of a sheet."""
    exercises, sheets = _exercises(records), _sheets(records)
    header = ["ID number"]
    for exercise in exercises:
        header += [f"{exercise.id} {exercise.title}", f"{exercise.id} (feedback)"]
    rows: Rows = [[*header, *(total_name(sheet) for sheet in sheets)]]
    for student, marks in _by_student(records).items():
        row = [student]
        for exercise in exercises:
            mark = marks.get(exercise.id)
            row += ["", ""] if mark is None else [show_points(mark.points), mark.for_student]
        rows.append([*row, *(_total(marks, sheet) for sheet in sheets)])
    for student in _not_graded(records):
        rows.append([student, "", NOT_GRADED, *[""] * (len(rows[0]) - 3)])
    return rows


def canvas(records: Sequence[Record]) -> Rows:
    """A row for each student with the columns of Canvas, below a row of the points that are possible."""
    exercises, sheets = _exercises(records), _sheets(records)
    names = [*(f"{one.id} {one.title}" for one in exercises), *map(total_name, sheets)]
    possible = [*(one.points for one in exercises), *(read_sheet(sheet).points for sheet in sheets)]
    rows: Rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *names]]
    rows.append(["    Points Possible", "", "", "", "", *map(show_points, possible)])
    for student, marks in _by_student(records).items():
        found = [marks.get(one.id) for one in exercises]
        points = ["" if mark is None else show_points(mark.points) for mark in found]
        rows.append([student, "", "", student, "", *points, *(_total(marks, sheet) for sheet in sheets)])
    rows += [[student, "", "", student, "", *[""] * len(names)] for student in _not_graded(records)]
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
    for student in _not_graded(records):
        email = student if "@" in student else ""
        rows.append([student, "" if email else student, email, "", show_points(total), "Missing", *[""] * len(names)])
    return rows


LAYOUTS: Mapping[str, Callable[[Sequence[Record]], Rows]] = {
    "anaphor": own_layout, "moodle": moodle, "canvas": canvas, "gradescope": gradescope,
}  # fmt: skip


def gradescope_results(record: Record) -> dict[str, Any]:
    """What an autograder of Gradescope writes as `results.json`: one test for each exercise that has points."""
    tests = [
        {"name": mark.exercise, "score": mark.points, "max_score": mark.max_points, "output": mark.for_student}
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
            comment = f"not graded: {record.problem_line}"
            none = dict.fromkeys(("exercise", "points", "max_points"))
            rows.append({**known, **none, "comment": comment, "flags": _flags(record)})
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
    return [exercise for sheet in _sheets(records) for exercise in read_sheet(sheet).exercises]


def _sheets(records: Sequence[Record]) -> list[str]:
    return sorted({record.sheet for record in records if record.sheet})


def total_name(sheet: str) -> str:
    """The column with the points of a sheet."""
    return f"Sheet {sheet} (total)"


def _total(marks: Mapping[str, Mark], sheet: str) -> str:
    """The points of a sheet, those of a bonus included; empty as long as a person has to read something of it."""
    found = [marks.get(exercise.id) for exercise in read_sheet(sheet).exercises]
    points = [None if mark is None else mark.points for mark in found]
    return "" if None in points else show_points(round(sum(one or 0 for one in points), 2))


def _not_graded(records: Sequence[Record]) -> list[str]:
    """Students none of whose submissions can be read."""
    graded = {record.student for record in records if not record.problem}
    return [*dict.fromkeys(record.student for record in records if record.problem and record.student not in graded)]


def _flags(record: Record) -> list[str]:
    """Flags of a submission."""
    return ["not-graded", *record.flags] if record.problem else [*record.flags]


def chosen(records: Sequence[Record]) -> dict[tuple[str, str], Record]:
    """The submission that counts for each student and sheet where a table has one row: the last."""
    return {(record.student, record.sheet): record for record in records if not record.problem}


def _by_student(records: Sequence[Record]) -> dict[str, dict[str, Mark]]:
    """The row of each student."""
    found: dict[str, dict[str, Mark]] = {}
    for (student, _), record in chosen(records).items():
        found.setdefault(student, {}).update({mark.exercise: mark for mark in record.marks})
    return found
