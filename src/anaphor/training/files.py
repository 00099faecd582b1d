"""Files that survive a kill: a reader finds the old content or the new, whole. A lock: one process at a time. And names
that a file may have, and paths of data."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from anaphor.errors import ConfigError

MAX_NAME = 60  # characters
_NAME = re.compile(rf"\w[\w .,+=@()-]{{0,{MAX_NAME - 1}}}")


def check_name(name: str, what: str) -> None:
    """Raise for a name that cannot be the name of one file or folder on every system."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what}={name[:80]!r}: a name begins with a letter or a digit and has at most {MAX_NAME} letters, digits "
            f"and characters of ' .,+=@()_-'"
        )


def existing_paths(data: str) -> list[Path]:
    """A folder or a file, or two files with a comma between them; empty where there are none."""
    # Not Path.exists, which raises an OSError for names that no file can have.
    whole = Path(os.path.expanduser(data))
    if os.path.exists(whole):
        return [whole]
    for comma in re.finditer(",", data):
        both = [Path(os.path.expanduser(half)) for half in (data[: comma.start()], data[comma.end() :])]
        if all(map(os.path.isfile, both)):
            return both
    return []


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


_LONGEST_HOLDER = 300  # bytes read from a lock file, which another program may have written
_TRIES, _PAUSE = 3, 0.02


@contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock, or raise at once and name its holder. The kernel releases it when its holder ends, however.

    Only the holder may delete the file.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle, what)
            # If its last holder deleted the file just now, two could hold locks on two files of one name.
            if _is_at(path, handle):
                since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
                yield
                return
        finally:
            os.close(handle)


def _lock(handle: int, what: str) -> None:
    for _ in range(_TRIES - 1):  # a page that shows the runs may look for a moment whether the lock is free
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_PAUSE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, _LONGEST_HOLDER, 0).decode("utf-8", errors="replace")
        name = "".join(filter(str.isprintable, holder)) or "another process"
        raise ConfigError(f"{what} is in use by {name}: wait for it, stop it, or choose another --out") from None


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
