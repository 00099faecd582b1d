"""Files that survive a kill: whoever looks finds the old content or the new, whole, never something between."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk and not on its way there."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk. Its name in the folder may still be on its way."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def append_file(path: Path, content: bytes) -> None:
    """Add lines to the end of a file, or leave it as it was. A line that was cut short is ended before them."""
    before = path.stat().st_size if path.exists() else None
    try:
        with room_for(path.parent, len(content)), path.open("ab") as file:
            file.write(b"\n" + content if before and not ends_a_line(path) else content)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink() if before is None else os.truncate(path, before)
        raise


def ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


@contextmanager
def room_for(folder: Path, needed: int) -> Iterator[None]:
    """Where the disk is full, the error says how many bytes were needed and how many there are."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(error.errno, f"{os.strerror(error.errno)}; it needs {needed:,} bytes{free(folder)}") from None


def free(folder: Path) -> str:
    """How much room there is, to be added to a sentence."""
    with contextlib.suppress(OSError):
        return f", {shutil.disk_usage(folder).free:,} are free"
    return ""


def replace_file(path: Path, content: bytes) -> None:
    """Give a file a new content, or leave it as it was."""
    draft = path.with_name(f"{path.name}.tmp")
    try:
        with room_for(path.parent, len(content)):
            write_file(draft, content)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync(path.parent)
