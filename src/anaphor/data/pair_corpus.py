"""Sentence pairs as numbers: a tokenizer for both languages or one for each, and what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anaphor.data.buckets import Places, at_least_one
from anaphor.data.corpus import build_tokenizer, encoded
from anaphor.data.pair_source import Pair, PairSource
from anaphor.data.source import TRAIN, Source
from anaphor.data.tokenizer import Ids, Tokenizer
from anaphor.data.vocab import tokenizer_from_plain
from anaphor.errors import DataError


@dataclass(frozen=True)
class PairTokenizers:
    """How each language is read. They may be one and the same."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether a number means the same in both languages, so that embeddings can be shared."""
        return self.source == self.target

    def to_plain(self) -> dict[str, Any]:
        """All there is to know about them, as JSON can hold it."""
        target = {} if self.joint else {"target": self.target.to_plain()}
        return {"source": self.source.to_plain(), **target}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Make them again."""
        if not isinstance(plain, Mapping) or "source" not in plain:
            raise DataError("tokenizers of pairs are described by a mapping with 'source', and 'target' if it differs")
        source = tokenizer_from_plain(plain["source"])
        return cls(source, tokenizer_from_plain(plain["target"]) if "target" in plain else source)


class Sentences(Source):
    """Sentences as one text, a blank line after each, so that every tokenizer reads each of them alone.

    It has one split, whichever the sentences are from.
    """

    splits = (TRAIN,)

    def __init__(self, name: str, sentences: Sequence[str]) -> None:
        self.name, self.sentences = name, sentences

    def read(self, split: str) -> bytes:
        return "".join(f"{sentence}\n\n" for sentence in self.sentences).encode()

    def where(self, split: str) -> str:
        return self.name


def joint_tokenizers(source: PairSource, kind: str, size: int | None = None) -> PairTokenizers:
    """One tokenizer, trained on both sides of the train split and on nothing else."""
    found = source.aligned(TRAIN)
    both = [sentence for side in zip(*found.pairs, strict=True) for sentence in side]
    tokenizer = build_tokenizer(Sentences(" and ".join(found.where), both), kind, size)
    return PairTokenizers(tokenizer, tokenizer)


def separate_tokenizers(source: PairSource, kind: str, size: int | None = None) -> PairTokenizers:
    """A tokenizer for each language, trained on its side of the train split; each has at most `size` tokens."""
    found = source.aligned(TRAIN)
    sides = zip(found.where, zip(*found.pairs, strict=True), strict=True)
    return PairTokenizers(*(build_tokenizer(Sentences(where, side), kind, size) for where, side in sides))


@dataclass(frozen=True)
class EncodedSide:
    """Sentences of one language, without boundaries."""

    tokens: Ids
    """[N]: one sentence after the other."""
    sizes: Places
    """[P]: how many tokens each sentence has."""
    tokenizer: Tokenizer
    where: str
    """What an error calls the file."""

    def __getitem__(self, place: int) -> Ids:
        """One sentence."""
        end = int(self.sizes[: place + 1].sum())
        return self.tokens[end - int(self.sizes[place]) : end]

    @property
    def unknowns(self) -> int:
        """Tokens that are `<unk>`."""
        unknown = self.tokenizer.unknown
        return 0 if unknown is None else int(np.count_nonzero(self.tokens == unknown))

    def kept(self, keep: NDArray[np.bool_]) -> EncodedSide:
        """The sentences where `keep` is true."""
        return replace(self, tokens=self.tokens[np.repeat(keep, self.sizes)], sizes=self.sizes[keep])


@dataclass(frozen=True)
class EncodedPairs:
    """One split as its tokenizers read it."""

    source: EncodedSide
    target: EncodedSide
    places: Places
    """[P]: which pair of the split each one is."""
    lines: Places
    """[P]: its line in the files, from 1 on."""
    target_bytes: Places
    """[P]: how long each target is as UTF-8, its line end included: the same for every tokenizer."""
    digest: str
    """SHA-256 of the split."""
    blank: int = 0
    """Lines that are empty on both sides, and so left out."""
    dropped: int = 0
    """Pairs that were too long, and so left out."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def bytes(self) -> int:
        """How long all targets are."""
        return int(self.target_bytes.sum())

    def check_lengths(self, source: int | None = None, target: int | None = None) -> None:
        """An error where a sentence needs more positions than a model has on that side. The end of a target is one."""
        for side, limit, end in ((self.source, source, 0), (self.target, target, 1)):
            if limit is None:
                continue
            too_long = np.flatnonzero(side.sizes + end > limit)
            if len(too_long):
                first = too_long[0]
                more = f", as are {len(too_long) - 1:,} more" if len(too_long) > 1 else ""
                raise DataError(
                    f"line {self.lines[first]} of {side.where} is too long{more}: it has "
                    f"{side.sizes[first] + end:,} tokens{' with its end' if end else ''}, and the limit is {limit:,}"
                )

    def without_longer(self, longest: int) -> EncodedPairs:
        """The pairs with at most so many tokens on either side, the others counted as `dropped`."""
        at_least_one(longest=longest)
        keep = (self.source.sizes <= longest) & (self.target.sizes <= longest)
        if not keep.any():
            raise DataError(f"longest={longest}: every pair of {self.source.where} and {self.target.where} is longer")
        return replace(self._kept(keep), dropped=self.dropped + int(np.count_nonzero(~keep)))

    def first(self, count: int) -> EncodedPairs:
        """The first pairs only."""
        at_least_one(count=count)
        return self._kept(np.arange(len(self)) < count)

    def _kept(self, keep: NDArray[np.bool_]) -> EncodedPairs:
        source, target = self.source.kept(keep), self.target.kept(keep)
        of_pairs = {name: getattr(self, name)[keep] for name in ("places", "lines", "target_bytes")}
        return replace(self, source=source, target=target, **of_pairs)


def encoded_pairs(source: PairSource, split: str, tokenizers: PairTokenizers) -> EncodedPairs:
    """One split as numbers. The second call for the same text and tokenizers finds what the first has left on disk."""
    found = source.aligned(split)
    sources, targets = zip(*found.pairs, strict=True)
    lines = np.array(found.lines)
    return EncodedPairs(
        _encoded(sources, tokenizers.source, found.where[0], lines),
        _encoded(targets, tokenizers.target, found.where[1], lines),
        places=np.arange(len(lines)),
        lines=lines,
        target_bytes=_bytes(targets),
        digest=found.digest,
        blank=found.blank,
    )


def encode_pairs(pairs: Sequence[Pair], tokenizers: PairTokenizers) -> EncodedPairs:
    """Pairs at hand, such as sentences to be translated, whose targets may be empty."""
    if not pairs:
        raise DataError("there are no sentences")
    sources, targets = zip(*pairs, strict=True)
    source, target = _each(sources, tokenizers.source), _each(targets, tokenizers.target)
    if not source.sizes.all():
        raise DataError(f"sentence {int(source.sizes.argmin()) + 1} is empty")
    places = np.arange(len(pairs))
    return EncodedPairs(source, target, places, lines=places + 1, target_bytes=_bytes(targets), digest="")


def _each(sentences: Sequence[str], tokenizer: Tokenizer) -> EncodedSide:
    ids = [tokenizer.encode_sentence(sentence) for sentence in sentences]
    sizes = np.array([len(sentence) for sentence in ids])
    side = EncodedSide(np.concatenate(ids), sizes, tokenizer, "the sentences")
    if tokenizer.boundary in side.tokens:
        _refuse_boundary(sentences, side, np.arange(1, len(sentences) + 1))
    return side


def _encoded(sentences: Sequence[str], tokenizer: Tokenizer, where: str, lines: Places) -> EncodedSide:
    """All at once, and cut where a boundary stands between two sentences."""
    tokens = np.asarray(encoded(Sentences(where, sentences), TRAIN, tokenizer).tokens)
    ends = tokens == tokenizer.boundary
    real = ~ends
    sizes = np.bincount(np.cumsum(ends)[real])
    side = EncodedSide(tokens[real], sizes[sizes > 0], tokenizer, where)
    _refuse_nothing(sentences, side, lines)
    # Each tokenizer has its own number of boundaries for a sentence and a blank line.
    if np.count_nonzero(ends) != len(sentences) * np.count_nonzero(tokenizer.encode("a\n\n") == tokenizer.boundary):
        _refuse_boundary(sentences, side, lines)
    return side


def _refuse_nothing(sentences: Sequence[str], side: EncodedSide, lines: Places) -> None:
    """A line may hold nothing but marks that are no text."""
    if len(side.sizes) < len(sentences):
        bare = (text.replace("\ufeff", "").strip() for text in sentences)
        line = next((n for n, text in zip(lines, bare, strict=True) if not text), lines[0])
        raise DataError(f"line {line} of {side.where} holds no token")


def _refuse_boundary(sentences: Sequence[str], side: EncodedSide, lines: Places) -> None:
    boundary = side.tokenizer.boundary
    line = next(n for n, text in zip(lines, sentences, strict=True) if boundary in side.tokenizer.encode_sentence(text))
    mark = side.tokenizer.tokens[boundary]
    raise DataError(f"line {line} of {side.where} holds {mark!r}, which marks the end of a sentence")


def _bytes(sentences: Sequence[str]) -> Places:
    return np.array([len(sentence.encode()) + 1 for sentence in sentences])
