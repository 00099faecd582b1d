"""Files of a run: written so that they survive a kill. A reader finds the old content or the new, whole."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """fsync a file, or a folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Write a file and fsync it; its folder is not synced."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def append_file(path: Path, content: bytes) -> None:
    """Append lines to a file, or leave it as it was. An incomplete last line is ended first."""
    before = path.stat().st_size if path.exists() else None
    try:
        with disk_space_checked(path, len(content)), path.open("ab") as file:
            file.write(b"\n" + content if before and not ends_with_newline(path) else content)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink() if before is None else os.truncate(path, before)
        raise


def ends_with_newline(path: Path) -> bool:
    """Whether the last byte of a file is a line end. The file is not empty."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


@contextmanager
def disk_space_checked(path: Path, needed: int) -> Iterator[None]:
    """Where the disk is full, the error names the file and says how many bytes are needed and how many are free."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        reason = f"{os.strerror(error.errno)}; {describe_space(path.parent, needed)}"
        raise OSError(error.errno, reason, str(path)) from None


def describe_space(folder: Path, needed: int) -> str:
    """The bytes that are needed and those that are free; or that no more files fit, whatever is free."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return f"it needs {needed:,} bytes"
    free = disk.f_bavail * disk.f_frsize
    if disk.f_files and not disk.f_favail and free > needed:
        return f"no inodes are free, so that there is no room for another file, although {free:,} bytes are free"
    return f"it needs {needed:,} bytes, {free:,} are free"


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically, or leave it as it was."""
    draft = path.with_name(f"{path.name}.tmp")
    try:
        with disk_space_checked(path, len(content)):
            write_file(draft, content)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync(path.parent)


@contextmanager
def default_permissions(path: Path) -> Iterator[Path]:
    """A file that a library writes in this block gets the permissions of every new file, as the umask gives them.

    safetensors writes a temporary file and renames it; such a file can be read by its owner alone.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield path
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
