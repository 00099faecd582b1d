"""Files: the cache folder, files that may be compressed, and bytes as text in lines, chunks and examples."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from anaphor.config import user_path
from anaphor.errors import ConfigError, DataError

CACHE_VARIABLE = "ANAPHOR_CACHE"
SIZE_VARIABLE = "ANAPHOR_MAX_FILE_BYTES"
PIECE = 1 << 20  # bytes that are decompressed at once
TEXT_ENDINGS = (".txt", ".txt.gz", ".gz")

# The byte-order marks of UTF-32 begin with those of UTF-16, so they are tried first.
_FOREIGN_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_WHITE = re.compile(r"\s")
_BLANK_LINE = re.compile(r"\n\s*\n")

# Characters that are tokenized at once. A list of words takes ten times the memory of its text.
CHUNK = 1 << 20
# What to do about bytes that are not UTF-8.
ADVICE = "convert it to UTF-8, or read it with the byte tokenizer"
ADVICE_FOR_TEXT = "convert it to UTF-8"


def cache_folder() -> Path:
    """`$ANAPHOR_CACHE`, else the platform's folder for caches."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return user_path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("anaphor"))


def max_file_bytes() -> int:
    """`$ANAPHOR_MAX_FILE_BYTES`, else 1 GiB: the size of a compressed file, decompressed."""
    given = os.environ.get(SIZE_VARIABLE) or str(1 << 30)
    if not given.isdecimal() or len(given) > 18:
        raise ConfigError(f"{SIZE_VARIABLE}={given[:40]!r}: it must be a number of bytes")
    return int(given)


def too_large(path: Path, limit: int) -> DataError:
    return DataError(
        f"{path} has more than {limit:,} bytes, decompressed: if you trust it, pass --max-file-bytes N with a larger "
        f"number, or set {SIZE_VARIABLE}"
    )


def write_cache(path: Path, content: bytes | memoryview) -> bool:
    """Write a file of the cache atomically; True on success.

    A folder that the user chose must be writable. The platform's own may be read-only: then nothing is kept, and the
    next call computes the content again.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        if os.environ.get(CACHE_VARIABLE):
            raise DataError(
                f"cannot write {path} ({error.strerror}): point ${CACHE_VARIABLE} at a folder with room"
            ) from None
        return False
    return True


@contextlib.contextmanager
def default_permissions(path: Path) -> Iterator[Path]:
    """A file that a library writes in this block gets the permissions of every new file, as the umask gives them.

    safetensors writes a temporary file and renames it; such a file can be read by its owner alone.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield path
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)


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


def decode_text(raw: bytes, where: str, offset: int = 0, advice: str = ADVICE) -> str:
    """UTF-8 bytes as text, without byte-order mark, every line end one newline.

    `where` names the bytes in an error; `offset` is the number of bytes of the same file before them.
    """
    for mark, encoding in _FOREIGN_MARKS.items():
        if raw.startswith(mark):
            raise DataError(f"{where} is {encoding}: {advice}")
    nul = raw.find(b"\0")
    if nul >= 0:
        raise DataError(
            f"{where} has a NUL byte at byte offset {offset + nul}, so it is a binary file or UTF-16 without a mark: "
            f"{advice}"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        value = raw[error.start]
        raise DataError(
            f"{where} is not UTF-8: byte 0x{value:02x} at byte offset {offset + error.start}; {advice}"
        ) from None
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def split_lines(text: str) -> list[str]:
    """Lines of a text, the last one with or without its line end. Only a newline ends a line."""
    return text.removesuffix("\n").split("\n") if text else []


def read_lines(path: Path) -> list[str]:
    """Lines of a file, or of standard input where the file is called `-`."""
    raw = sys.stdin.buffer.read() if str(path) == "-" else StoredFile(path).read()
    return split_lines(decode_text(raw, str(path), advice=ADVICE_FOR_TEXT))


def split_chunks(text: str, size: int = CHUNK) -> Iterator[str]:
    """Chunks of about `size` characters, cut at white space, so that no word is in two of them."""
    start = 0
    while start < len(text):
        cut = _WHITE.search(text, start + size)
        end = cut.start() if cut else len(text)
        yield text[start:end]
        start = end


def split_examples(text: str) -> list[str]:
    """Examples of a text: the parts between blank lines, stripped."""
    return [part for part in split_unfinished_examples(text) if part]


def split_unfinished_examples(text: str) -> list[str]:
    """The same for a text to be continued: after a final blank line comes a last, empty part."""
    return [part.strip() for part in _BLANK_LINE.split(text.lstrip())]
