"""What commands print: tables and lines as wide as the terminal, and in a file or a pipe, which has no width, whole."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

MAX_LINE = 100_000


def print_table(console: Console, table: Table | Group, **options: Any) -> None:
    """Print a table; where no terminal ends them, its lines are as long as its cells need and no longer."""
    if _ends_at_a_terminal():
        console.print(table, **options)
        return
    room = console.options.update(max_width=MAX_LINE)
    console.width = max(console.width, console.measure(table, options=room).maximum)
    with console.capture() as captured:
        console.print(table, **options)
    for line in captured.get().removesuffix("\n").split("\n"):  # not splitlines, which knows ten ends of lines
        print(line.rstrip())


def print_line(console: Console, text: Text) -> None:
    """Print a text in a line, which only a terminal may break."""
    console.print(text, soft_wrap=not _ends_at_a_terminal())


def print_score(line: str) -> None:
    """Print a score with its signature. A terminal breaks a long one between words or behind a `|`."""
    if sys.stdout is not None and sys.stdout.isatty():
        line = wrap_signature(for_terminal(line, sys.stdout), shutil.get_terminal_size().columns)
    print(line, flush=True)


def wrap_signature(line: str, width: int) -> str:
    """A line with breaks between words or behind a `|`, continued with two more spaces."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    lines = [""]
    for piece in re.findall(r"[^ |]*[ |]|[^ |]+", line):
        if lines[-1].strip() and len(lines[-1] + piece.rstrip()) > width:
            lines.append(indent)
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


# All but tab and newline, and what reverses the direction of a text.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def for_terminal(text: str, stream: TextIO | None) -> str:
    """A text with its control codes escaped where a terminal would obey them; for a file or a pipe, as it is."""
    if stream is None or not stream.isatty():
        return text
    return _CONTROLS.sub(lambda code: repr(code[0])[1:-1] if code[0] > "\x9f" else f"\\x{ord(code[0]):02x}", text)


def _ends_at_a_terminal() -> bool:
    return sys.stdout is None or sys.stdout.isatty()
