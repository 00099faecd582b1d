"""The flag `--import FILE`: a Python file with parts of a user's own, executed before anything may name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anaphor.flags import split_argv
from anaphor.imported_files import ImportedFile, import_file

FLAG = "--import"


@dataclass(frozen=True)
class ImportOptions:
    """The flag of every verb that takes parts of a user's own."""

    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})


def import_given(argv: Sequence[str]) -> list[ImportedFile]:
    """Import the files that --import names."""
    given, _ = split_argv(ImportOptions, argv)
    return [import_file(path) for path in given.get("imports", ())]


def split_leading_imports(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments from the verb on, and the `--import FILE` that stand before it."""
    place = 0
    while place < len(argv) and argv[place].partition("=")[0] == FLAG:
        place += 2 if argv[place] == FLAG else 1
    return list(argv[place:]), list(argv[:place])


def without_imports(argv: Sequence[str]) -> list[str]:
    """The arguments without `--import FILE`."""
    return split_argv(ImportOptions, argv)[1]
