"""Files of data: read whole, decompressed within bounds, and known by the digest of their content."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from anaphor.data.cache import cache_folder, write_cache
from anaphor.errors import ConfigError, DataError

SIZE_VARIABLE = "ANAPHOR_MAX_FILE_BYTES"
PIECE = 1 << 20  # bytes that are decompressed at once
TEXT_ENDINGS = (".txt", ".txt.gz", ".gz")


def max_file_bytes() -> int:
    """`$ANAPHOR_MAX_FILE_BYTES`, else 1 GiB: the size of a compressed file, decompressed."""
    given = os.environ.get(SIZE_VARIABLE) or str(1 << 30)
    if not given.isdecimal() or len(given) > 18:
        raise ConfigError(f"{SIZE_VARIABLE}={given[:40]!r}: it must be a number of bytes")
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
        return b"".join(self._decompress(self._read()))

    def digest(self) -> str:
        """SHA-256 of the content, decompressed.

        For a compressed file it is cached under the SHA-256 of the file itself, so it follows the content, not a date.
        """
        stored = self._read()
        outer = hashlib.sha256(stored).hexdigest()
        if not self._is_compressed:
            return outer
        note = cache_folder() / "digests" / outer
        try:
            inner = note.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            inner = ""
        if len(inner) != len(outer) or not set(inner) <= set("0123456789abcdef"):
            digest = hashlib.sha256()
            for piece in self._decompress(stored):
                digest.update(piece)
            inner = digest.hexdigest()
            write_cache(note, inner.encode())
        return inner

    def is_empty(self) -> bool:
        """Whether it has no bytes, which needs no reading. A file that is not there is not empty."""
        return self.path.is_file() and self.path.stat().st_size == 0

    def __str__(self) -> str:
        return str(self.path)

    @property
    def _is_compressed(self) -> bool:
        return self.path.suffix == ".gz" and not self.path.name.endswith(".tar.gz")

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from None

    def _decompress(self, stored: bytes) -> Iterator[bytes]:
        """The content in pieces. A few megabytes may hold gigabytes, so that their number is bounded."""
        if not self._is_compressed:
            yield stored
            return
        limit, total = max_file_bytes(), 0
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(stored)) as file:
                while piece := file.read(PIECE):
                    total += len(piece)
                    if total > limit:
                        raise too_large(self.path, limit)
                    yield piece
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.path} is not a complete gzip file: {error}") from None
