"""A table for people: as wide as the terminal, and in a file, which has no width, every cell whole."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LONGEST = 100_000


def print_table(console: Console, table: Table, **options: Any) -> None:
    """Print a table; where no terminal ends them, its lines become as long as its cells need."""
    if sys.stdout is not None and not sys.stdout.isatty():
        console.width = max(console.width, _least(console, table))
    console.print(table, **options)


def _least(console: Console, table: Table) -> int:
    """The width below which cells would be cut off: the longest word of a column, or its longest cell."""
    room = console.options.update(max_width=LONGEST)
    for column in table.columns:
        if column.no_wrap:
            cells = (column.header, *column.cells)
            column.min_width = max(console.measure(cell, options=room).maximum for cell in cells)
    return console.measure(table, options=room).minimum
