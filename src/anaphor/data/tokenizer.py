"""Tokenizers: text to token ids and back, with a description in plain JSON and its digest; words, characters, bytes."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat, takewhile
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from anaphor.config import look_up
from anaphor.data.text import CHUNK, Part, cut_after_character, cut_at_space, decode_text, split_chunks
from anaphor.errors import ConfigError, DataError
from anaphor.registry import TOKENIZERS

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
    ends: tuple[int, ...] = ()
    """Tokens after which a text has ended: generation stops there."""

    @property
    def is_joined(self) -> bool:
        """Whether tokens are shown without spaces between them."""
        return self.kind not in ("word", "treebank")

    @classmethod
    @abstractmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        """Train a tokenizer with at most `size` tokens. Give it training text only."""

    @classmethod
    def train_bytes(cls, raw: bytes, size: int | None = None, *, where: str = "the text", offset: int = 0) -> Self:
        """The same for the bytes of a file."""
        return cls.train(decode_text(raw, where, offset), size)

    can_encode_parts: ClassVar[bool] = False
    """Whether `find_cut` finds places in every long text, so that it need not be in memory."""

    @classmethod
    def find_cut(cls, raw: bytes) -> int:
        """The last place where the bytes of a text may be cut so that `encode_part` of both sides gives the tokens of
        the whole; 0 where there is none."""
        return 0

    def encode_part(self, part: Part, *, where: str = "the text", offset: int = 0) -> Ids:
        """Part of a text that is too long to be encoded at once."""
        text = part.decode(where, offset)
        return self.encode(text) if part.is_last else self.encode_sentence(text)

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """A whole text as one stream, with its boundaries."""

    def encode_bytes(self, raw: bytes, *, where: str = "the text", offset: int = 0) -> Ids:
        """The same for the bytes of a file."""
        return self.encode(decode_text(raw, where, offset))

    def as_text(self, raw: bytes, *, where: str = "the text", offset: int = 0) -> str:
        """Bytes of a file as text for `encode_sentence`, to be split into examples."""
        return decode_text(raw, where, offset)

    def part_as_text(self, part: Part, *, where: str = "the text", offset: int = 0) -> str:
        """The same for part of a text."""
        return part.decode(where, offset)

    @abstractmethod
    def encode_sentence(self, text: str) -> Ids:
        """A text that follows a boundary and may be continued: no boundary is added before or after it; newlines are
        encoded as in `encode`."""

    def encode_prompt(self, text: str) -> list[int]:
        """The boundary and a text that follows it: what a model reads to score, continue or show a text."""
        return [self.boundary, *self.encode_sentence(text).tolist()]

    def encode_text(self, text: str) -> list[int]:
        """A whole text of its own, with the special tokens around it: what a text encoder reads. It has one token at
        least."""
        return self.encode_prompt(" ".join(text.split("\n")))

    def truncate(self, ids: Ids, length: int) -> Ids:
        """The first tokens of what `encode_text` gave, special tokens at the end kept."""
        return ids[:length]

    def encode_truncated(self, text: str, length: int) -> tuple[Ids, bool]:
        """What `encode_text` gives, with at most so many tokens, and whether it had more."""
        ids = np.array(self.encode_text(text), np.int32)
        return (ids, False) if len(ids) <= length else (self.truncate(ids, length), True)

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

    def until_end(self, ids: Iterable[int]) -> Iterator[int]:
        """What is generated, up to the first token that ends a text."""
        return takewhile(lambda token: token not in self.ends, ids)

    def byte_ends(self, text: str, ids: Ids) -> NDArray[np.int64] | None:
        """How many bytes of a text, as UTF-8, come before the end of each of its tokens, which `encode` gave. White
        space belongs to the token after it. None where a tokenizer does not keep track of the text."""
        return None

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
    can_encode_parts = True

    @classmethod
    @abstractmethod
    def count(cls, text: str, *, is_last: bool = True) -> Counter[str]:
        """How often each token occurs in a text, or in part of one, in the order of first appearance."""

    @classmethod
    def from_counts(cls, counts: Counter[str], size: int | None = None) -> Self:
        """The tokenizer of a text with these counts."""
        return cls(most_frequent(counts, cls.special, size))

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        return cls.from_counts(cls.count(text), size)

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


def code_points(text: str) -> NDArray[np.uint32]:
    """The number of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def character_ends(text: str) -> NDArray[np.int64]:
    """How many bytes, as UTF-8, come before the end of each character."""
    points = code_points(text)
    return np.cumsum(1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000))


def show_byte(value: int) -> str:
    """A byte for people: its character where that is visible ASCII or a space, else like <0x0A>."""
    return chr(value) if 0x20 <= value < 0x7F else f"<0x{value:02X}>"


class Word(ListedTokenizer):
    """Words separated by white space, and `<eos>` after each line, as in PyTorch's word language model.

    Words are numbered by first appearance; `<unk>` comes last where the text does not contain it.
    """

    kind = "word"
    special: ClassVar[tuple[str, ...]] = (END, UNKNOWN)

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__(tokens)
        self.boundary = self.pad = self._ids[END]
        self.unknown: int = self._ids[UNKNOWN]

    @classmethod
    def count(cls, text: str, *, is_last: bool = True) -> Counter[str]:
        counts: Counter[str] = Counter()
        for words in _chunks_of_words(text) if is_last else map(_split_words, split_chunks(text)):
            counts.update(words)
        return counts

    @classmethod
    def find_cut(cls, raw: bytes) -> int:
        return cut_at_space(raw)

    def encode(self, text: str) -> Ids:
        blocks = [self._encode_words(words) for words in _chunks_of_words(text)]
        return np.concatenate(blocks) if blocks else np.empty(0, np.int32)

    def encode_sentence(self, text: str) -> Ids:
        return self._encode_words(_split_words(text))

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Words joined by single spaces, a newline for each `<eos>`."""
        lines: list[list[str]] = [[]]
        for token in ids:
            if token == self.boundary:
                lines.append([])
            else:
                lines[-1].append(self.tokens[token])
        return "\n".join(map(" ".join, lines))

    def until_end(self, ids: Iterable[int]) -> Iterator[int]:
        """What is generated, up to the first token that ends a text."""
        return takewhile(lambda token: token not in self.ends, ids)

    def byte_ends(self, text: str, ids: Ids) -> NDArray[np.int64] | None:
        ends = [match.end() for match in re.finditer(r"\n|\S+", text)]
        ends += [len(text)] if text and not text.endswith("\n") else []
        return np.concatenate(([0], character_ends(text)))[ends]

    def _encode_words(self, words: list[str]) -> Ids:
        return np.fromiter(map(self._ids.get, words, repeat(self.unknown)), np.int32, len(words))


def _chunks_of_words(text: str) -> Iterator[list[str]]:
    """Words with `<eos>` after each line, also after the last one where it has no line end."""
    for chunk in split_chunks(text):
        yield _split_words(chunk)
    if text and not text.endswith("\n"):
        yield [END]


def _split_words(text: str) -> list[str]:
    return text.replace("\n", f" {END} ").split()


class Character(ListedTokenizer):
    """Characters in the order of their code points, then `<unk>` for those not in the training text."""

    kind = "character"
    special: ClassVar[tuple[str, ...]] = ("\n", UNKNOWN)

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__(tokens)
        for token in self.tokens:
            if len(token) != 1 and token != UNKNOWN:
                raise DataError(f"the vocabulary of a character tokenizer has {token!r}, which is not one character")
        self.boundary = self.pad = self._ids["\n"]
        self.unknown: int = self._ids[UNKNOWN]

    @classmethod
    def count(cls, text: str, *, is_last: bool = True) -> Counter[str]:
        counts: Counter[str] = Counter()
        for start in range(0, len(text), CHUNK):
            part = text[start : start + CHUNK]
            found = np.bincount(code_points(part))
            present = sorted(map(chr, np.flatnonzero(found).tolist()), key=part.find)
            counts.update({character: int(found[ord(character)]) for character in present})
        return counts

    @classmethod
    def from_counts(cls, counts: Counter[str], size: int | None = None) -> Self:
        kept = most_frequent(counts, cls.special, size)
        return cls([*sorted(token for token in kept if token != UNKNOWN), UNKNOWN])

    @classmethod
    def find_cut(cls, raw: bytes) -> int:
        return cut_after_character(raw)

    def encode(self, text: str) -> Ids:
        ids = np.empty(len(text), np.int32)
        for start in range(0, len(text), CHUNK):
            part = text[start : start + CHUNK]
            ids[start : start + len(part)] = self._id_of_code_point[code_points(part)]
        return ids

    def encode_sentence(self, text: str) -> Ids:
        return self.encode(text)

    def parts(self, text: str) -> Iterable[str]:
        return text

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The characters; U+FFFD, the replacement character, for unknown ones."""
        return "".join("\ufffd" if token == self.unknown else self.tokens[token] for token in ids)

    def until_end(self, ids: Iterable[int]) -> Iterator[int]:
        """What is generated, up to the first token that ends a text."""
        return takewhile(lambda token: token not in self.ends, ids)

    def byte_ends(self, text: str, ids: Ids) -> NDArray[np.int64] | None:
        return character_ends(text)

    @cached_property
    def _id_of_code_point(self) -> NDArray[np.int32]:
        table = np.full(0x110000, self.unknown, np.int32)
        for token, number in self._ids.items():
            if token != UNKNOWN:
                table[ord(token)] = number
        return table


class Byte(Tokenizer):
    """The 256 bytes of files as stored: no byte-order mark is dropped and no line end changed."""

    kind = "byte"
    can_encode_parts = True

    def __init__(self) -> None:
        self.tokens = tuple(show_byte(value) for value in range(256))
        self.boundary = self.pad = ord("\n")
        self.unknown = None

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        if size not in (None, 256):
            raise ConfigError(f"vocabulary={size}: a byte tokenizer has exactly 256 tokens")
        return cls()

    @classmethod
    def train_bytes(cls, raw: bytes, size: int | None = None, *, where: str = "the text", offset: int = 0) -> Self:
        return cls.train("", size)

    def encode(self, text: str) -> Ids:
        # Bytes of the command line that are not UTF-8 reach Python escaped: they come out unchanged.
        return self.encode_bytes(text.encode("utf-8", "surrogateescape"))

    def encode_bytes(self, raw: bytes, *, where: str = "the text", offset: int = 0) -> Ids:
        return np.frombuffer(raw, np.uint8).astype(np.int32)

    @classmethod
    def find_cut(cls, raw: bytes) -> int:
        return len(raw)

    def encode_part(self, part: Part, *, where: str = "the text", offset: int = 0) -> Ids:
        return self.encode_bytes(part.raw)

    def as_text(self, raw: bytes, *, where: str = "the text", offset: int = 0) -> str:
        return raw.decode("utf-8", "surrogateescape")

    def part_as_text(self, part: Part, *, where: str = "the text", offset: int = 0) -> str:
        return self.as_text(part.raw)

    def encode_sentence(self, text: str) -> Ids:
        return self.encode(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """As text for people: bytes that are not UTF-8 become U+FFFD. `decode_bytes` keeps them."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def until_end(self, ids: Iterable[int]) -> Iterator[int]:
        """What is generated, up to the first token that ends a text."""
        return takewhile(lambda token: token not in self.ends, ids)

    def byte_ends(self, text: str, ids: Ids) -> NDArray[np.int64] | None:
        return np.arange(1, len(ids) + 1)

    def decode_bytes(self, ids: Sequence[int] | Ids) -> bytes:
        """Exactly the bytes that were encoded."""
        return bytes(int(number) for number in ids)

    def to_plain(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls()


def tokenizer_from_plain(plain: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `to_plain` described. Only names of the table are looked up, whatever the description says."""
    if not isinstance(plain, Mapping):
        raise DataError(f"the description of a tokenizer must be a mapping, not a {type(plain).__name__}")
    kind = plain.get("kind")
    if not isinstance(kind, str):
        raise DataError("the description of a tokenizer has no 'kind'")
    if kind == "pretrained":
        from anaphor.data.pretrained_tokenizer import PretrainedTokenizer

        return PretrainedTokenizer.from_plain(plain)
    tokenizer: Tokenizer = look_up(TOKENIZERS, kind, "tokenizer").from_plain(plain)
    return tokenizer
