"""Claims: which of the workers that share a folder works on what.

A claim on a name is a file `claims/NAME.1` that its holder creates, and that nobody else can create. Its holder writes
another number into it every few seconds for as long as it lives. Where a holder is gone, another worker creates
`NAME.2`, and so on: the highest number has the claim. No claim is ever deleted, so that of several workers that find a
dead holder only one succeeds it, and a holder that was only asleep sees that it was succeeded.

All that it needs of the folder is that a file can be created exclusively, and that a file that is opened has what was
written to it before, at most `STALE` seconds ago: so it is on local disks, NFS 3 and later, Lustre and GPFS. Neither
locks nor equal clocks are needed. On one machine a holder that was killed is succeeded at once; that of another is when
its claim has not changed for `STALE` seconds by the clock of the one that looks.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

from anaphor.errors import ConfigError
from anaphor.files import delete, make_folder, open_file

CLAIMS = "claims"  # folder of a study
BEAT = 5.0  # seconds between two signs of life
STALE = 120.0  # seconds without any: much longer than a folder takes to show them, or a cell to end after its study
RECORD_BYTES = 400
HELD, DONE, FREE = "held", "done", "free"  # states of a claim; free: given back before the work was done


class Sharing(Protocol):
    """How the work of a study is shared with other processes."""

    is_shared: bool

    def take(self, name: str) -> bool:
        """Claim a name, unless another one has it."""

    def release(self, name: str) -> None:
        """Give a claim back, because the work is done."""

    def is_done_by_other(self, name: str) -> bool:
        """Whether another one has claimed it since this one looked first, and has done the work."""

    def stays(self) -> bool:
        """Whether to wait for what others still do: the first one that is free waits for all, and reports. Others leave
        as soon as they know that it is alive."""

    def check(self) -> None:
        """Raise where another one has taken over the work of this one."""


class Alone:
    """All work is that of this process."""

    is_shared = False

    def take(self, name: str) -> bool:
        return True

    def release(self, name: str) -> None:
        pass

    def is_done_by_other(self, name: str) -> bool:
        return False

    def stays(self) -> bool:
        return True

    def check(self) -> None:
        pass


@dataclass(frozen=True)
class Holder:
    """A process that may hold a claim."""

    host: str
    place: str
    """The boot of a machine and the processes that can be seen there; empty where it is not known."""
    process: int
    start: str
    """When the process started, so that another one with its number is not taken for it."""

    def is_gone(self) -> bool | None:
        """Whether it has ended; None where that cannot be seen from here."""
        if not self.place or self.place != this_place():
            return None
        return start_of(self.process) != self.start

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


@dataclass(frozen=True)
class Claim:
    """A claim as its file has it."""

    number: int
    content: bytes
    holder: Holder | None = None
    """None where the file cannot be read: it is being written."""
    state: str = HELD


class Claims:
    """The claims of this process on names in a folder. Inside its block they are kept alive."""

    is_shared = True

    def __init__(
        self, folder: Path, report: str = "report", *, clock: Callable[[], float] = time.monotonic, beat: float = BEAT
    ) -> None:
        """`report` is the claim of the one that reports."""
        self.folder, self.report, self._clock, self._beat = folder / CLAIMS, report, clock, beat
        self._me = Holder(socket.gethostname(), this_place(), os.getpid(), start_of(os.getpid()))
        self._held: dict[str, int] = {}
        self._beats = 0
        self._first: dict[str, int] = {}
        """Number of each claim when this process began."""
        self._last: dict[str, int] = {}
        """Highest number of each claim that was seen."""
        self._seen: dict[tuple[str, int], tuple[bytes, float]] = {}
        """Content of the claims of others, and when it was first seen."""
        self._lost = ""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        make_folder(self.folder, within=folder)
        for path in list_claims(self.folder):
            self._first[path.stem] = max(self._first.get(path.stem, 0), int(path.suffix[1:]))

    def __enter__(self) -> Self:
        threading.Thread(target=self._keep_alive, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        with self._lock, suppress(OSError):
            for name, number in self._held.items():
                self._write(self._path(name, number), FREE)

    def take(self, name: str) -> bool:
        found = self._find(name)
        if name in self._held:
            return True
        if found is not None and not self._is_free(name, found):
            return False
        number = 1 if found is None else found.number + 1
        with self._lock:
            if not self._create(self._path(name, number)):
                return False
            self._held[name] = number
        return True

    def release(self, name: str) -> None:
        with self._lock:
            if name in self._held:
                self._write(self._path(name, self._held.pop(name)), DONE)

    def is_done_by_other(self, name: str) -> bool:
        found = self._find(name)
        return found is not None and found.state == DONE and found.number > self._first.get(name, 0)

    def stays(self) -> bool:
        if self.is_done_by_other(self.report):
            return False
        return self.take(self.report) or not self.is_held(self.report)

    def is_held(self, name: str) -> bool:
        """Whether another one is known to be alive that has the claim."""
        found = self._find(name)
        if found is None or found.state != HELD or name in self._held:
            return False
        gone = None if found.holder is None else found.holder.is_gone()
        if gone is not None:
            return not gone
        first, _ = self._seen.setdefault((name, found.number), (found.content, self._clock()))
        return first != found.content

    def find_holder(self, name: str) -> Holder | None:
        """The one that has the claim, or had it last."""
        found = self._find(name)
        return None if found is None else found.holder

    def check(self) -> None:
        if self._lost:
            raise ConfigError(
                f"another worker has taken over {self._lost}, because this process did nothing for more than "
                f"{STALE:.0f} seconds: start it again"
            )

    def _find(self, name: str) -> Claim | None:
        """The claim with the highest number; None where there is none."""
        number = self._last.get(name, 0)
        while self._path(name, number + 1).exists():
            number += 1
        self._last[name] = number
        return read_claim(self._path(name, number), number) if number else None

    def _is_free(self, name: str, found: Claim) -> bool:
        """Whether a claim was given back, or its holder is gone."""
        if found.state != HELD:
            return True
        gone = None if found.holder is None else found.holder.is_gone()
        if gone is not None:
            return gone
        key = (f"{name} unchanged", found.number)
        content, since = self._seen.get(key, (b"", 0.0))
        if content != found.content:
            self._seen[key] = (found.content, self._clock())
            return False
        return self._clock() - since > STALE

    def _path(self, name: str, number: int) -> Path:
        return self.folder / f"{name}.{number}"

    def _create(self, path: Path) -> bool:
        """Create a claim with its content at once; False where another one was faster."""
        draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
        self._write(draft, flags=os.O_TRUNC)
        try:
            os.link(draft, path)
        except FileExistsError:
            # The answer of a server that succeeded may be lost, and its second one says that the file is there.
            return os.path.samestat(os.stat(path), os.stat(draft))
        except OSError:  # a folder without hard links: the file is empty for a moment, and then not yet to be read
            try:
                os.close(open_file(path, os.O_WRONLY | os.O_EXCL))
            except FileExistsError:
                return False
            self._write(path)
        finally:
            delete(draft)
        return True

    def _write(self, path: Path, state: str = HELD, flags: int = 0) -> None:
        """Write the record of this process, always of the same length."""
        self._beats += 1
        record = {**vars(self._me), "beat": self._beats, "state": state}
        handle = open_file(path, os.O_WRONLY | flags)
        try:
            os.pwrite(handle, json.dumps(record).encode().ljust(RECORD_BYTES - 1) + b"\n", 0)
        finally:
            os.close(handle)

    def _keep_alive(self) -> None:
        while not self._ended.wait(self._beat):
            with self._lock, suppress(OSError):  # a full disk: the next one may succeed
                for name, number in self._held.items():
                    if self._path(name, number + 1).exists():
                        self._lost = name
                    else:
                        self._write(self._path(name, number))


def read_claim(path: Path, number: int) -> Claim:
    """A claim; without a holder where it is not readable."""
    try:
        content = path.read_bytes()[:RECORD_BYTES]
        found: Any = json.loads(content)
        holder = Holder(str(found["host"]), str(found["place"]), int(found["process"]), str(found["start"]))
        return Claim(number, content, holder, str(found["state"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return Claim(number, b"")


def list_claims(folder: Path) -> list[Path]:
    """The claims in their folder, which may be missing."""
    return [path for path in folder.glob("*.*") if path.suffix[1:].isdecimal()] if folder.is_dir() else []


def refuse_workers(folder: Path) -> None:
    """Raise where workers share this folder. Those of other machines are known by the time of their last sign of life,
    by the clock of the folder."""
    found = list(live_holders(folder))
    if found:
        raise ConfigError(
            f"{folder} is in use by workers ({found[0]}): join them with --worker, wait for them, or choose another "
            f"--out"
        )


def live_holders(folder: Path) -> Iterator[Holder]:
    claims = folder / CLAIMS
    paths = list_claims(claims)
    if not paths:
        return
    probe = claims / f".{secrets.token_hex(8)}.tmp"
    os.close(open_file(probe))
    now = probe.stat().st_mtime
    delete(probe)
    for path in paths:
        claim = read_claim(path, 0)
        if claim.state != HELD or claim.holder is None or now - path.stat().st_mtime > STALE:
            continue
        if not claim.holder.is_gone():
            yield claim.holder


@cache
def this_place() -> str:
    """This boot of this machine, and the processes that can be seen here: containers may share a machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_of(process: int) -> str:
    """When a process started; empty where it has ended, or is not known."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else fields[18]
