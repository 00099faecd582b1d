"""Files that live upstream: found on disk, or fetched, with a checksum, a progress bar, and from where a try broke."""

from __future__ import annotations

import fcntl
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphor.data import cache
from anaphor.data.stored import StoredFile
from anaphor.errors import DataError

VARIABLE = "ANAPHOR_DATA"
# Seconds without a byte after which a connection is given up.
PATIENCE = 30.0
BLOCK = 1 << 16


@dataclass(frozen=True)
class Stored:
    """A file as it is sent."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """What is known of a file before it is here."""

    file: str
    """Its name in the folder of its data set."""
    url: str
    """Where it lives."""
    sha256: str
    """Digest of its text, decompressed."""
    bytes: int
    """Length of that text."""
    packed: Stored | None = None
    """The gzip file, where it is compressed upstream."""

    @property
    def stored(self) -> Stored:
        """What a download brings."""
        return self.packed or Stored(self.sha256, self.bytes)

    @property
    def stored_name(self) -> str:
        """What that is called on disk."""
        return f"{self.file}.gz" if self.packed else self.file


@dataclass(frozen=True)
class NamedFile:
    """A file of a named data set: in `$ANAPHOR_DATA`, else in the user's cache, else downloaded to there."""

    data: str
    """Name of the data set, which is the name of its folder."""
    upstream: Upstream

    def places(self) -> list[Path]:
        """Where the file is looked for, in this order, compressed or not: with or without `.gz` at its end."""
        roots = [Path(chosen).expanduser()] if (chosen := os.environ.get(VARIABLE)) else []
        return [root / self.data / self.upstream.stored_name for root in (*roots, self.kept.parents[1])]

    @property
    def kept(self) -> Path:
        """Where a download goes."""
        return cache.folder() / "data" / self.data / self.upstream.stored_name

    def found(self) -> Path | None:
        """The file on disk, if it is there."""
        for place in self.places():
            for path in (place.with_name(self.upstream.file), place.with_name(f"{self.upstream.file}.gz")):
                if path.is_file():
                    return path
        return None

    def path(self) -> Path:
        """The file on disk, downloaded if need be."""
        return self.found() or fetch(self)

    def read(self) -> bytes:
        path = self.path()
        raw = StoredFile(path).read()
        self._check(path)
        return raw

    def digest(self) -> str:
        self._check(self.path())
        return self.upstream.sha256

    def _check(self, path: Path) -> None:
        # A published number is about the published text. Whoever has changed it may still name the folder.
        digest = StoredFile(path).digest()
        if digest != self.upstream.sha256:
            raise DataError(
                f"{path} is not {self.data}'s {self.upstream.file}: its SHA-256 is {digest[:12]}…, not "
                f"{self.upstream.sha256[:12]}…; remove it, or give the path of its folder instead of the name"
            )

    def __str__(self) -> str:
        return str(self.found() or f"{self.data}/{self.upstream.file}")


def fetch(file: NamedFile) -> Path:
    """Download to the user's cache. What a broken try has left is continued."""
    import pooch

    pooch.get_logger().setLevel("WARNING")  # our own bar tells more
    upstream, target = file.upstream, file.kept
    try:
        with _alone(target), progress_bar(f"{file.data}/{upstream.file}", upstream.stored.bytes) as advance:
            pooch.retrieve(
                upstream.url,
                known_hash=f"sha256:{upstream.stored.sha256}",
                fname=target.name,
                path=target.parent,
                downloader=Resuming(upstream.stored.bytes, partial_of(target), advance),
            )
    except ValueError:
        # pooch's word for a checksum that differs.
        raise DataError(
            f"{upstream.url} gave another file than {file.data}'s {upstream.file}: its SHA-256 differs; it was not kept"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        places = " or ".join(str(place) for place in file.places())
        hint = "" if os.environ.get(VARIABLE) else f" (a folder named by ${VARIABLE} is looked into first)"
        raise DataError(
            f"cannot download {file.data}'s {upstream.file} from {upstream.url} ({reason}); "
            f"without a network put that file at {places}{hint}"
        ) from None
    return target


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One at a time: whoever else wants the file waits, and then finds it whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f"{target.name}.lock")
    while True:
        with path.open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # If its last holder deleted the file just now, two could hold locks on two files of one name.
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(handle.fileno())):
                continue
            try:
                yield
            finally:
                path.unlink()
            return


def partial_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


class Resuming:
    """Downloads for pooch, which checks and places what comes, but always begins at the first byte."""

    def __init__(self, size: int, partial: Path, advance: Callable[[int], None]) -> None:
        self.size, self.partial, self.advance = size, partial, advance

    def __call__(self, url: str, output_file: Any, _: Any) -> None:
        """Write the whole file to `output_file`; what has come so far survives an error beside it."""
        have = self.partial.stat().st_size if self.partial.is_file() else 0
        if have > self.size:  # left by something else
            self.partial.unlink()
            have = 0
        if have < self.size:
            try:
                self._continue(url, have)
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                self._continue(url, 0)
        # Taken away before it is checked: if it is wrong, the next try starts anew.
        shutil.move(self.partial, output_file)

    def _continue(self, url: str, have: int) -> None:
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        with _reply(request) as reply:
            resumed = reply.status == http.HTTPStatus.PARTIAL_CONTENT
            self.advance(have if resumed else 0)
            with self.partial.open("ab" if resumed else "wb") as file:
                while block := reply.read(BLOCK):
                    file.write(block)
                    self.advance(len(block))
        got = self.partial.stat().st_size
        if got < self.size:
            raise OSError(f"the connection broke after {got:,} of {self.size:,} bytes; try again to continue")


def _reply(request: urllib.request.Request) -> Any:
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        error.close()  # it is a reply as well, with a socket of its own
        raise


@contextmanager
def progress_bar(name: str, size: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, for people only; gives a function to call with each number of bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=size)
        yield lambda count: bar.advance(task, count)
