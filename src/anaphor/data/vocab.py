"""The table of tokenizers, with those that split at white space, at characters and at bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from anaphor.config import look_up
from anaphor.data.bpe import BPE
from anaphor.data.files import CHUNK, split_chunks
from anaphor.data.tokenizer import END, UNKNOWN, Ids, ListedTokenizer, Tokenizer, most_frequent, show_byte
from anaphor.data.treebank import Treebank
from anaphor.errors import ConfigError, DataError

__all__ = ["BPE", "TOKENIZERS", "Byte", "Character", "Ids", "Tokenizer", "Treebank", "Word", "tokenizer_from_plain"]


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
    def train(cls, text: str, size: int | None = None) -> Self:
        counts: Counter[str] = Counter()
        for words in _chunks_of_words(text):
            counts.update(words)
        return cls(most_frequent(counts, cls.special, size))

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
    def train(cls, text: str, size: int | None = None) -> Self:
        counts = Counter(dict.fromkeys(set(text), 1) if size is None else text)
        kept = most_frequent(counts, cls.special, size)
        return cls([*sorted(token for token in kept if token != UNKNOWN), UNKNOWN])

    def encode(self, text: str) -> Ids:
        ids = np.empty(len(text), np.int32)
        for start in range(0, len(text), CHUNK):
            part = text[start : start + CHUNK]
            points = np.frombuffer(part.encode("utf-32-le", "surrogatepass"), np.uint32)
            ids[start : start + len(part)] = self._id_of_code_point[points]
        return ids

    def encode_sentence(self, text: str) -> Ids:
        return self.encode(text)

    def parts(self, text: str) -> Iterable[str]:
        return text

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The characters; U+FFFD, the replacement character, for unknown ones."""
        return "".join("\ufffd" if token == self.unknown else self.tokens[token] for token in ids)

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

    def __init__(self) -> None:
        self.tokens = tuple(show_byte(value) for value in range(256))
        self.boundary = self.pad = ord("\n")
        self.unknown = None

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        if size not in (None, 256):
            raise ConfigError(f"size={size}: a byte tokenizer has exactly 256 tokens")
        return cls()

    @classmethod
    def train_bytes(cls, raw: bytes, size: int | None = None, *, where: str = "the text", offset: int = 0) -> Self:
        return cls.train("", size)

    def encode(self, text: str) -> Ids:
        # Bytes of the command line that are not UTF-8 reach Python escaped: they come out unchanged.
        return self.encode_bytes(text.encode("utf-8", "surrogateescape"))

    def encode_bytes(self, raw: bytes, *, where: str = "the text", offset: int = 0) -> Ids:
        return np.frombuffer(raw, np.uint8).astype(np.int32)

    def as_text(self, raw: bytes, *, where: str = "the text", offset: int = 0) -> str:
        return raw.decode("utf-8", "surrogateescape")

    def encode_sentence(self, text: str) -> Ids:
        return self.encode(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """As text for people: bytes that are not UTF-8 become U+FFFD. `decode_bytes` keeps them."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Sequence[int] | Ids) -> bytes:
        """Exactly the bytes that were encoded."""
        return bytes(int(number) for number in ids)

    def to_plain(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls()


TOKENIZERS: dict[str, type[Tokenizer]] = {
    "word": Word,
    "treebank": Treebank,
    "character": Character,
    "byte": Byte,
    "bpe": BPE,
}


def tokenizer_from_plain(plain: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `to_plain` described. Only names of the table are looked up, whatever the description says."""
    if not isinstance(plain, Mapping):
        raise DataError(f"the description of a tokenizer must be a mapping, not a {type(plain).__name__}")
    kind = plain.get("kind")
    if not isinstance(kind, str):
        raise DataError("the description of a tokenizer has no 'kind'")
    return look_up(TOKENIZERS, kind, "tokenizer").from_plain(plain)
