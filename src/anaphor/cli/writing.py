"""Where a verb writes: a folder that cannot be written to is told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anaphor.errors import DataError


def make(folder: Path) -> None:
    """The folder is there afterwards. Before anything that takes long, so that it is not in vain."""
    with writing(folder):
        pass


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """For all that is written into a folder of the user's, which is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(f"out={folder} cannot be written to: {error.strerror or error}") from None
