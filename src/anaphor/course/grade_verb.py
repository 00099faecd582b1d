"""`anaphor grade FOLDER… --out grades.csv`: points and comments for submissions of a course sheet."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from anaphor.config import check_at_least, look_up
from anaphor.course.grading.by_hand import PROGRAM, merge_points, program_points, read_points, without_program
from anaphor.course.grading.sandbox import require_safe
from anaphor.course.grading.student_page import feedback_page, student_page
from anaphor.course.grading.tables import LAYOUTS, chosen, gradescope_results, rows_as_plain, show_points, write_table
from anaphor.errors import ConfigError, DataError, count_noun, print_warning
from anaphor.files import make_folder, replace_file
from anaphor.flags import Positional, parse
from anaphor.progress import terminal_progress
from anaphor.user_paths import writing_to

if TYPE_CHECKING:
    from anaphor.course.grading.grade import Progress
    from anaphor.course.grading.record import Record

FOR_STUDENTS = "for-students"
"""Folder among the reports with those that students may read."""
RESULTS = "-results.json"
UNSAFE_IN_NAMES = re.compile(r"[^\w.@+-]")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Grade submissions of a course sheet: handout folders as students left them.

    Code is compared with the references in a sandbox (bubblewrap), runs are scored again from their weights, numbers
    are compared with those of the student. Answers in words and figures are collected: a person has to read them. A
    second call grades only what has changed.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor grade submissions --out grades.csv",
        "anaphor grade submissions --out moodle.csv --reports grades --format moodle --points grades.csv",
    )

    folders: Annotated[tuple[Path, ...], Positional("FOLDER")]
    """Folder with one submission or many."""
    out: Path = Path("grades.csv")
    """CSV file to write."""
    format: Literal["anaphor", "moodle", "canvas", "gradescope"] = "anaphor"
    """Columns of the CSV file: anaphor (a row for each exercise), moodle, canvas or gradescope."""
    reports: Path | None = None
    """Folder for the reports and for what was graded (the name of --out without its ending if not given)."""
    seconds: float = 30.0
    """Seconds that a call of a student's code may take."""
    jobs: int | None = None
    """Submissions that are graded at once (one for each processor if not given)."""
    points: Path | None = None
    """CSV file with points given by hand (student, exercise, points, comment), such as a table with its empty cells
    filled in. They go before those of the program."""
    again: bool = False
    """Grade all submissions, also those that have not changed."""
    unsafe: bool = False
    """Without bubblewrap run the code of students with your own rights: it can read and change your files."""
    json: bool = False
    """Print one JSON value: a list of student, sheet, exercise, points, max_points, comment and flags."""

    def __post_init__(self) -> None:
        look_up(LAYOUTS, self.format, "format")
        check_at_least(1, jobs=1 if self.jobs is None else self.jobs, seconds=self.seconds)
        if not self.folders:
            raise ConfigError("grade needs a folder with submissions")


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor grade")
    if options.out.is_dir():
        raise ConfigError(f"out={options.out} is a folder: name a CSV file")
    is_safe = require_safe(unsafe=options.unsafe)

    from anaphor.course.grading.grade import Grading, grade_folders

    by_hand = {} if options.points is None else read_points(options.points)
    reports = options.out.with_suffix("") if options.reports is None else options.reports
    if reports == options.out:
        raise ConfigError(
            f"out={options.out} has no ending, which the folder of the reports is named without: use .csv"
        )
    if not is_safe:
        print_warning("without a sandbox the code of students can read and change your files")
    grading = Grading(reports, options.seconds, options.jobs or os.cpu_count() or 1, is_safe, options.again)
    with writing_to(options.out.parent), _show_progress() as progress:
        graded, number = grade_folders(options.folders, grading, progress)
        records, lines = merge_points(graded, without_program(by_hand, reports))
        lines += write_reports(records, reports, options.format)
        replace_file(options.out, write_table(records, options.format).encode())
        replace_file(reports / PROGRAM, program_points(graded))
    problems = [record.problem_line for record in records if record.problem]
    is_none = len(problems) == len(records)
    if is_none and len(problems) == 1:
        raise DataError(problems[0])
    for line in (*problems, *(f"{one.folder}: {line}" for one in records for line in one.warnings), *lines):
        print_warning(line)
    if is_none:
        raise DataError(f"none of {len(problems)} submissions can be graded")
    if options.json:
        print(json.dumps(rows_as_plain(records)))
    else:
        print_summary(records, options.out, reports, number)
    return 0


def write_reports(records: Sequence[Record], folder: Path, layout: str) -> list[str]:
    """A page of each submission for the teacher, and one for the student; for Gradescope also what its autograder
    writes. A line for each student with several submissions of a sheet."""
    own = folder / FOR_STUDENTS
    make_folder(own, within=folder)
    counted = chosen(records)
    names: dict[str, list[Record]] = {}
    for record in records:
        if record.problem:
            continue
        first = UNSAFE_IN_NAMES.sub("_", f"{record.student}-{record.sheet}")
        same = names.setdefault(first, [])
        same.append(record)
        name = first if len(same) == 1 else f"{first}-{len(same)}"
        replace_file(folder / f"{name}.html", student_page(record).encode("utf-8", "replace"))
        if counted[record.student, record.sheet] is record:
            replace_file(own / f"{first}.html", feedback_page(record).encode("utf-8", "replace"))
            if layout == "gradescope":
                replace_file(own / f"{first}{RESULTS}", json.dumps(gradescope_results(record)).encode())
    return [
        f"{same[-1].student} has {len(same)} submissions of sheet {same[-1].sheet}: in {FOR_STUDENTS}, and where a "
        f"student has one row, the last counts, {same[-1].folder}"
        for same in names.values()
        if len(same) > 1
    ]


def print_summary(records: Sequence[Record], out: Path, reports: Path, number: int) -> None:
    """A line for each submission."""
    graded = [record for record in records if not record.problem]
    width = max((len(record.student) for record in graded), default=0)
    for record in graded:
        possible = sum(mark.max_points for mark in record.marks)
        flags = dict.fromkeys((*record.flags, *(flag for mark in record.marks for flag in mark.flags)))
        read = f", {record.to_read} to be read" if record.to_read else ""
        flagged = f" [{', '.join(flags)}]" if flags else ""
        points = f"{show_points(round(record.points, 2))} of {show_points(possible)} points"
        print(f"{record.student:<{width}}  {record.sheet}  {points}{read}{flagged}")
    unchanged = sum(bool(record.digest) for record in records) - number
    kept = f", {unchanged} of them as before" if unchanged else ""
    print(f"{count_noun(len(graded), 'submission')} in {out}{kept}; reports in {reports}")


@contextlib.contextmanager
def _show_progress() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line now and then."""
    bars = terminal_progress()
    if bars is None:
        yield _print_line
        return
    with bars:
        task = bars.add_task("grading", total=None, note="")
        yield lambda done, total, name: bars.update(task, completed=done, total=total, note=name)


def _print_line(done: int, total: int, name: str) -> None:
    if done % 10 == 0 or done == total:
        print(f"{done} of {total} submissions done", file=sys.stderr)
