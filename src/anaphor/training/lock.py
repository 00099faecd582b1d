"""A lock on a folder: one process at a time writes there, and another one is refused with its name."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from anaphor.errors import ConfigError
from anaphor.file_locks import lock_file
from anaphor.files import open_file, read_at, write_at

_MAX_HOLDER = 300  # bytes read from a lock file, which another program may have written
_TRIES, _PAUSE = 3, 0.02


@contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock, or raise at once and name its holder. The kernel releases it when its holder ends, however.

    Only the holder may delete the file.
    """
    while True:
        handle = open_file(path, os.O_RDWR)
        try:
            _lock(handle, what)
            # If its last holder deleted the file just now, two could hold locks on two files of one name.
            if _is_at(path, handle):
                since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
                os.ftruncate(handle, 0)
                write_at(handle, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
                yield
                return
        finally:
            os.close(handle)


def _lock(handle: int, what: str) -> None:
    for _ in range(_TRIES - 1):  # a page that shows the runs may look for a moment whether the lock is free
        with contextlib.suppress(BlockingIOError):
            lock_file(handle)
            return
        time.sleep(_PAUSE)
    try:
        lock_file(handle)
    except BlockingIOError:
        holder = read_at(handle, _MAX_HOLDER, 0).decode("utf-8", errors="replace")
        name = "".join(filter(str.isprintable, holder)) or "another process"
        raise ConfigError(f"{what} is in use by {name}: wait for it, stop it, or choose another --out") from None


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
