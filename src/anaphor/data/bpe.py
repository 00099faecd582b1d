"""Byte-pair encoding: subwords trained with the `tokenizers` library on top of the 256 bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anaphor.data.text import CHUNK, cut_after_character, cut_after_line
from anaphor.data.tokenizer import END, Ids, Tokenizer, show_byte, strings
from anaphor.errors import ConfigError, DataError

DEFAULT_SIZE = 4096
# Visible bytes stand for themselves in the library's byte-level alphabet, the others follow from U+0100 on.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [value for value in range(256) if value not in _VISIBLE]
ALPHABET = {chr(value): value for value in _VISIBLE} | {chr(256 + n): value for n, value in enumerate(_HIDDEN)}
# The library never merges across the single space before a word, so a cut there changes no token.
_BEFORE_WORD = re.compile(r"(?<=\S) (?=\S)")
MAX_WORD = 1000
"""Characters of the longest word that training counts as one: it reads a word whole for each merge inside it."""
MIN_SEGMENT, MAX_WORDS, MAX_KEPT = 1000, 200_000, 100
"""Characters of a text from which on its words are looked up, how many words are kept, and how long they may be."""
# A word with the white space before it, or that at the end. The library has no token that goes on after a word into
# white space, and what it makes of the rest does not depend on the word. To it these four signs are no white space.
_WORD_AFTER_SPACE = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+")
# All white space but a single space and the line end.
_ODD_SPACES = ("  ", *(chr(point) for point in range(0x3001) if chr(point).isspace() and chr(point) not in " \n"))
_LONG_RUN = re.compile(rf"\s{{{MAX_WORD}}}")
_LONG_WORD = re.compile(rf"[^\W\d_]{{{MAX_WORD}}}|\d{{{MAX_WORD}}}|(?:[^\w\s]|_){{{MAX_WORD}}}|\s{{{MAX_WORD}}}")


class BPE(Tokenizer):
    """Token 0 is `<eos>`, which stands for a newline; the subwords follow in the order of the library.

    The library does not know `<eos>`: a text that spells it is encoded as five ordinary characters.
    """

    kind = "bpe"
    can_encode_parts = True
    pieces: tuple[str, ...]
    """The subwords in the library's alphabet; the first one is token 1."""

    def __init__(self, vocabulary: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
        self.pieces, self._merges = tuple(vocabulary), tuple(merges)
        _check(self.pieces, self._merges)
        self._bytes = (b"\n", *(bytes(ALPHABET[letter] for letter in piece) for piece in self.pieces))
        self.tokens = (END, *map(show_bytes, self._bytes[1:]))
        self.boundary = self.pad = 0
        self.unknown = None

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
        return cls.train_parts([_check_unicode(text)], size)

    @classmethod
    def train_parts(cls, texts: Iterable[str], size: int | None = None) -> Self:
        """The same for a text in parts, which `find_cut` gave. The library counts words, and keeps no text."""
        import tokenizers

        size = DEFAULT_SIZE if size is None else size
        if size <= len(ALPHABET):
            least = len(ALPHABET) + 1
            raise ConfigError(f"vocabulary={size}: a bpe tokenizer has at least {least} tokens: bytes and {END}")
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size - 1,
            min_frequency=2,
            show_progress=False,
            special_tokens=[],
            initial_alphabet=sorted(ALPHABET),
        )
        library = _library(tokenizers.models.BPE())
        parts = (part for text in texts for part in _parts(text) if part != "\n")
        library.train_from_iterator(chain.from_iterable(map(_cut_long_words, parts)), trainer)
        model = json.loads(library.to_str())["model"]
        vocabulary: dict[str, int] = model["vocab"]
        return cls(sorted(vocabulary, key=vocabulary.__getitem__), [(left, right) for left, right in model["merges"]])

    def encode(self, text: str) -> Ids:
        blocks = [self._encode_segment(segment) for segment in _segments(_check_unicode(text))]
        return np.concatenate(blocks) if blocks else np.empty(0, np.int32)

    def encode_by_library(self, text: str) -> Ids:
        """The same, every word by the library: the slow twin of `encode`, which keeps the words that it has seen."""
        blocks = [self._encode_parts(block) for block in _blocks(_check_unicode(text))]
        return np.concatenate(blocks) if blocks else np.empty(0, np.int32)

    @classmethod
    def find_cut(cls, raw: bytes) -> int:
        # A line that is cut inside a word must be cut where `encode` would cut it.
        return cut_after_line(raw) or _find_cut_in_line(raw)

    def encode_sentence(self, text: str) -> Ids:
        return self.encode(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Exactly the text that was encoded; half a character, which only a model can generate, becomes U+FFFD."""
        return b"".join(self._bytes[number] for number in ids).decode("utf-8", "replace")

    def byte_ends(self, text: str, ids: Ids) -> NDArray[np.int64] | None:
        return np.cumsum(np.array([len(raw) for raw in self._bytes])[ids])

    def split_words(self, text: str) -> list[str]:
        """The words of a line with the space before them, in the library's alphabet: no token crosses their bounds."""
        return [word for word, _ in self._encoder.pre_tokenizer.pre_tokenize_str(text)]

    def encode_word(self, word: str) -> list[int]:
        """One of `split_words` in its plain segmentation."""
        return [piece.id + 1 for piece in self._encoder.model.tokenize(word)]

    def library_vocabulary(self) -> dict[str, int]:
        """The subwords with the numbers of our tokens, where the byte of a newline is the token `<eos>`."""
        newline = next(letter for letter, value in ALPHABET.items() if value == ord("\n"))
        numbers = {piece: number for number, piece in enumerate(self.pieces, 1)}
        return numbers | {newline: 0, END: numbers[newline]}

    def to_pairs(self) -> list[tuple[str, str]]:
        """The merges, in their order."""
        return list(self._merges)

    def to_plain(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "vocabulary": list(self.pieces),
            "merges": [" ".join(pair) for pair in self._merges],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        pairs = [tuple(pair.split(" ")) for pair in strings(plain, "merges")]
        for pair in pairs:
            if len(pair) != 2:
                raise DataError(f"a bpe tokenizer's merge {' '.join(pair)!r} is not a pair")
        return cls(strings(plain, "vocabulary"), [(left, right) for left, right in pairs])

    def _encode_segment(self, text: str) -> Ids:
        """Lines, or part of a long line, with each word looked up."""
        if len(text) < MIN_SEGMENT:  # one call of the library is cheaper
            return self.encode_by_library(text)
        if any(space in text for space in _ODD_SPACES):
            words = _WORD_AFTER_SPACE.findall(text)
            return self._look_up(words, self._ids_of_words, words)
        # Quicker: words without the space before them, the first one of a line with the line end.
        first, *words = text.replace("\n", " \n").split(" ")
        ids = self._look_up(words, self._ids_after_space, (word if word[:1] == "\n" else f" {word}" for word in words))
        return np.concatenate((self.encode_by_library(first), ids)) if first else ids

    def _look_up(self, words: list[str], cached: dict[str, bytes], texts: Iterable[str]) -> Ids:
        """The ids of words, which stand for these texts; what is not known yet is encoded and kept."""
        if len(cached) > MAX_WORDS:
            cached.clear()
        if cached.keys() >= set(words):
            return np.frombuffer(b"".join(map(cached.__getitem__, words)), np.int32)
        missing = {word: text for word, text in zip(words, texts, strict=True) if word not in cached}
        cached.update(zip(missing, self._encode_words(list(missing.values())), strict=True))
        ids = np.frombuffer(b"".join(map(cached.__getitem__, words)), np.int32)
        for word in missing:
            if len(word) > MAX_KEPT:
                del cached[word]
        return ids

    def _encode_words(self, texts: list[str]) -> Iterator[bytes]:
        lines = [text.split("\n") for text in texts]
        encoded = iter(self._encoder.encode_batch_fast(list(chain.from_iterable(lines))))
        for parts in lines:
            ids = [-1]
            for _ in parts:
                ids += [*next(encoded).ids, -1]
            yield (np.array(ids[1:-1], np.int32) + 1).tobytes()  # a line end is token 0, as in `_encode_parts`

    @cached_property
    def _ids_of_words(self) -> dict[str, bytes]:
        return {}

    @cached_property
    def _ids_after_space(self) -> dict[str, bytes]:
        return {}

    def _encode_parts(self, parts: list[str]) -> Ids:
        pieces = iter(self._encoder.encode_batch_fast([part for part in parts if part != "\n"]))
        ids: list[int] = []
        for part in parts:
            ids.extend((-1,) if part == "\n" else next(pieces).ids)
        return np.array(ids, np.int32) + 1  # the library's piece 0 is our token 1

    @cached_property
    def _encoder(self) -> Any:
        import tokenizers

        vocabulary = {piece: number for number, piece in enumerate(self.pieces)}
        return _library(tokenizers.models.BPE(vocab=vocabulary, merges=list(self._merges)))


def _segments(text: str) -> Iterator[str]:
    """Whole lines with about `CHUNK` characters together; longer lines in parts."""
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= CHUNK else text.rfind("\n", start, start + CHUNK) + 1
        if end:
            yield text[start:end]
        else:
            end = text.find("\n", start) + 1 or len(text)
            yield from _parts(text[start:end])
        start = end


def _library(model: Any) -> Any:
    import tokenizers

    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library


def _parts(text: str) -> Iterator[str]:
    """Lines and line ends as separate parts; long lines are cut to bound the library's memory."""
    for match in re.finditer(r"[^\n]+|\n", text):
        line, start = match.group(), 0
        for end in _cuts_of_line(line):
            yield line[start:end]
            start = end
        yield line[start:]


def _cuts_of_line(line: str) -> Iterator[int]:
    start = 0
    while len(line) - start > CHUNK:
        # Text without a space is cut anywhere: it still decodes to itself.
        cut = _BEFORE_WORD.search(line, start + CHUNK // 2, start + CHUNK)
        start = cut.start() if cut else start + CHUNK
        yield start


def _find_cut_in_line(raw: bytes) -> int:
    """The last cut of a line that goes on after these bytes; 0 where it is not long enough."""
    whole = raw[: cut_after_character(raw)]
    try:
        text = whole.decode("utf-8-sig")
    except UnicodeDecodeError:
        return len(whole)  # which whoever decodes it will report
    if "\r" in text:  # a line end of its own
        return whole.rfind(b"\r") + 1
    cut = max(_cuts_of_line(text), default=0)
    return len(whole) - len(text[cut:].encode()) if cut else 0


def _cut_long_words(part: str) -> Iterator[str]:
    """A part of a text for training, its words of more than `MAX_WORD` characters in several pieces."""
    start = 0
    # Most texts have none: to ask for them is quicker than to look at each word.
    if len(part) > MAX_WORD and (max(map(len, part.split()), default=0) > MAX_WORD or _LONG_RUN.search(part)):
        for piece in _LONG_WORD.finditer(part):
            yield part[start : piece.end()]
            start = piece.end()
    yield part[start:]


def _blocks(text: str) -> Iterator[list[str]]:
    """Lists of parts with about `CHUNK` characters each."""
    block: list[str] = []
    characters = 0
    for part in _parts(text):
        block.append(part)
        characters += len(part)
        if characters >= CHUNK:
            yield block
            block, characters = [], 0
    if block:
        yield block


def _check_unicode(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"the text is not UTF-8 at character {error.start}: use the byte tokenizer for it") from None
    return text


def _check(vocabulary: tuple[str, ...], merges: tuple[tuple[str, str], ...]) -> None:
    """Raise what the library would report by an error of its own kind, or accept and then misread."""
    tokens = set(vocabulary)
    if len(tokens) < len(vocabulary):
        raise DataError("the vocabulary of a bpe tokenizer has a subword twice")
    if missing := ALPHABET.keys() - tokens:
        raise DataError(f"the vocabulary of a bpe tokenizer lacks {len(missing)} of the 256 bytes")
    for piece in vocabulary:
        if not piece or not ALPHABET.keys() >= set(piece):
            raise DataError(f"the vocabulary of a bpe tokenizer has {piece!r}, which is not made of bytes")
    for left, right in merges:
        if not {left, right, left + right} <= tokens:
            raise DataError(f"a bpe tokenizer merges {left!r} and {right!r}, which are not both in its vocabulary")


def show_bytes(raw: bytes) -> str:
    """A subword for people; bytes that are not whole characters are written like <0xE2>."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(map(show_byte, raw))
