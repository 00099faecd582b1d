"""`anaphor handout SHEET --out DIR`: the folder of a sheet for one student, or the teacher's copy of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.course.handout import make_handout
from anaphor.course.handout_pages import SOLUTIONS, show_points
from anaphor.course.sheet import read_sheet, sheet_numbers
from anaphor.errors import ConfigError, count_noun
from anaphor.flags import Positional, parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write the handout of a course sheet: exercises, stubs, data, checks and a notebook, without solutions.

    `anaphor handout list` lists the sheets. Numbers, texts and seeds are derived from --student, so that each student
    has other results of the same exercises.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor handout 001 --student ada --out sheet-001-ada",
        "anaphor handout 001 --student ada --teacher --out solved/ada",
    )

    sheet: Annotated[str, Positional("SHEET")]
    """Number of the sheet, 000 to 004, or `list`."""
    out: Path | None = None
    """Folder to write; it must be empty or new."""
    student: str = ""
    """ID of the student, from which data, texts and numbers are derived."""
    teacher: bool = False
    """Write the teacher's copy: with solutions, this student's results and a rubric."""
    overwrite: bool = False
    """Replace the handout in a folder that is not empty, with what was written into its files; other files stay."""
    json: bool = False
    """Print one JSON value: sheet, student, teacher, out and files; of `list` number, title, exercises and points."""


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor handout")
    if options.sheet == "list":
        return print_sheets(options)
    read_sheet(options.sheet)  # first, because an unknown sheet is the likelier mistake
    if options.out is None:
        raise ConfigError("a handout needs a folder: give it with --out")
    files = make_handout(
        options.sheet, options.out, student=options.student, teacher=options.teacher, overwrite=options.overwrite
    )
    if options.json:
        names = {"sheet": options.sheet, "student": options.student, "teacher": options.teacher}
        print(json.dumps({**names, "out": str(options.out), "files": files}))
    else:
        first = SOLUTIONS if options.teacher else "README.md"
        print(f"{count_noun(len(files), 'file')} in {options.out}; begin with {options.out / first}")
    return 0


def print_sheets(options: Options) -> int:
    sheets = [read_sheet(number) for number in sheet_numbers()]
    if options.json:
        listed = [
            {"number": one.number, "title": one.title, "exercises": len(one.exercises), "points": one.points}
            for one in sheets
        ]
        print(json.dumps(listed))
        return 0
    for one in sheets:
        print(f"{one.number}  {one.title} ({count_noun(len(one.exercises), 'exercise')}, {show_points(one.points)})")
    return 0
