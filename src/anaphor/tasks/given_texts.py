"""Texts that a verb is given, as arguments or in a file. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anaphor.errors import ConfigError


def check_texts(texts: Sequence[str], file: Path | None) -> None:
    """Raise where a command is given no text, or texts and a file."""
    ways = "give texts behind the run, or a file with --file"
    if not texts and file is None:
        raise ConfigError(f"the text is missing: {ways} (- is standard input)")
    if texts and file is not None:
        raise ConfigError(f"{ways}, but not both")
