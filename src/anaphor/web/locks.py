"""Whether a process holds the lock of a run or a study, found out without touching it.

To try the lock would be simpler, but a training that starts at this moment would have to wait. The kernel lists the
locks that are held here. Where it does not, the lock of a process that is alive is tried; for another machine, the
file's own line says who held it last.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from anaphor.file_locks import is_lockable
from anaphor.files import read_at
from anaphor.web.history import open_file

LOCK = ".lock"
RECENT = 600.0
"""Seconds: a run of another machine that wrote something since then is taken to be training. It saves every 5 minutes
unless told otherwise."""
_HOLDER = re.compile(r"process (\d{1,10}) on (\S+) since (.{10,40})\n")
_HELD = re.compile(r"^\d+: FLOCK +\S+ +WRITE +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", flags=re.MULTILINE)


@dataclass(frozen=True)
class Holder:
    """The process that took a lock last, as its file says."""

    process: int
    host: str
    since: float


def read_holder(folder: Path) -> Holder | None:
    """Who took the lock of a folder last; None where nothing legible says so."""
    try:
        handle = open_file(folder / LOCK)
    except OSError:
        return None
    try:
        line = read_at(handle, 300, 0).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(handle)
    found = _HOLDER.fullmatch(line)
    try:
        return found and Holder(int(found[1]), found[2], datetime.fromisoformat(found[3]).timestamp())
    except (ValueError, OverflowError):
        return None


class HeldLocks:
    """The locks that are held on this machine at one moment."""

    def __init__(self, table: Path = Path("/proc/locks")) -> None:
        self.by_file: dict[int, set[tuple[int, int]]] | None = None
        """By number of the file: process and device of each lock; None where the kernel has no list."""
        try:
            text = table.read_text(encoding="ascii", errors="replace")
        except OSError:
            return
        self.by_file = {}
        for process, major, minor, file in _HELD.findall(text):
            device = os.makedev(int(major, 16), int(minor, 16))
            self.by_file.setdefault(int(file), set()).add((int(process), device))

    def is_held(self, folder: Path, holder: Holder | None, written: float | None) -> bool:
        """Whether a living process holds the lock of a folder. `written` is when its newest file was, for a process of
        another machine; None where a result says that it is done."""
        try:
            status = os.lstat(folder / LOCK)
        except OSError:
            return False
        if self.by_file is not None:
            held = self.by_file.get(status.st_ino, set())
            # Some file systems have another device number here than in the kernel's list.
            if any(device == status.st_dev or (holder and process == holder.process) for process, device in held):
                return True
        if holder is None:
            return False
        if holder.host != socket.gethostname():
            return written is not None and time.time() - max(written, status.st_mtime) < RECENT
        return self.by_file is None and _is_alive(holder) and not _can_share(folder / LOCK)


def _can_share(path: Path) -> bool:
    """Whether the lock is free, tried for a moment: a training that starts meanwhile tries again."""
    try:
        handle = open_file(path)
    except OSError:
        return True
    try:
        return is_lockable(handle)
    finally:
        os.close(handle)


def _is_alive(holder: Holder) -> bool:
    """Whether the process runs that took the lock, and not a later one of the same number."""
    try:
        os.kill(holder.process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        pass
    try:
        fields = Path(f"/proc/{holder.process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # no such list here
        return True
    return time.time() - running <= holder.since + 2
