"""Paths that a user gave: refused in one line where no file can have that name, or where nothing can be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anaphor.errors import ConfigError, DataError


def user_path(given: Path | str) -> Path:
    """A path that a user gave, `~` expanded; an error where no file can have that name, whether it exists or not."""
    path = os.path.expanduser(given)
    shown = repr(str(given) if len(str(given)) <= 80 else f"{str(given)[:79]}…")
    if path.startswith("~"):
        raise ConfigError(f"{shown} cannot be used as a path: there is no user {path.partition('/')[0][1:80]!r}")
    try:
        os.lstat(path)
    except ValueError:  # a NUL character
        raise ConfigError(f"{shown} cannot be used as a path: it has a NUL character") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
            raise ConfigError(f"{shown} cannot be used as a path: {error.strerror}") from None
    return Path(path)


def is_path_like(name: str) -> bool:
    """Whether a name has a folder or an ending: nothing that is registered has one."""
    return os.sep in name or bool(Path(name).suffix)


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Create a folder of the user's and turn errors of writing into one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(f"out={folder} cannot be written to: {error.strerror or error}") from None


def create_folder(folder: Path) -> None:
    """Create a folder of the user's before a long computation, so that an error comes before it."""
    with writing_to(folder):
        pass
