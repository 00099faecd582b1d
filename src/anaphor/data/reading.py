"""From bytes to text: UTF-8 or an error that says where it is not, one kind of line end, pieces of bounded size."""

from __future__ import annotations

import re
from collections.abc import Iterator

from anaphor.errors import DataError

# The marks of UTF-32 begin with those of UTF-16, so they are tried first.
_FOREIGN_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_WHITE = re.compile(r"\s")
_BLANK_LINE = re.compile(r"\n\s*\n")

# Characters that are worked on at once. A list of words takes ten times the memory of its text.
PIECE = 1 << 20
# What to do about bytes that are no text.
CURE = "convert it to UTF-8, or read it with the byte tokenizer"


def text_of(raw: bytes, where: str, start: int = 0, cure: str = CURE) -> str:
    """Bytes as text, a byte-order mark dropped, every line end one newline.

    `where` names the bytes in an error; `start` is how many bytes of the same file stand before them.
    """
    for mark, encoding in _FOREIGN_MARKS.items():
        if raw.startswith(mark):
            raise DataError(f"{where} is {encoding}: {cure}")
    nul = raw.find(b"\0")
    if nul >= 0:
        raise DataError(
            f"{where} holds a NUL byte at byte offset {start + nul}, so it is a binary file or UTF-16 without a mark: "
            f"{cure}"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        value = raw[error.start]
        raise DataError(
            f"{where} is not UTF-8: byte 0x{value:02x} at byte offset {start + error.start}; {cure}"
        ) from None
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """The text in pieces of about that many characters, cut at white space, so that no word is in two of them."""
    start = 0
    while start < len(text):
        cut = _WHITE.search(text, start + size)
        end = cut.start() if cut else len(text)
        yield text[start:end]
        start = end


def dialogues(text: str) -> list[str]:
    """The parts of a text between blank lines, without the white space round them."""
    return [part for part in dialogues_so_far(text) if part]


def dialogues_so_far(text: str) -> list[str]:
    """The same of a text that may go on: where it ends with a blank line the last part has begun, and is empty."""
    return [part.strip() for part in _BLANK_LINE.split(text.lstrip())]
