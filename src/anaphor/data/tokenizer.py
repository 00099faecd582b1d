"""What every tokenizer promises: text to numbers and back, a description in plain JSON, a digest of it."""

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

from anaphor.data.reading import text_of
from anaphor.errors import ConfigError, DataError

Ids = NDArray[np.int32]
UNKNOWN = "<unk>"


class Tokenizer(ABC):
    """Text to numbers and back. It never changes once it is made."""

    kind: ClassVar[str]
    tokens: tuple[str, ...]
    """How each token is written, for people; its place is its number."""
    boundary: int
    """The token that a text begins after."""
    unknown: int | None
    """Stands for what is not in the vocabulary; None where everything is."""
    pad: int
    """Fills rows that are shorter than others; nobody looks at it."""

    @classmethod
    @abstractmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        """A tokenizer for texts like this one, with at most so many tokens. Give it training text only."""

    @classmethod
    def train_bytes(cls, raw: bytes, size: int | None = None, *, where: str = "the text", start: int = 0) -> Self:
        """The same from a file as it is stored."""
        return cls.train(text_of(raw, where, start), size)

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """A whole text as one stream, with the boundaries that belong into it."""

    def encode_bytes(self, raw: bytes, *, where: str = "the text", start: int = 0) -> Ids:
        """The same from a file as it is stored."""
        return self.encode(text_of(raw, where, start))

    def as_text(self, raw: bytes, *, where: str = "the text", start: int = 0) -> str:
        """A file as text that `encode_sentence` reads, to be cut into examples."""
        return text_of(raw, where, start)

    @abstractmethod
    def encode_sentence(self, text: str) -> Ids:
        """A text that begins behind a boundary and may go on: none is added before it or after it, and newlines are
        what training had there, as `encode` has them."""

    def unknown_in(self, text: str) -> list[str]:
        """What of a text is not in the vocabulary, each word or character once."""
        if self.unknown is None:
            return []
        parts = dict.fromkeys(self.parts(text))
        return [part for part in parts if self.unknown in self.encode_sentence(part)]

    def parts(self, text: str) -> Iterable[str]:
        """What of a text becomes one token each, where it may be unknown."""
        return text.split()

    @abstractmethod
    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Back to text."""

    @abstractmethod
    def to_plain(self) -> dict[str, Any]:
        """All there is to know about it, as JSON can hold it."""

    @classmethod
    @abstractmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Make it again; what does not fit is refused."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tokens)"

    def digest(self) -> str:
        """SHA-256 of its description: two tokenizers with one digest read every text alike."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        canonical = json.dumps(self.to_plain(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class Listed(Tokenizer):
    """A tokenizer that is described by the list of its tokens."""

    special: ClassVar[tuple[str, ...]]
    """Tokens that must be in the list."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self._ids) < len(self.tokens):
            twice = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise DataError(f"the vocabulary of a {self.kind} tokenizer holds {twice!r} twice")
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
    """At most `size` tokens, the special ones among them whether counted or not, in the order of first appearance."""
    if size is None or size >= len(counts.keys() | set(special)):
        return [*counts, *(token for token in special if token not in counts)]
    if size <= len(special):
        raise ConfigError(f"a vocabulary of size {size} has no room for words beside {', '.join(map(repr, special))}")
    ranked = sorted((token for token in counts if token not in special), key=lambda token: -counts[token])
    kept = {*ranked[: size - len(special)], *special}
    return [*(token for token in counts if token in kept), *(token for token in special if token not in counts)]
