"""One token for each byte: nothing is unknown and nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from anaphor.data.tokenizer import Ids, Tokenizer
from anaphor.errors import ConfigError


class Byte(Tokenizer):
    """The 256 bytes. It reads files as they are stored: no mark is dropped and no line end changed."""

    kind = "byte"

    def __init__(self) -> None:
        self.tokens = tuple(written(value) for value in range(256))
        self.boundary = self.pad = ord("\n")
        self.unknown = None

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        if size not in (None, 256):
            raise ConfigError(f"size={size}: a byte tokenizer has 256 tokens, no more and no fewer")
        return cls()

    @classmethod
    def train_bytes(cls, raw: bytes, size: int | None = None, *, where: str = "the text", start: int = 0) -> Self:
        return cls.train("", size)

    def encode(self, text: str) -> Ids:
        # A word of the command line that is no UTF-8 reaches Python with its bytes escaped: they come out unharmed.
        return self.encode_bytes(text.encode("utf-8", "surrogateescape"))

    def encode_bytes(self, raw: bytes, *, where: str = "the text", start: int = 0) -> Ids:
        return np.frombuffer(raw, np.uint8).astype(np.int32)

    def as_text(self, raw: bytes, *, where: str = "the text", start: int = 0) -> str:
        return raw.decode("utf-8", "surrogateescape")

    def encode_sentence(self, text: str) -> Ids:
        return self.encode(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """As text for people: bytes that are no UTF-8 become U+FFFD. `decode_bytes` keeps them."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Sequence[int] | Ids) -> bytes:
        """Exactly the bytes that were encoded."""
        return bytes(int(number) for number in ids)

    def to_plain(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls()


def written(value: int) -> str:
    """A byte for people: its character where that is visible ASCII or a space, else like <0x0A>."""
    return chr(value) if 0x20 <= value < 0x7F else f"<0x{value:02X}>"
