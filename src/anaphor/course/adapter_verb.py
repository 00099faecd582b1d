"""`anaphor adapter otter|nbgrader SHEET --out DIR`: the checks of a sheet as files of another grader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from anaphor.config import look_up
from anaphor.course.adapters import ADAPTERS
from anaphor.course.sheet import read_sheet
from anaphor.errors import ConfigError, count_noun
from anaphor.files import write_file
from anaphor.flags import Positional, parse
from anaphor.user_paths import writing_to


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write the checks of a sheet as test files of Otter or as cells of nbgrader.

    They run the check in the process of the student's code. A grader that must not be deceived is `anaphor grade`.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor adapter otter 002 --out tests",
        "anaphor adapter nbgrader 002 --out cells",
    )

    grader: Annotated[str, Positional("otter|nbgrader")]
    """Grader: otter (a test file for each exercise) or nbgrader (a notebook with a cell for each)."""
    sheet: Annotated[str, Positional("SHEET")]
    """Number of the sheet, 000 to 004."""
    out: Path | None = None
    """Folder to write."""
    json: bool = False
    """Print one JSON value: grader, sheet, out and files."""

    def __post_init__(self) -> None:
        look_up(ADAPTERS, self.grader, "grader")
        if self.out is None:
            raise ConfigError("an adapter needs a folder: give it with --out")


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor adapter")
    assert options.out is not None, "checked above"
    files = ADAPTERS[options.grader](read_sheet(options.sheet))
    with writing_to(options.out):
        for name, text in files.items():
            write_file(options.out / name, text.encode())
    if options.json:
        print(
            json.dumps({"grader": options.grader, "sheet": options.sheet, "out": str(options.out), "files": [*files]})
        )
    else:
        print(f"{count_noun(len(files), 'file')} in {options.out}: {', '.join(files)}")
    return 0
