"""`anaphor models`: the model presets of all tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from anaphor.cli.imports import import_given
from anaphor.cli.table import print_table
from anaphor.config import MAX_VOCABULARY, check_at_least, check_range, look_up
from anaphor.flags import Positional, parse
from anaphor.registry import PRESETS, TASKS, Registry, import_object

if TYPE_CHECKING:
    from anaphor.training.task import ModelRow


@dataclass(frozen=True, kw_only=True)
class Options:
    """List model presets: layers, number of parameters, size of the state. Each task has a table of its own."""

    help_examples: ClassVar[tuple[str, ...]] = (
        "anaphor models",
        "anaphor models luong",
    )

    names: Annotated[tuple[str, ...], Positional("NAME…")] = ()
    """Model presets to show (all if not given)."""
    vocabulary: int = 33_278
    """Vocabulary size; the default is that of WikiText-2."""
    tokens: int = 1024
    """Number of tokens after which the size of the state is computed."""
    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers presets of your own; may be given several times."""
    json: bool = False
    """Print one JSON list."""

    def __post_init__(self) -> None:
        check_at_least(0, tokens=self.tokens)
        check_range(1, MAX_VOCABULARY, vocabulary=self.vocabulary)


def run(argv: Sequence[str]) -> int:
    import_given(argv)
    options = parse(Options, argv, program="anaphor models")
    every = [(task, name) for task in TASKS if task in PRESETS for name in PRESETS[task]]
    # Of tasks that have a preset of this name the first one.
    by_name = Registry("model", {name: (task, name) for task, name in reversed(every)})
    rows: dict[str, list[ModelRow]] = {}
    plain = []
    for task, name in [look_up(by_name, name, "model") for name in options.names] or every:
        row = _describe(task, name, options)
        rows.setdefault(task, []).append(row)
        plain.append(row.plain)
    if options.json:
        print(json.dumps(plain))
        return 0
    for number, task in enumerate(task for task in TASKS if task in rows):
        if number:
            print()
        _print(rows[task])
    return 0


def _describe(task: str, name: str, options: Options) -> ModelRow:
    from anaphor.training.task import ModelRow

    describe = TASKS[task].models
    if describe is None:
        return ModelRow({"name": name, "task": task}, {"model": name, "task": task}, {})
    row: ModelRow = import_object(describe)(name, options.vocabulary, options.tokens)
    return row


def _print(rows: Sequence[ModelRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in rows[0].text:
        table.add_column(heading, no_wrap=True)
    for heading in rows[0].numbers:
        table.add_column(heading, no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*row.text.values(), *row.numbers.values())
    console = Console()
    print_table(console, table)
    if rows[0].remark:
        console.print(rows[0].remark, style="dim")
    for note in [note for row in rows for note in row.notes]:
        console.print(note, style="dim")
