"""`anaphor lab NAME`: run a lab, print its numbers and checks, draw its figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from anaphor.cli.table import print_line, print_table
from anaphor.config import look_up
from anaphor.draw import figure_lines
from anaphor.flags import Positional, parse
from anaphor.labs.lab import CURVES, LABS, Check, Outcome
from anaphor.user_paths import create_folder

MAX_LINE = 70  # characters next to a name
MAX_ITEMS = 10  # of a list in the table
ZERO = 1e-12  # rounding error; smaller numbers are printed as ~0
MAX_COLUMNS = 6


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run a lab: a claim about attention or recurrence, with numbers that show whether it holds.

    `anaphor lab list` lists the labs; `anaphor lab NAME --help` lists the inputs of one.
    """

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor lab list",
        "anaphor lab bptt --out figures",
    )

    lab: Annotated[str, Positional("NAME")]
    """A lab by name, or `list`."""
    json: bool = False
    """Print one JSON value."""


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every lab."""

    out: Path | None = None
    """Folder for the figures, as PNG, SVG and PDF. Without it nothing is drawn."""
    json: bool = False
    """Print one JSON value: lab, claim, holds, timing and numbers."""


@dataclass(frozen=True, kw_only=True)
class Threads:
    """For labs that have no setting of their own for it."""

    threads: int | None = None
    """CPU threads (all cores if not given)."""


def run(argv: Sequence[str]) -> int:
    argv = list(argv)
    if not argv or argv[0].startswith("-"):  # --help, a missing name, or options before the name
        argv.insert(0, parse(Options, argv, program="anaphor lab").lab)
        argv.pop(argv.index(argv[0], 1))
    name, *rest = argv
    if name == "list":
        return print_labs(parse(Options, argv, program="anaphor lab"))
    lab = look_up(LABS, name, "lab")
    about = f"{lab.spec.__doc__}\n\nClaim: {lab.claim}."
    own = {field.name for field in dataclasses.fields(lab.spec)}
    bases = (Common, lab.spec) if "threads" in own else (Common, Threads, lab.spec)
    kind = dataclasses.make_dataclass(
        "Inputs", [], bases=bases, namespace={"__doc__": about}, frozen=True, kw_only=True
    )
    options: Any = parse(kind, rest, program=f"anaphor lab {name}")
    inputs = {name: getattr(options, name) for name in own}
    if options.out is not None:
        create_folder(options.out)  # fail before the lab runs, not after
    if "threads" not in own:
        from anaphor.training.device import set_threads

        set_threads(options.threads)
    with show_status(f"running {name}"):
        outcome = lab.run(lab.spec(**inputs))
    written = [] if options.out is None else lab.draw(outcome, options.out)
    if options.json:
        print(json.dumps(outcome.to_plain(), allow_nan=False))
        return 0
    print_outcome(outcome, written)
    return 0


def show_status(what: str) -> AbstractContextManager[Any]:
    """A spinner on stderr while a lab runs, if stderr is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def print_labs(options: Options) -> int:
    if options.json:
        print(json.dumps([{"lab": name, "claim": lab.claim} for name, lab in LABS.items()]))
        return 0

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("lab", no_wrap=True)
    table.add_column("claim")
    for name, lab in LABS.items():
        table.add_row(name, lab.claim)
    print_table(Console(), table)
    return 0


def print_outcome(outcome: Outcome, written: Sequence[Path]) -> None:
    """The claim, the numbers, the checks, the verdict, the figures."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    print_line(console, Text(f"{outcome.lab}: {outcome.claim}\n"))
    single: dict[str, str] = {}
    for name, value in outcome.numbers.items():
        if name == CURVES:
            continue
        if isinstance(value, Mapping) and any(isinstance(one, Mapping) for one in value.values()):
            _print_table(console, name, value)
        elif isinstance(value, Mapping):
            line = ", ".join(f"{key} = {format_value(one)}" for key, one in value.items())
            short = len(line) <= MAX_LINE
            single |= {name: line} if short else {f"{name}, {key}": format_value(one) for key, one in value.items()}
        else:
            single[name] = format_value(value)
    if single:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for name, text in single.items():
            table.add_row(name, text)
        print_table(console, table, markup=False)
        console.print()
    checks = Table(box=None, pad_edge=False)
    checks.add_column("check")
    for heading in ("value", "required", "passed"):
        checks.add_column(heading, justify="right", no_wrap=True)
    for check in outcome.checks:
        checks.add_row(check.what, format_check(check), check.allowed, "yes" if check.kept else "no")
    print_table(console, checks, markup=False)
    console.print(f"\nholds: {'yes' if outcome.holds else 'no'}")
    if outcome.timing is not None:
        timed = [check.kept for check in outcome.checks if check.timed]
        failed = f"{timed.count(False)} of {len(timed)} checks of the time failed" if not all(timed) else ""
        note = outcome.timing_note or failed
        console.print(f"timing: {outcome.timing}{f' ({note})' if note else ''}", markup=False, soft_wrap=True)
    for path in figure_lines(written):
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


def _print_table(console: Any, name: str, rows: Mapping[str, Any]) -> None:
    from rich.table import Table

    columns = list(dict.fromkeys(key for row in rows.values() if isinstance(row, Mapping) for key in row))[:MAX_COLUMNS]
    table = Table(box=None, pad_edge=False)
    table.add_column(name)
    for column in columns:
        table.add_column(column, justify="right")
    for key, row in rows.items():
        table.add_row(str(key), *(format_value(row[column]) if column in row else "" for column in columns))
    print_table(console, table, markup=False)
    console.print()


def format_check(check: Check) -> str:
    """The value; ~0 for an error that is only rounding."""
    if isinstance(check.value, float) and check.allowed[0] in "≤<" and check.value < ZERO:
        return "~0"
    return format_value(check.value)


def format_value(value: Any) -> str:
    """A number with four significant digits, a short list in full, a long one by its length."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if 0 < abs(value) < ZERO:
            return "~0"
        return f"{value:z.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        text = "(" + ", ".join(map(format_value, value)) + ")"
        return text if len(value) <= MAX_ITEMS else f"{len(value)} numbers; --json prints them"
    return str(value)
