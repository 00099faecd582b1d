"""Tables and lines for people: as wide as the terminal, and in a file or a pipe, which has no width, whole."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

LONGEST = 100_000


def print_table(console: Console, table: Table, **options: Any) -> None:
    """Print a table; where no terminal ends them, its lines are as long as its cells need and no longer."""
    if _ends_at_a_terminal():
        console.print(table, **options)
        return
    room = console.options.update(max_width=LONGEST)
    console.width = max(console.width, console.measure(table, options=room).maximum)
    with console.capture() as captured:
        console.print(table, **options)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_line(console: Console, text: Text) -> None:
    """Print a text in a line, which only a terminal may break."""
    console.print(text, soft_wrap=not _ends_at_a_terminal())


def _ends_at_a_terminal() -> bool:
    return sys.stdout is None or sys.stdout.isatty()
