"""Files of named data sets: found on disk, or downloaded with checksum and progress bar; downloads are resumed."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anaphor.data.cache import cache_folder, lock_cache
from anaphor.data.files import StoredFile
from anaphor.errors import DataError
from anaphor.user_paths import user_path

VARIABLE = "ANAPHOR_DATA"
# Seconds without a byte before a connection is closed.
TIMEOUT = 30.0
BLOCK = 1 << 16


@dataclass(frozen=True)
class Transfer:
    """A file as it is downloaded."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """What is known of a file before it is downloaded."""

    file: str
    """Its name in the folder of its data set."""
    url: str
    sha256: str
    """Digest of its content, decompressed."""
    bytes: int
    """Size of the content, decompressed."""
    gzip: Transfer | None = None
    """The gzip file, where it is compressed upstream."""

    @property
    def transfer(self) -> Transfer:
        """What is downloaded."""
        return self.gzip or Transfer(self.sha256, self.bytes)

    @property
    def transfer_name(self) -> str:
        """Its name on disk."""
        return f"{self.file}.gz" if self.gzip else self.file


@dataclass(frozen=True)
class NamedFile:
    """A file of a named data set: in `$ANAPHOR_DATA`, else in the user's cache, else downloaded to there."""

    data: str
    """Name of the data set, which is the name of its folder."""
    upstream: Upstream

    def candidates(self) -> list[Path]:
        """Paths where the file is looked for, in this order, with and without `.gz`."""
        roots = [user_path(chosen)] if (chosen := os.environ.get(VARIABLE)) else []
        return [root / self.data / self.upstream.transfer_name for root in (*roots, self.cache_path.parents[1])]

    @property
    def cache_path(self) -> Path:
        """Where it is downloaded to."""
        return cache_folder() / "data" / self.data / self.upstream.transfer_name

    def find(self) -> Path | None:
        """The file on disk, if it exists."""
        for candidate in self.candidates():
            for path in (candidate.with_name(self.upstream.file), candidate.with_name(f"{self.upstream.file}.gz")):
                if path.is_file():
                    return path
        return None

    def find_or_download(self) -> Path:
        """The file on disk, downloaded if necessary."""
        return self.find() or download(self)

    def read(self) -> bytes:
        path = self.find_or_download()
        raw = StoredFile(path).read()
        self._check(path)
        return raw

    def digest(self) -> str:
        self._check(self.find_or_download())
        return self.upstream.sha256

    def _check(self, path: Path) -> None:
        # Published scores are about the published text. An edited copy can still be opened by its path.
        digest = StoredFile(path).digest()
        if digest != self.upstream.sha256:
            raise DataError(
                f"{path} is not {self.data}'s {self.upstream.file}: its SHA-256 is {digest[:12]}…, not "
                f"{self.upstream.sha256[:12]}…; remove it, or give the path of its folder instead of the name"
            )

    def __str__(self) -> str:
        return str(self.find() or f"{self.data}/{self.upstream.file}")


@cache
def load_upstream() -> dict[str, dict[str, NamedFile]]:
    """The files of `upstream.tsv`, by data set and name."""
    files: dict[str, dict[str, NamedFile]] = {}
    table = Path(__file__).with_name("upstream.tsv").read_text(encoding="utf-8")
    for line in table.splitlines()[1:]:
        data, name, sha256, size, gzip_sha256, gzip_size, url = line.split("\t")
        gzip = Transfer(gzip_sha256, int(gzip_size)) if gzip_sha256 else None
        upstream = Upstream(file=name, url=url, sha256=sha256, bytes=int(size), gzip=gzip)
        files.setdefault(data, {})[name] = NamedFile(data, upstream)
    return files


def download(file: NamedFile) -> Path:
    """Download to the user's cache. An interrupted download is resumed."""
    if not file.upstream.url:
        raise DataError(
            f"{file.data}'s {file.upstream.file} cannot be downloaded: {_where_to_put(file)}; "
            f"`anaphor data where {file.data}` shows what it is made from"
        )
    import pooch

    pooch.get_logger().setLevel("WARNING")  # we have a progress bar
    upstream, target = file.upstream, file.cache_path
    try:
        with lock_cache(target), progress_bar(f"{file.data}/{upstream.file}", upstream.transfer.bytes) as advance:
            pooch.retrieve(
                upstream.url,
                known_hash=f"sha256:{upstream.transfer.sha256}",
                fname=target.name,
                path=target.parent,
                downloader=ResumingDownloader(upstream.transfer.bytes, partial_path(target), advance),
            )
    except ValueError:
        # pooch raises it where the checksum differs.
        raise DataError(
            f"{upstream.url} is not {file.data}'s {upstream.file}: its SHA-256 differs; the download was discarded"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        raise DataError(
            f"cannot download {file.data}'s {upstream.file} from {upstream.url} ({reason}); "
            f"without a network {_where_to_put(file)}"
        ) from None
    return target


def _where_to_put(file: NamedFile) -> str:
    paths = " or ".join(str(path) for path in file.candidates())
    hint = "" if os.environ.get(VARIABLE) else f" (${VARIABLE} names a folder that is searched first)"
    return f"put that file at {paths}{hint}"


def partial_path(target: Path) -> Path:
    """Where a file is while it is downloaded."""
    return target.with_name(f"{target.name}.part")


class ResumingDownloader:
    """Downloader for pooch, whose own ones always start at the first byte."""

    def __init__(self, size: int, partial: Path, advance: Callable[[int], None]) -> None:
        self.size, self.partial, self.advance = size, partial, advance

    def __call__(self, url: str, output_file: Any, _: Any) -> None:
        """Write the whole file to `output_file`; after an error the part received so far is kept in `partial`."""
        received = self.partial.stat().st_size if self.partial.is_file() else 0
        if received > self.size:  # not ours
            self.partial.unlink()
            received = 0
        if received < self.size:
            try:
                self._request(url, received)
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                self._request(url, 0)
        # Moved before it is checked: if the checksum differs, the next attempt starts from the beginning.
        shutil.move(self.partial, output_file)

    def _request(self, url: str, received: int) -> None:
        request = urllib.request.Request(url, headers={"Range": f"bytes={received}-"} if received else {})
        with _reply(request) as reply:
            resumed = reply.status == http.HTTPStatus.PARTIAL_CONTENT
            self.advance(received if resumed else 0)
            with self.partial.open("ab" if resumed else "wb") as file:
                while block := reply.read(BLOCK):
                    file.write(block)
                    self.advance(len(block))
        received = self.partial.stat().st_size
        if received < self.size:
            raise OSError(f"the connection broke after {received:,} of {self.size:,} bytes; try again to resume")


def _reply(request: urllib.request.Request) -> Any:
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()  # it has a socket of its own
        raise


@contextmanager
def progress_bar(name: str, size: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal; yields a function to call with each number of bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=size)
        yield lambda count: bar.advance(task, count)
