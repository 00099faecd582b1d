"""Tokenizer that comes with pretrained weights: a `tokenizer.json` of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from anaphor.config import MAX_VOCABULARY
from anaphor.data.bpe import ALPHABET, BPE, show_bytes
from anaphor.data.tokenizer import END, UNKNOWN, Ids, Tokenizer, Word
from anaphor.data.tokenizer_limits import call_library, call_with_limit, check_tokenizer_json, has_expressions
from anaphor.errors import ConfigError, DataError


class PretrainedTokenizer(Tokenizer):
    """What the library's file describes, without the limits of length that some files have."""

    kind = "pretrained"

    def __init__(
        self,
        text: str,
        boundary: int,
        pad: int,
        *,
        ends: Sequence[int] = (),
        size: int = 0,
        where: str = "the tokenizer",
    ) -> None:
        """`text` is the JSON of the library; `size` is that of the model's vocabulary, where it is larger."""
        import tokenizers

        self.text, self.where = text, where
        check_tokenizer_json(text, where)
        self._library: Any = call_library(lambda: tokenizers.Tokenizer.from_str(text), where)
        self._has_expressions = has_expressions(text)
        self._library.no_truncation()
        self._library.no_padding()
        by_id = {number: token for token, number in self._library.get_vocab(with_added_tokens=True).items()}
        self._is_byte_level = type(self._library.decoder).__name__ == "ByteLevel"
        self._count = max(by_id, default=-1) + 1
        self.tokens = tuple(self._show(by_id.get(number, f"<{number}>")) for number in range(max(self._count, size)))
        specials = ((f"the special token {number}", number) for number in self._library.encode("").ids)
        for name, number in (*specials, ("boundary", boundary), ("pad", pad), *(("end", end) for end in ends)):
            if not 0 <= number < len(self.tokens):
                raise DataError(f"{where}: {name}={number} is outside the vocabulary of {len(self.tokens):,}")
        self.boundary, self.pad, self.ends = boundary, pad, tuple(ends)
        unknown = None if self._is_byte_level else getattr(self._library.model, "unk_token", None)
        self.unknown = None if unknown is None else self._library.token_to_id(unknown)

    @classmethod
    def from_text(
        cls, text: str, *, where: str, boundary: int | None, pad: int | None, ends: Sequence[int] = ()
    ) -> Self:
        """With the special tokens that the file names where they are not given: the first one that it puts before a
        text, and its padding."""
        tokenizer = cls(text, 0, 0, where=where)
        first = tokenizer._first_special
        special = tokenizer._library.token_to_id("<|endoftext|>")
        fallback = boundary if boundary is not None else 0 if special is None else special
        tokenizer.boundary = fallback if first is None else first
        names = (tokenizer._library.token_to_id(name) for name in ("[PAD]", "<pad>"))
        found = next((number for number in names if number is not None), tokenizer.boundary)
        tokenizer.pad = found if pad is None else pad
        tokenizer.ends = tuple(end for end in ends if end < len(tokenizer))
        return tokenizer

    def with_size(self, size: int) -> Self:
        """For a model whose vocabulary has so many tokens; those without a text are never encoded."""
        if size <= len(self):
            return self
        return type(self)(self.text, self.boundary, self.pad, ends=self.ends, size=size, where=self.where)

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        raise ConfigError("tokenizer='pretrained' comes with pretrained weights and cannot be trained")

    def encode(self, text: str) -> Ids:
        return np.array(self._encode(text, special=False), np.int32)

    def encode_sentence(self, text: str) -> Ids:
        return self.encode(text)

    def encode_prompt(self, text: str) -> list[int]:
        """The text with the special tokens that the file puts around it, after the boundary."""
        ids = self._encode(text, special=True)
        return ids if self._first_special == self.boundary else [self.boundary, *ids]

    def encode_text(self, text: str) -> list[int]:
        return self.encode_prompt(text)  # newlines included: the file says what becomes of them

    def truncate(self, ids: Ids, length: int) -> Ids:
        """As if the text had been shorter: special tokens at the end are kept."""
        special = self._library.encode("").ids
        last = len(special) - 1 if special else 0
        if not 0 < last < length:
            return ids[:length]
        return np.concatenate((ids[: length - last], ids[-last:]))

    def _encode(self, text: str, special: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(f"the text is not UTF-8 at character {error.start}") from None
        if not self._has_expressions:
            found = call_library(lambda: self._library.encode(text, add_special_tokens=special), self.where)
        else:
            # Of these two the library lets other threads run in the second only.
            (found,) = call_with_limit(
                lambda: self._library.encode_batch([text], add_special_tokens=special), len(text), self.where
            )
        ids: list[int] = found.ids
        return ids

    def decode(self, ids: Sequence[int] | Ids) -> str:
        row = [int(number) for number in ids]
        if not self._has_expressions:
            text: str = call_library(lambda: self._library.decode(row, skip_special_tokens=False), self.where)
            return text
        (text,) = call_with_limit(
            lambda: self._library.decode_batch([row], skip_special_tokens=False), len(row), self.where
        )
        return text

    def to_plain(self) -> dict[str, Any]:
        plain = {"kind": self.kind, "json": self.text, "boundary": int(self.boundary), "pad": int(self.pad)}
        more = {"size": len(self)} if len(self) > self._count else {}
        return plain | ({"ends": list(self.ends)} if self.ends else {}) | more

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        text, boundary, pad = plain.get("json"), plain.get("boundary"), plain.get("pad")
        if not isinstance(text, str) or type(boundary) is not int or type(pad) is not int:
            raise DataError("a pretrained tokenizer is described by its json, boundary and pad")
        ends, size = plain.get("ends", []), plain.get("size", 0)
        if not isinstance(ends, list) or not all(type(end) is int for end in ends):
            raise DataError(f"the ends of a pretrained tokenizer are a list of ids, not {str(ends)[:100]}")
        if type(size) is not int or size > MAX_VOCABULARY:
            raise DataError(f"the size of a pretrained tokenizer is at most {MAX_VOCABULARY:,}, not {str(size)[:100]}")
        return cls(text, boundary, pad, ends=ends, size=size)

    @property
    def is_joined(self) -> bool:
        """Tokens of WordPiece and whole words have no space of their own; those of the other models do."""
        return type(self._library.model).__name__ not in ("WordPiece", "WordLevel")

    @property
    def _first_special(self) -> int | None:
        """The token that the file puts before every text, where it does."""
        return next(iter(self._library.encode("").ids), None)

    def _show(self, token: str) -> str:
        """A token for people: bytes as the characters that they stand for."""
        if self._is_byte_level and set(token) <= _LETTERS:
            return show_bytes(bytes(ALPHABET[letter] for letter in token))
        return token


_LETTERS = ALPHABET.keys()


def tokenizer_json(tokenizer: Tokenizer) -> str | None:
    """`tokenizer.json` by which the library encodes as this tokenizer does; None for kinds that it cannot express."""
    import tokenizers as library

    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.text
    if isinstance(tokenizer, BPE):
        exported = library.Tokenizer(library.models.BPE(tokenizer.library_vocabulary(), tokenizer.to_pairs()))
        lines = library.pre_tokenizers.Split("\n", "isolated")
        pieces = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        exported.pre_tokenizer = library.pre_tokenizers.Sequence([lines, pieces])
        exported.decoder = library.decoders.ByteLevel()
    elif type(tokenizer) is Word:
        vocabulary = {token: number for number, token in enumerate(tokenizer.tokens)}
        exported = library.Tokenizer(library.models.WordLevel(vocabulary, UNKNOWN))
        exported.normalizer = library.normalizers.Replace("\n", f" {END} ")
        # White space as Python has it.
        exported.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(r"[\s\x1c-\x1f]+"), "removed")
    else:
        return None
    text: str = exported.to_str()
    return text
