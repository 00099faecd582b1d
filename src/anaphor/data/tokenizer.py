"""The base of all tokenizers: text to token ids and back, a description in plain JSON, a digest of it."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from anaphor.data.files import decode_text
from anaphor.errors import ConfigError, DataError

Ids = NDArray[np.int32]
UNKNOWN = "<unk>"
END = "<eos>"


class Tokenizer(ABC):
    """Text to token ids and back. Immutable."""

    kind: ClassVar[str]
    tokens: tuple[str, ...]
    """How each token is written, for people; its index is its id."""
    boundary: int
    """The token before the first one of a text."""
    unknown: int | None
    """Stands for what is not in the vocabulary; None where everything is in it."""
    pad: int
    """Fills up rows that are shorter than others; masked everywhere."""

    @classmethod
    @abstractmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        """Train a tokenizer with at most `size` tokens. Give it training text only."""

    @classmethod
    def train_bytes(cls, raw: bytes, size: int | None = None, *, where: str = "the text", offset: int = 0) -> Self:
        """The same for the bytes of a file."""
        return cls.train(decode_text(raw, where, offset), size)

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """A whole text as one stream, with its boundaries."""

    def encode_bytes(self, raw: bytes, *, where: str = "the text", offset: int = 0) -> Ids:
        """The same for the bytes of a file."""
        return self.encode(decode_text(raw, where, offset))

    def as_text(self, raw: bytes, *, where: str = "the text", offset: int = 0) -> str:
        """Bytes of a file as text for `encode_sentence`, to be split into examples."""
        return decode_text(raw, where, offset)

    @abstractmethod
    def encode_sentence(self, text: str) -> Ids:
        """A text that follows a boundary and may be continued: no boundary is added before or after it; newlines are
        encoded as in `encode`."""

    def find_unknown(self, text: str) -> list[str]:
        """Words or characters of a text that are not in the vocabulary, without duplicates."""
        if self.unknown is None:
            return []
        parts = dict.fromkeys(self.parts(text))
        return [part for part in parts if self.unknown in self.encode_sentence(part)]

    def parts(self, text: str) -> Iterable[str]:
        """Parts of a text that become one token each, where they may be unknown."""
        return text.split()

    @abstractmethod
    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Back to text."""

    @abstractmethod
    def to_plain(self) -> dict[str, Any]:
        """Its complete description in plain JSON."""

    @classmethod
    @abstractmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Rebuild it from its description, which is validated."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tokens)"

    def digest(self) -> str:
        """SHA-256 of its description: tokenizers with the same digest encode every text alike."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        canonical = json.dumps(self.to_plain(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class ListedTokenizer(Tokenizer):
    """A tokenizer that is described by the list of its tokens."""

    special: ClassVar[tuple[str, ...]]
    """Tokens that must be in the list."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self._ids) < len(self.tokens):
            duplicate = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise DataError(f"the vocabulary of a {self.kind} tokenizer has {duplicate!r} twice")
        for token in self.special:
            if token not in self._ids:
                raise DataError(f"the vocabulary of a {self.kind} tokenizer lacks {token!r}")

    def to_plain(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokens": list(self.tokens)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(strings(plain, "tokens"))


def strings(plain: Mapping[str, Any], key: str) -> list[str]:
    """A list of strings from a description, or an error."""
    values = plain.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"a tokenizer's {key!r} must be a list of strings")
    return values


def most_frequent(counts: Counter[str], special: Sequence[str], size: int | None) -> list[str]:
    """At most `size` tokens, including the special ones even if not counted, in the order of first appearance."""
    if size is None or size >= len(counts.keys() | set(special)):
        return [*counts, *(token for token in special if token not in counts)]
    if size <= len(special):
        raise ConfigError(f"a vocabulary of size {size} has no room for words besides {', '.join(map(repr, special))}")
    ranked = sorted((token for token in counts if token not in special), key=lambda token: -counts[token])
    kept = {*ranked[: size - len(special)], *special}
    return [*(token for token in counts if token in kept), *(token for token in special if token not in counts)]


def show_byte(value: int) -> str:
    """A byte for people: its character where that is visible ASCII or a space, else like <0x0A>."""
    return chr(value) if 0x20 <= value < 0x7F else f"<0x{value:02X}>"
