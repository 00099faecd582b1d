"""The flag `--import FILE`: a Python file with parts of a user's own, executed before anything may name them."""

from __future__ import annotations

from collections.abc import Sequence

from anaphor.flags import values_of
from anaphor.registry import ImportedFile, import_file

FLAG = "--import"


def import_given(words: Sequence[str]) -> list[ImportedFile]:
    """Import the files that --import names."""
    return [import_file(path) for path in values_of(FLAG, words)]


def split_leading_imports(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words from the verb on, and the `--import FILE` that stand before it."""
    place = 0
    while place < len(words) and words[place].partition("=")[0] == FLAG:
        place += 2 if words[place] == FLAG else 1
    return list(words[place:]), list(words[:place])


def without_imports(words: Sequence[str]) -> list[str]:
    """The words without `--import FILE`."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == FLAG:
            next(rest, None)
        elif not word.startswith(f"{FLAG}="):
            kept.append(word)
    return kept
