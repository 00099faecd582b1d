"""Lines that a command is given: of a file, or of standard input where the file is called `-`."""

from __future__ import annotations

import sys
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    from anaphor.data.pair_source import lines_of
    from anaphor.data.reading import text_of
    from anaphor.data.stored import StoredFile

    raw = sys.stdin.buffer.read() if str(path) == "-" else StoredFile(path).read()
    return lines_of(text_of(raw, str(path), cure="convert it to UTF-8"))
