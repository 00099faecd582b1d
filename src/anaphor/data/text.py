"""Text: bytes decoded, and cut into lines, chunks and examples."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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
_BLANK_LINE_BYTES = re.compile(rb"\n[ \t\r\n]*\n")

# Characters that are tokenized at once. A list of words takes ten times the memory of its text.
CHUNK = 1 << 20
PART = 1 << 22
"""Bytes of a long text that are read, or tokenized by one process, at a time."""
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
    return decode_part(raw, where, offset, advice).removeprefix("\ufeff")


def decode_part(raw: bytes, where: str, offset: int = 0, advice: str = ADVICE) -> str:
    """The same for bytes that others come before, so that they begin with no mark."""
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
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


@dataclass(frozen=True)
class Part:
    """Some bytes of a text that is too long to be tokenized at once."""

    raw: bytes
    offset: int
    """Bytes of the text before it."""
    is_last: bool
    """Whether the text ends with it."""

    def decode(self, where: str, offset: int = 0, advice: str = ADVICE) -> str:
        """As text. `offset`: bytes of the same file before the text."""
        decode = decode_part if self.offset else decode_text
        return decode(self.raw, where, offset + self.offset, advice)


def split_parts(
    pieces: Iterable[bytes], find_cut: Callable[[bytes], int], size: int, offset: int = 0
) -> Iterator[Part]:
    """A text in parts of about `size` bytes, cut where `find_cut` says; larger where it says nowhere.

    Args:
        pieces: The bytes of the text from `offset` on.
        find_cut: Where bytes may be cut, near their end; 0 for nowhere.
        size: Bytes of a part.
        offset: Bytes of the text before the pieces.
    """
    held, wanted = bytearray(), size
    for piece in (whole[start : start + size] for whole in pieces for start in range(0, len(whole), size)):
        # One byte more than is asked for is kept, so that the last part is not empty.
        if len(held) > wanted:
            raw = bytes(held)
            if cut := find_cut(raw):
                yield Part(raw[:cut], offset, is_last=False)
                offset, held, wanted = offset + cut, bytearray(raw[cut:]), size
            else:
                wanted = 2 * len(held)  # so that a long line is not searched again for each piece
        held += piece
    if held:
        yield Part(bytes(held), offset, is_last=True)


def decode_lines(pieces: Iterable[bytes], where: str) -> Iterator[str]:
    """The lines of a text that comes in pieces, a part of it at a time. Only a newline ends a line."""
    for part in split_parts(pieces, cut_after_line, PART):
        yield from split_lines(part.decode(where, advice=ADVICE_FOR_TEXT))


def cut_after_line(raw: bytes) -> int:
    """After the last line end of some bytes; 0 where they have none."""
    return raw.rfind(b"\n") + 1


def cut_at_space(raw: bytes) -> int:
    """After the last line end, else after the last space; 0 where there is neither."""
    return cut_after_line(raw) or raw.rfind(b" ") + 1


def cut_after_character(raw: bytes) -> int:
    """After the last character that is complete, so that no line end of two characters is cut."""
    for index in range(len(raw) - 1, max(len(raw) - 8, 0), -1):
        if raw[index] & 0xC0 != 0x80 and raw[index] != 0x0A:
            return index
    return cut_after_line(raw)


def cut_after_blank_line(raw: bytes) -> int:
    """After the last blank line; 0 where there is none."""
    found = 0
    start = len(raw)
    while not found and start > 0:  # from the end, because a text has many
        start = max(start - CHUNK, 0)
        for match in _BLANK_LINE_BYTES.finditer(raw, start):
            found = match.end()
    return found


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
