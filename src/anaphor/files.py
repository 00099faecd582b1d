"""Files of a run, a study or an export: written so that they survive a kill, and never through a link.

A reader finds the old content or the new, whole. A folder may have come from someone else, with a link in it that leads
to any file of the user. So all that writes, appends, renames or deletes inside a folder does it by these functions,
which refuse links. `within` is the folder that the user gave, which may be a link itself; the folder of the file where
it is not given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anaphor.errors import DataError

NO_LINK = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
"""Flags for opening a file that follow no link, do not wait for a pipe that nobody reads, and change no line end. Not
every system has each of them."""


def refuse_links(path: Path, within: Path) -> None:
    """Raise if `path`, or a folder between `within` and it, is a link."""
    for place in (path, *path.parents):
        if place == within:
            return
        if place.is_symlink():
            raise _link_error(place)


def _link_error(path: Path) -> DataError:
    return DataError(f"{path} is a link, and nothing is written through links: delete it, or put a copy in its place")


def _refuse_links_above(path: Path, within: Path | None) -> None:
    if within is not None:
        refuse_links(path.parent, within)


def open_file(path: Path, flags: int = os.O_WRONLY | os.O_TRUNC, *, within: Path | None = None) -> int:
    """A descriptor of a regular file to write to, which is created where there is none."""
    _refuse_links_above(path, within)
    flags |= os.O_CREAT | NO_LINK
    try:
        handle = os.open(path, flags, 0o666)
    except OSError:
        if path.is_symlink():
            raise _link_error(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{path} is not a regular file: nothing is written to it")
    return handle


def make_folder(path: Path, *, within: Path) -> None:
    """Create a folder and those above it, where they are missing."""
    refuse_links(path, within)
    path.mkdir(parents=True, exist_ok=True)


def delete(path: Path, *, within: Path | None = None) -> None:
    """Delete a file or a folder, if it is there; of a link, the link itself."""
    _refuse_links_above(path, within)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # follows no links
    else:
        path.unlink(missing_ok=True)


def rename(path: Path, target: Path, *, within: Path | None = None) -> None:
    """Rename a file or a folder; of a link, the link itself."""
    _refuse_links_above(path, within)
    _refuse_links_above(target, within)
    path.rename(target)


def read_at(handle: int, size: int, offset: int) -> bytes:
    """Up to so many bytes of an open file from a place on."""
    if hasattr(os, "pread"):
        return os.pread(handle, size, offset)
    os.lseek(handle, offset, os.SEEK_SET)  # Windows
    return os.read(handle, size)


def write_at(handle: int, content: bytes, offset: int) -> None:
    """Write bytes into an open file at a place."""
    if hasattr(os, "pwrite"):
        os.pwrite(handle, content, offset)
    else:
        os.lseek(handle, offset, os.SEEK_SET)
        os.write(handle, content)


def sync(path: Path) -> None:
    """fsync a file, or a folder's list of names."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders, and writes their names by itself
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes, *, within: Path | None = None) -> None:
    """Write a file and fsync it; its folder is not synced."""
    handle = open_file(path, within=within)
    try:
        _write_all(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(handle: int, content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(handle, remaining) :]


def append_file(path: Path, content: bytes, *, within: Path | None = None) -> None:
    """Append lines to a file, or leave it as it was. An incomplete last line is ended first."""
    is_new = not os.path.lexists(path)
    handle = open_file(path, os.O_RDWR | os.O_APPEND, within=within)
    try:
        before = os.fstat(handle).st_size
        try:
            with disk_space_checked(path, len(content)):
                is_line_open = before and read_at(handle, 1, before - 1) != b"\n"
                _write_all(handle, b"\n" + content if is_line_open else content)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink() if is_new else os.ftruncate(handle, before)
            raise
    finally:
        os.close(handle)


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
        free = shutil.disk_usage(folder).free
        disk = os.statvfs(folder) if hasattr(os, "statvfs") else None
    except OSError:
        return f"it needs {needed:,} bytes"
    if disk is not None and disk.f_files and not disk.f_favail and free > needed:
        return f"no inodes are free, so there is no room for another file, although {free:,} bytes are free"
    return f"it needs {needed:,} bytes, {free:,} are free"


def replace_file(path: Path, content: bytes, *, within: Path | None = None) -> None:
    """Replace the content of a file atomically, or leave it as it was. A link is replaced, not what it leads to."""
    _refuse_links_above(path, within)
    draft = path.with_name(f"{path.name}.tmp")
    try:
        with disk_space_checked(path, len(content)):
            draft.unlink(missing_ok=True)  # of a killed process, or a link
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

    safetensors writes a temporary file and renames it; such a file can be read by its owner alone. Where it fails, a
    file that was not there before is not left behind.
    """
    is_new = not os.path.lexists(path)
    handle = open_file(path, os.O_WRONLY)
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    os.close(handle)
    try:
        yield path
    except BaseException:
        if is_new:
            path.unlink(missing_ok=True)
        raise
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
