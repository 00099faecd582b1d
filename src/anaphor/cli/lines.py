"""Lines that a command is given: of a file, or of standard input where the file is called `-`."""

from __future__ import annotations

import sys
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    from anaphor.data.files import ADVICE_FOR_TEXT, StoredFile, decode_text, split_lines

    raw = sys.stdin.buffer.read() if str(path) == "-" else StoredFile(path).read()
    return split_lines(decode_text(raw, str(path), advice=ADVICE_FOR_TEXT))
