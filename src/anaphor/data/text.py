"""Text: bytes decoded, and cut into lines, chunks and examples."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from anaphor.data.files import StoredFile
from anaphor.errors import DataError

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


def check_characters(text: str, where: str) -> None:
    r"""Raise for a text that no file can hold: JSON may have one half of a pair of surrogates, such as \ud83d."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{where} has half a character, {half}, which is not valid Unicode: correct it") from None


def split_lines(text: str) -> list[str]:
    """Lines of a text, the last one with or without its line end. Only a newline ends a line."""
    return text.removesuffix("\n").split("\n") if text else []


def read_lines(path: Path) -> list[str]:
    """Lines of a file, or of standard input where the file is called `-`."""
    if str(path) != "-":
        raw = StoredFile(path).read()
    elif sys.stdin is None:
        raise DataError("standard input is closed: there is nothing to read")
    else:
        raw = sys.stdin.buffer.read()
    return split_lines(decode_text(raw, str(path), advice=ADVICE_FOR_TEXT))


def read_text_files(folder: Path) -> list[tuple[Path, str]]:
    """The `.txt` files of a folder and the folders in it, sorted by path, each with its text."""
    files = sorted(path for path in folder.rglob("*.txt") if path.is_file())
    if not files:
        raise DataError(f"{folder} has no .txt files")
    return [(path, decode_text(StoredFile(path).read(), str(path), advice=ADVICE_FOR_TEXT)) for path in files]


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
