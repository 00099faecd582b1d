"""Shards: a long sequence of numbers in files of the cache, written one after the other and mapped into memory.

A shard is a file of little-endian numbers. The manifest beside them lists each with its digest, in JSON; it is written
after every shard, so that a process that is killed costs the shard that it was writing. A shard of another size or date
than the manifest says is read again, and where its digest differs, it and those after it are made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.data.cache import CACHE_VARIABLE, cache_folder, lock_cache
from anaphor.errors import DataError
from anaphor.files import describe_space, replace_file

FORMAT = 1
MANIFEST = "manifest.json"
TYPES = ("<u1", "<u2", "<u4", "<i8")
MAX_MAPPED = 1 << 25
"""Bytes that are read before the shards are mapped anew, so that what was read no longer counts as used memory."""


@dataclass(frozen=True)
class Shard:
    """One file, as the manifest has it."""

    count: int
    """Numbers in it."""
    sha256: str
    end: int
    """Bytes of the source up to its end: where the next one begins."""
    facts: dict[str, int]
    """Counts of its own, which are added up."""
    modified: int
    """When it was written, in nanoseconds."""


class Manifest:
    """The shards of a folder of the cache, as far as they were made."""

    def __init__(self, folder: Path, kind: str, key: dict[str, Any]) -> None:
        """`kind` is the type of the numbers; `key` says what they were made from, and is compared."""
        self.folder, self.kind, self.key = folder, kind, key
        self.shards: list[Shard] = []
        self.is_complete = False
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            self._read()

    def _read(self) -> None:
        stored = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        if [stored["format"], stored["type"], stored["key"]] != [FORMAT, self.kind, self.key]:
            return
        shards = [Shard(**shard) for shard in stored["shards"]]
        for number, shard in enumerate(shards):
            if not self._is_whole(number, shard):
                return
            self.shards.append(shard)
        self.is_complete = stored["complete"] is True

    def _is_whole(self, number: int, shard: Shard) -> bool:
        found = self.path(number).stat()
        if found.st_size != shard.count * np.dtype(self.kind).itemsize:
            return False
        return found.st_mtime_ns == shard.modified or _digest(self.path(number)) == shard.sha256

    def path(self, number: int) -> Path:
        """Where a shard is."""
        return self.folder / f"{number:05}.bin"

    @property
    def end(self) -> int:
        """Bytes of the source that were read."""
        return self.shards[-1].end if self.shards else 0

    @property
    def count(self) -> int:
        return sum(shard.count for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return self.count * np.dtype(self.kind).itemsize

    def fact(self, name: str) -> int:
        """The sum of a count of all shards."""
        return sum(shard.facts.get(name, 0) for shard in self.shards)

    def add(self, numbers: NDArray[Any], end: int, facts: dict[str, int]) -> None:
        """Write the next shard, whole or not at all."""
        path = self.path(len(self.shards))
        content = np.ascontiguousarray(numbers, self.kind).tobytes()
        with cache_errors(path, len(content)):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
            sha256, modified = hashlib.sha256(content).hexdigest(), path.stat().st_mtime_ns
        self.shards.append(Shard(len(numbers), sha256, end, facts, modified))
        self._write()

    def keep(self, count: int) -> None:
        """Only the first shards, which are whole."""
        if len(self.shards) > count or self.is_complete:
            self.shards, self.is_complete = self.shards[:count], False
            self._write()

    def complete(self) -> None:
        """All shards were made."""
        self.is_complete = True
        self._write()

    def _write(self) -> None:
        plain = {
            "format": FORMAT,
            "type": self.kind,
            "key": self.key,
            "complete": self.is_complete,
            "shards": [asdict(shard) for shard in self.shards],
        }
        content = json.dumps(plain, indent=1).encode()
        with cache_errors(self.folder / MANIFEST, len(content)):
            self.folder.mkdir(parents=True, exist_ok=True)  # files without rows have no shards
            replace_file(self.folder / MANIFEST, content)


@contextmanager
def cache_errors(path: Path, needed: int) -> Iterator[None]:
    """Say what to do where nothing can be written: data of this size cannot be read without a cache."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        space = "" if "bytes" in reason else f"; {describe_space(_existing(path.parent), needed)}"
        raise DataError(
            f"cannot write {path}: {reason}{space}. Point ${CACHE_VARIABLE} at a folder with room; what was finished "
            f"is kept"
        ) from None


def _existing(folder: Path) -> Path:
    return next((one for one in (folder, *folder.parents) if one.exists()), folder)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shards_folder(key: Mapping[str, Any]) -> Path:
    """Where the shards of a key are."""
    return cache_folder() / "shards" / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """One process makes the shards of a folder; others wait for it and then find them."""
    with cache_errors(folder, 1):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_cache(folder):
        yield


class ShardedArray:
    """The numbers of all shards, read where they are needed."""

    def __init__(self, manifest: Manifest) -> None:
        self.kind = np.dtype(manifest.kind)
        self._files = [manifest.path(number) for number in range(len(manifest.shards))]
        counts = [shard.count for shard in manifest.shards]
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        self._maps: dict[int, NDArray[Any]] = {}
        self._mapped = 0

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The numbers from one place to another; where they are in one shard, without a copy."""
        if stop <= start:  # as of files without rows
            return np.empty(0, self.kind)
        first, last = np.searchsorted(self._ends, (start, max(stop - 1, start)), side="right")
        parts = []
        for number in range(int(first), int(last) + 1):
            begin = int(self._starts[number])
            parts.append(self._shard(number)[max(start - begin, 0) : stop - begin])
        self._mapped += (stop - start) * self.kind.itemsize + mmap.PAGESIZE
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All of them in memory."""
        return np.asarray(self.read(0, len(self)), dtype)

    def blocks(self, size: int = 1 << 20) -> Iterator[NDArray[Any]]:
        """All numbers in order, so many at a time."""
        for start in range(0, len(self), size):
            yield self.read(start, min(start + size, len(self)))

    def _shard(self, number: int) -> NDArray[Any]:
        if self._mapped > MAX_MAPPED:
            self._maps, self._mapped = {}, 0
        if number not in self._maps:
            path = self._files[number]
            expected = int(self._ends[number] - self._starts[number])
            try:
                mapped = np.memmap(path, self.kind, "r") if expected else np.empty(0, self.kind)
            except (OSError, ValueError) as error:
                raise DataError(f"cannot read {path}: {error}; start again, and it is made anew") from None
            if len(mapped) != expected:
                raise DataError(f"{path} has changed while it was in use: start again, and it is made anew")
            self._maps[number] = mapped
        return self._maps[number]
