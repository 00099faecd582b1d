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

from anaphor.data.files import CHUNK
from anaphor.data.tokenizer import END, Ids, Tokenizer, show_byte, strings
from anaphor.errors import ConfigError, DataError

DEFAULT_SIZE = 4096
# Visible bytes stand for themselves in the library's byte-level alphabet, the others follow from U+0100 on.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [value for value in range(256) if value not in _VISIBLE]
ALPHABET = {chr(value): value for value in _VISIBLE} | {chr(256 + n): value for n, value in enumerate(_HIDDEN)}
# Random segmentations of a distinct word: as many as its occurrences, within these bounds.
MIN_DRAWS, MAX_DRAWS = 16, 256
# A draw takes time by the square of the length: longer ones, which are no words, keep their plain segmentation.
MAX_WORD_LENGTH = 100
_ROWS = 2**14  # words that are drawn at once: few enough for the cache of the processor
_NO_MERGE = np.iinfo(np.int32).max  # a rank behind all others
# The library never merges across the single space before a word, so a cut there changes no token.
_BEFORE_WORD = re.compile(r"(?<=\S) (?=\S)")


class BPE(Tokenizer):
    """Token 0 is `<eos>`, which stands for a newline; the subwords follow in the order of the library.

    The library does not know `<eos>`: a text that spells it is encoded as five ordinary characters.
    """

    kind = "bpe"

    def __init__(self, vocabulary: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
        self._vocabulary, self._merges = tuple(vocabulary), tuple(merges)
        _check(self._vocabulary, self._merges)
        self._bytes = (b"\n", *(bytes(ALPHABET[letter] for letter in piece) for piece in self._vocabulary))
        self.tokens = (END, *map(show_bytes, self._bytes[1:]))
        self.boundary = self.pad = 0
        self.unknown = None

    @classmethod
    def train(cls, text: str, size: int | None = None) -> Self:
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
        library.train_from_iterator((part for part in _parts(_checked(text)) if part != "\n"), trainer)
        model = json.loads(library.to_str())["model"]
        vocabulary: dict[str, int] = model["vocab"]
        return cls(sorted(vocabulary, key=vocabulary.__getitem__), [(left, right) for left, right in model["merges"]])

    def encode(self, text: str) -> Ids:
        blocks = [self._encode_parts(block) for block in _blocks(_checked(text))]
        return np.concatenate(blocks) if blocks else np.empty(0, np.int32)

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
        numbers = {piece: number for number, piece in enumerate(self._vocabulary, 1)}
        return numbers | {newline: 0, END: numbers[newline]}

    def to_pairs(self) -> list[tuple[str, str]]:
        """The merges, in their order."""
        return list(self._merges)

    def to_plain(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "vocabulary": list(self._vocabulary),
            "merges": [" ".join(pair) for pair in self._merges],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        pairs = [tuple(pair.split(" ")) for pair in strings(plain, "merges")]
        for pair in pairs:
            if len(pair) != 2:
                raise DataError(f"a bpe tokenizer's merge {' '.join(pair)!r} is not a pair")
        return cls(strings(plain, "vocabulary"), [(left, right) for left, right in pairs])

    def _encode_parts(self, parts: list[str]) -> Ids:
        pieces = iter(self._encoder.encode_batch_fast([part for part in parts if part != "\n"]))
        ids: list[int] = []
        for part in parts:
            ids.extend((-1,) if part == "\n" else next(pieces).ids)
        return np.array(ids, np.int32) + 1  # the library's piece 0 is our token 1

    @cached_property
    def merges(self) -> Merges:
        """The merges, to segment words at random."""
        return Merges(self._vocabulary, self._merges)

    @cached_property
    def _encoder(self) -> Any:
        import tokenizers

        vocabulary = {piece: number for number, piece in enumerate(self._vocabulary)}
        return _library(tokenizers.models.BPE(vocab=vocabulary, merges=list(self._merges)))


class Merges:
    """The merges of a tokenizer as arrays, to segment many words of one length at once."""

    def __init__(self, vocabulary: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
        numbers = {piece: number for number, piece in enumerate(vocabulary, 1)}
        self._letters = np.zeros(max(map(ord, ALPHABET)) + 1, np.int64)
        self._letters[[ord(letter) for letter in ALPHABET]] = [numbers[letter] for letter in ALPHABET]
        self._merged = np.array([numbers[left + right] for left, right in merges], np.int64)
        ranks = {(numbers[left], numbers[right]): rank for rank, (left, right) in enumerate(merges)}
        self._base = len(vocabulary) + 1
        keys = np.array([left * self._base + right for left, right in ranks], np.int64)
        order = np.argsort(keys)
        # With one key more, behind all others, every search ends inside.
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._ranks = np.append(np.array(list(ranks.values()), np.int32)[order], _NO_MERGE)

    def spell(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Words of one length as the tokens of their bytes. [B, T]"""
        codes = np.frombuffer("".join(words).encode("utf-32-le"), np.dtype("<u4"))
        letters: NDArray[np.int64] = self._letters[codes]
        return letters.reshape(len(words), -1)

    def segment(
        self, ids: NDArray[np.int64], dropout: float, generator: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows that are done and their tokens, [N] and [N, size], size by size. At every step each merge that is
        possible is left out with probability `dropout`, and the first of the others is made, until none is left.
        [B, T] -> ..."""
        # Token 0, which has no merge, on both sides: every pair has neighbors.
        ids = np.pad(ids, ((0, 0), (1, 1)))
        ranks, rows = self._rank(ids[:, :-1], ids[:, 1:]), np.arange(len(ids))
        while len(rows):
            left = np.where(generator.random(ranks.shape, np.float32) < dropout, _NO_MERGE, ranks)
            best = left.argmin(1)
            rank = left[np.arange(len(left)), best]
            is_done = rank == _NO_MERGE
            if is_done.any():
                yield rows[is_done], ids[is_done, 1:-1]
                ids, ranks, rows, best, rank = (array[~is_done] for array in (ids, ranks, rows, best, rank))
            # Every row that is left has one merge made, so that all are of one length again.
            every = np.arange(len(rows))
            ids = _drop_one(ids, best + 1)
            ids[every, best] = self._merged[rank]
            ranks = _drop_one(ranks, best)
            for place in (best - 1, best):
                ranks[every, place] = self._rank(ids[every, place], ids[every, place + 1])

    def _rank(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int32]:
        keys = left * self._base + right
        found = np.searchsorted(self._keys, keys)
        return np.where(self._keys[found] == keys, self._ranks[found], np.int32(_NO_MERGE))


def _drop_one(array: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """Without one element of each row. [B, T], [B] -> [B, T - 1]"""
    keep = np.ones(array.shape, bool)
    keep[np.arange(len(array)), places] = False
    return array[keep].reshape(len(array), array.shape[1] - 1)


class SubwordSampler:
    """Sentences in random segmentations: BPE-dropout (Provilkov, Emelianenko and Voita, 2020).

    To segment every word of a text takes seconds. So segmentations of each distinct word are drawn once, and `sample`
    chooses one of them for each of its occurrences.
    """

    def __init__(
        self, tokenizer: BPE, sentences: Iterable[str], dropout: float, generator: np.random.Generator
    ) -> None:
        numbers: dict[str, int] = {}
        occurrences, bounds = list[int](), [0]
        for sentence in sentences:
            occurrences += [numbers.setdefault(word, len(numbers)) for word in tokenizer.split_words(sentence)]
            bounds.append(len(occurrences))
        self._occurrences, self._bounds = np.array(occurrences, np.int64), np.array(bounds)
        words, lengths = list(numbers), np.array([len(word) for word in numbers], np.int64)
        draws = np.bincount(self._occurrences, minlength=len(words)).clip(MIN_DRAWS, MAX_DRAWS)
        draws[lengths > MAX_WORD_LENGTH] = 0
        # The plain segmentations come first, one of each word; those that are drawn follow, word by word.
        self._first = np.where(draws, len(words) + np.cumsum(draws) - draws, np.arange(len(words)))
        self._draws = draws.clip(min=1)
        plain = [tokenizer.encode_word(word) for word in words]
        blocks, total = [np.fromiter(chain.from_iterable(plain), np.int32)], sum(map(len, plain))
        self._sizes = np.zeros(len(words) + draws.sum(), np.int64)
        self._sizes[: len(words)] = [len(ids) for ids in plain]
        self._starts = np.cumsum(self._sizes) - self._sizes
        owners = np.repeat(np.arange(len(words)), draws)  # the word of each that is drawn
        for length in np.unique(lengths[owners]).tolist():
            same = np.flatnonzero(lengths[owners] == length)
            for start in range(0, len(same), _ROWS):
                part = same[start : start + _ROWS]
                letters = tokenizer.merges.spell([words[owner] for owner in owners[part].tolist()])
                for rows, ids in tokenizer.merges.segment(letters, dropout, generator):
                    places, size = len(words) + part[rows], ids.shape[1]
                    self._sizes[places] = size
                    self._starts[places] = total + size * np.arange(len(rows))
                    blocks.append(ids.ravel().astype(np.int32))
                    total += ids.size
        self._tokens = np.concatenate(blocks)

    def sample(self, generator: np.random.Generator, limit: int | None = None) -> tuple[Ids, NDArray[np.int64]]:
        """(tokens of all sentences [N], number of tokens of each [P]). A sentence that would have more than `limit`
        tokens has its plain segmentation."""
        chosen = self._first[self._occurrences] + generator.integers(self._draws[self._occurrences])
        sizes = self._count(chosen)
        if limit is not None and (too_long := sizes > limit).any():
            is_plain = np.repeat(too_long, np.diff(self._bounds))
            chosen[is_plain] = self._occurrences[is_plain]
            sizes = self._count(chosen)
        lengths = self._sizes[chosen]
        shift = self._starts[chosen] - np.cumsum(lengths) + lengths  # from a word's place in the text to that drawn
        return self._tokens[np.arange(lengths.sum()) + np.repeat(shift, lengths)], sizes

    def _count(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each sentence."""
        ends: NDArray[np.int64] = np.append(0, np.cumsum(self._sizes[chosen]))[self._bounds]
        return ends[1:] - ends[:-1]


def _library(model: Any) -> Any:
    import tokenizers

    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library


def _parts(text: str) -> Iterator[str]:
    """Lines and line ends as separate parts; long lines are cut to bound the library's memory."""
    for match in re.finditer(r"[^\n]+|\n", text):
        line, start = match.group(), 0
        while len(line) - start > CHUNK:
            # Text without a space is cut anywhere: it still decodes to itself.
            cut = _BEFORE_WORD.search(line, start + CHUNK // 2, start + CHUNK)
            end = cut.start() if cut else start + CHUNK
            yield line[start:end]
            start = end
        yield line[start:]


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


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"the text is not UTF-8 at character {error.start}: use the byte tokenizer for it") from None
    return text


def _check(vocabulary: tuple[str, ...], merges: tuple[tuple[str, str], ...]) -> None:
    """Raise what the library would report by an error of its own kind, or accept and then misread."""
    known = set(vocabulary)
    if len(known) < len(vocabulary):
        raise DataError("the vocabulary of a bpe tokenizer has a subword twice")
    if missing := ALPHABET.keys() - known:
        raise DataError(f"the vocabulary of a bpe tokenizer lacks {len(missing)} of the 256 bytes")
    for piece in vocabulary:
        if not piece or not ALPHABET.keys() >= set(piece):
            raise DataError(f"the vocabulary of a bpe tokenizer has {piece!r}, which is not made of bytes")
    for left, right in merges:
        if not {left, right, left + right} <= known:
            raise DataError(f"a bpe tokenizer merges {left!r} and {right!r}, which are not both in its vocabulary")


def show_bytes(raw: bytes) -> str:
    """A subword for people; bytes that are not whole characters are written like <0xE2>."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(map(show_byte, raw))
