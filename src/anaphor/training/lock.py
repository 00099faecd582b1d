"""Lock: one process at a time. The kernel holds it, so that it is free the moment its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from anaphor.errors import ConfigError

_LONGEST_NAME = 300  # of a holder, in bytes: the file is read before anybody knows who wrote it


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock, or say at once who holds it. Nobody but its holder may delete the file."""
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
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, _LONGEST_NAME, 0).decode("utf-8", errors="replace")
        told = "".join(filter(str.isprintable, holder)) or "another process"
        raise ConfigError(f"{what} is in use by {told}: wait for it, stop it, or choose another --out") from None


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
