"""`anaphor leaderboard FOLDER…`: the runs of submissions, scored again and ranked, with ties."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from anaphor.course.grading.sandbox import Sandbox, require_safe
from anaphor.errors import AnaphorError, ConfigError, print_warning
from anaphor.files import replace_file
from anaphor.flags import Positional, parse
from anaphor.user_paths import writing_to

if TYPE_CHECKING:
    from anaphor.course.leaderboard import Board, Entry

SECONDS = 300.0
"""That scoring a run may take."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Rank the runs of submissions: scored again from their weights, with 95 % intervals, ties said as ties.

    Each run of a sheet has a board of its own. Runs on the same text are compared item by item; on texts of their own
    by their intervals. With --out the live page shows the boards: `anaphor serve FOLDER` of the same folder.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor leaderboard submissions",
        "anaphor leaderboard submissions --out submissions/leaderboard.json",
    )

    folders: Annotated[tuple[Path, ...], Positional("FOLDER")]
    """Folder with one submission or many."""
    out: Path | None = None
    """JSON file to write; as leaderboard.json in its folder the live page shows it."""
    unsafe: bool = False
    """Without bubblewrap read the runs of students with your own rights. No code of students runs."""
    json: bool = False
    """Print one JSON value: boards with title, metric, goal, same_items and entries (name, value, low, high, rank,
    tied, comment)."""

    def __post_init__(self) -> None:
        if not self.folders:
            raise ConfigError("leaderboard needs a folder with submissions")


def run(argv: Sequence[str]) -> int:
    options = parse(Options, argv, program="anaphor leaderboard")
    if options.out is not None and options.out.is_dir():
        raise ConfigError(f"out={options.out} is a folder: name a JSON file")
    is_safe = require_safe(unsafe=options.unsafe)
    boards = make_boards(options.folders, Sandbox(None, is_safe))
    if not boards:
        raise ConfigError(f"{options.folders[0]}: no submission has a run of its sheet")
    plain = [board.to_plain() for board in boards]
    if options.out is not None:
        with writing_to(options.out.parent):
            replace_file(options.out, json.dumps({"format": 1, "boards": plain}).encode())
    if options.json:
        print(json.dumps(plain))
        return 0
    for board in boards:
        print_board(board)
    return 0


def make_boards(folders: Sequence[Path], sandbox: Sandbox) -> list[Board]:
    """A board for each run of the sheets that were handed in."""
    from anaphor.course.grading.collect import find_submissions, take_snapshot
    from anaphor.course.grading.marks import rescore_submission
    from anaphor.course.leaderboard import Scored, make_board
    from anaphor.course.submission import read_submission

    found, notes = find_submissions([*folders])
    for line in notes:
        print_warning(line)
    runs: dict[tuple[str, str], list[Scored]] = {}
    metrics: dict[tuple[str, str], str] = {}
    for folder in found:
        with tempfile.TemporaryDirectory(prefix="anaphor-leaderboard-") as name:
            scratch = Path(name)
            take_snapshot(folder, scratch / "submission")
            try:
                submission = read_submission(scratch / "submission")
            except AnaphorError as error:
                print_warning(str(error).replace(str(scratch / "submission"), str(folder)))
                continue
            answers = rescore_submission(submission, sandbox, scratch, SECONDS, losses=True)
            for exercise in submission.sheet.exercises:
                for expected in exercise.runs:
                    if expected.folder in answers:
                        key = exercise.id, expected.folder
                        metrics[key] = expected.metric
                        student = submission.student or folder.name
                        runs.setdefault(key, []).append(Scored(student, answers[expected.folder]))
    return [make_board(f"{key[0]}: {key[1]}", metrics[key], runs[key]) for key in sorted(runs)]


def print_board(board: Board) -> None:
    """A board as a table."""
    compared = "item by item" if board.same_items else "by their intervals, each on a text of its own"
    print(f"{board.title} ({board.metric}, compared {compared})")
    width = max(len(entry.name) for entry in board.entries)
    for entry in board.entries:
        print(f"  {describe_entry(entry, width)}")


def describe_entry(entry: Entry, width: int) -> str:
    """A line of a board."""
    if entry.value is None:
        return f"  –  {entry.name:<{width}}  not scored: {entry.comment}"
    interval = "" if entry.low is None or entry.high is None else f"  [{entry.low:.4g}, {entry.high:.4g}]"
    tied = f"  tied with {', '.join(entry.tied)}" if entry.tied else ""
    comment = f"  ({entry.comment})" if entry.comment else ""
    return f"{entry.rank:>3}  {entry.name:<{width}}  {entry.value:.4g}{interval}{tied}{comment}"
