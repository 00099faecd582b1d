"""One text file on disk, compressed or not."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from anaphor.data import cache
from anaphor.errors import DataError

ENDINGS = (".txt", ".txt.gz", ".gz")


@dataclass(frozen=True)
class StoredFile:
    """A file, read whole each time it is asked for."""

    path: Path
    """Where it is; a name that ends in .gz is decompressed."""

    def read(self) -> bytes:
        return self._unpacked(self._stored())

    def digest(self) -> str:
        """SHA-256 of the text inside.

        A compressed file is small and quick to hash, so what it holds is remembered by the hash of the file itself: the
        answer follows the content, never a date.
        """
        stored = self._stored()
        outer = hashlib.sha256(stored).hexdigest()
        if self.path.suffix != ".gz":
            return outer
        note = cache.folder() / "digests" / outer
        try:
            inner = note.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            inner = ""
        if len(inner) != len(outer) or not set(inner) <= set("0123456789abcdef"):
            inner = hashlib.sha256(self._unpacked(stored)).hexdigest()
            cache.write(note, inner.encode())
        return inner

    def __str__(self) -> str:
        return str(self.path)

    def _stored(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from None

    def _unpacked(self, stored: bytes) -> bytes:
        if self.path.suffix != ".gz":
            return stored
        try:
            return gzip.decompress(stored)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.path} is not a whole gzip file: {error}") from None
