"""Files of data: read whole or in pieces, decompressed within bounds, and known by the digest of their content."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from anaphor.data.cache import cache_folder, write_cache
from anaphor.errors import ConfigError, DataError

SIZE_VARIABLE = "ANAPHOR_MAX_FILE_BYTES"
PIECE = 1 << 20  # bytes that are read at once
TEXT_ENDINGS = (".txt", ".txt.gz", ".gz")
MEMORY_VARIABLE = "ANAPHOR_IN_MEMORY_BYTES"
IN_MEMORY = 1 << 28
COMPRESSION = 4  # text in gzip files has about so many times their bytes


def max_file_bytes() -> int:
    """`$ANAPHOR_MAX_FILE_BYTES`, else 1 GiB: the size of a compressed file, decompressed."""
    return _bytes_from(SIZE_VARIABLE, 1 << 30)


def in_memory_bytes() -> int:
    """`$ANAPHOR_IN_MEMORY_BYTES`, else 256 MiB: data with more bytes are prepared once, and read from the disk."""
    return _bytes_from(MEMORY_VARIABLE, IN_MEMORY)


def _bytes_from(variable: str, default: int) -> int:
    given = os.environ.get(variable) or str(default)
    if not given.isdecimal() or len(given) > 18:
        raise ConfigError(f"{variable}={given[:40]!r}: it must be a number of bytes")
    return int(given)


def too_large(path: Path, limit: int) -> DataError:
    """The error for a file that is larger than allowed, decompressed."""
    return DataError(
        f"{path} has more than {limit:,} bytes, decompressed: if you trust it, pass --max-file-bytes N with a larger "
        f"number, or set {SIZE_VARIABLE}"
    )


class File(Protocol):
    """A file that is read on demand."""

    def read(self) -> bytes: ...  # decompressed
    def digest(self) -> str: ...  # SHA-256 of what `read` gives
    def __str__(self) -> str: ...  # name in error messages


@dataclass(frozen=True)
class StoredFile:
    """A file on disk, read whole."""

    path: Path
    """A name that ends in .gz is decompressed, but .tar.gz is not."""

    def read(self) -> bytes:
        if self.is_compressed:
            return b"".join(self.pieces())
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from None

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The content from one byte to another, decompressed, a piece at a time."""
        if self.is_compressed:
            yield from _cut(self._decompress(), start, stop)
            return
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                remaining = self.path.stat().st_size - start if stop is None else stop - start
                while remaining > 0 and (piece := file.read(min(PIECE, remaining))):
                    remaining -= len(piece)
                    yield piece
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from None

    def digest(self) -> str:
        """SHA-256 of the content, decompressed.

        For a compressed file it is cached under the SHA-256 of the file itself, so it follows the content, not a date;
        that of a large file is cached by its size and date.
        """
        return note_of_file(self.path, "content", self._digest)

    def _digest(self) -> str:
        outer = hashlib.sha256()
        for piece in StoredBytes(self.path).pieces():
            outer.update(piece)
        if not self.is_compressed:
            return outer.hexdigest()
        note = cache_folder() / "digests" / outer.hexdigest()
        return read_note(note) or write_note(note, digest_of(self.pieces()))

    def is_empty(self) -> bool:
        """Whether it has no bytes, which needs no reading. A file that is not there is not empty."""
        return self.path.is_file() and self.path.stat().st_size == 0

    def __str__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        """Bytes of the content; of a compressed file about as many as it may have."""
        try:
            return self.path.stat().st_size * (COMPRESSION if self.is_compressed else 1)
        except OSError:
            return 0

    @property
    def is_compressed(self) -> bool:
        return self.path.suffix == ".gz" and not self.path.name.endswith(".tar.gz")

    def _decompress(self) -> Iterator[bytes]:
        """A few megabytes may hold gigabytes, so that their number is bounded."""
        limit, total = max_file_bytes(), 0
        try:
            with gzip.open(self.path) as file:
                while piece := file.read(PIECE):
                    total += len(piece)
                    if total > limit:
                        raise too_large(self.path, limit)
                    yield piece
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{self.path} is not a complete gzip file: {error}") from None
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror or error}") from None


@dataclass(frozen=True)
class StoredBytes(StoredFile):
    """A file as it is stored, compressed or not."""

    @property
    def is_compressed(self) -> bool:
        return False


def _cut(pieces: Iterator[bytes], start: int, stop: int | None) -> Iterator[bytes]:
    """The bytes from `start` to `stop` of a content that can only be read from its beginning."""
    position = 0
    for piece in pieces:
        first, last = max(start - position, 0), len(piece) if stop is None else min(stop - position, len(piece))
        if first < last:
            yield piece[first:last]
        position += len(piece)
        if stop is not None and position >= stop:
            return


def digest_of(pieces: Iterator[bytes]) -> str:
    """SHA-256 of a content in pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def note_of_file(path: Path, about: str, compute: Callable[[], str]) -> str:
    """A digest that follows from a file: of a large one it is kept as long as the file has the same size and date, so
    that gigabytes are not read each time."""
    return note_of_files([path], about, compute)


def note_of_files(paths: Sequence[Path], about: str, compute: Callable[[], str], size: int | None = None) -> str:
    """The same for several files together. `size`: bytes of their content where they are compressed, about."""
    try:
        found = [(str(path.absolute()), path.stat()) for path in paths]
    except OSError:
        return compute()
    if (sum(stat.st_size for _, stat in found) if size is None else size) <= in_memory_bytes():
        return compute()
    key = json.dumps([about, *((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found)])
    note = cache_folder() / "digests" / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    return read_note(note) or write_note(note, compute())


def read_note(note: Path) -> str:
    """A digest of the cache; empty where there is none."""
    try:
        digest = note.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    return digest if len(digest) == 64 and set(digest) <= set("0123456789abcdef") else ""


def write_note(note: Path, digest: str) -> str:
    """Keep a digest in the cache."""
    write_cache(note, digest.encode())
    return digest
