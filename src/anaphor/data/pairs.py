"""Sentence pairs as token ids, and the same pairs segmented at random for every epoch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anaphor.config import check_at_least
from anaphor.data.bpe import BPE
from anaphor.data.bpe_dropout import SubwordSampler
from anaphor.data.buckets import Indices
from anaphor.data.corpus import Sentences, build_tokenizer, encode_split
from anaphor.data.dataset import TRAIN, Dataset
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.data.stored_pairs import StoredSentences, encode_stored_pairs, is_large_split
from anaphor.data.streamed_rows import ColumnText
from anaphor.data.tokenizer import Ids, Tokenizer, tokenizer_from_plain
from anaphor.errors import ConfigError, DataError


@dataclass(frozen=True)
class PairTokenizers:
    """Tokenizers of source and target, which may be the same."""

    source: Tokenizer
    target: Tokenizer

    @property
    def is_joint(self) -> bool:
        """Whether ids mean the same in both languages, so that embeddings can be shared."""
        return self.source == self.target

    def to_plain(self) -> dict[str, Any]:
        """Their complete description in plain JSON."""
        target = {} if self.is_joint else {"target": self.target.to_plain()}
        return {"source": self.source.to_plain(), **target}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Rebuild them from their description."""
        if not isinstance(plain, Mapping) or "source" not in plain:
            raise DataError(
                "the description of pair tokenizers must be a mapping with 'source', and 'target' if it differs"
            )
        source = tokenizer_from_plain(plain["source"])
        return cls(source, tokenizer_from_plain(plain["target"]) if "target" in plain else source)


def build_pair_tokenizers(dataset: Dataset, kind: str, size: int | None = None, *, joint: bool) -> PairTokenizers:
    """Train one joint tokenizer on both columns of train, or one for each, with at most `size` tokens each."""
    if is_large_split(dataset, TRAIN, kind):
        each = [dataset.columns] if joint else [(column,) for column in dataset.columns]
        trained = [build_tokenizer(ColumnText(dataset, columns), kind, size) for columns in each]
        return PairTokenizers(trained[0], trained[-1])
    rows = dataset.rows(TRAIN)
    columns = list(zip(*rows.values, strict=True))
    if joint:
        tokenizer = build_tokenizer(Sentences(" and ".join(rows.where), [*columns[0], *columns[1]]), kind, size)
        return PairTokenizers(tokenizer, tokenizer)
    sides = zip(rows.where, columns, strict=True)
    return PairTokenizers(*(build_tokenizer(Sentences(where, column), kind, size) for where, column in sides))


@dataclass(frozen=True)
class EncodedSentences:
    """Sentences of one language as token ids, without boundaries."""

    tokens: Ids
    """[N]: all sentences, concatenated."""
    sizes: Indices
    """[P]: number of tokens of each sentence."""
    tokenizer: Tokenizer
    where: str
    """Name of the file in error messages."""

    def __getitem__(self, index: int) -> Ids:
        """One sentence."""
        end = int(self.sizes[: index + 1].sum())
        return self.tokens[end - int(self.sizes[index]) : end]

    def count_tokens(self) -> tuple[int, int]:
        """All tokens, and how many of them are unknown."""
        unknown = self.tokenizer.unknown
        return len(self.tokens), 0 if unknown is None else int(np.count_nonzero(self.tokens == unknown))

    def select(self, keep: NDArray[np.bool_]) -> EncodedSentences:
        """The sentences where `keep` is true."""
        return replace(self, tokens=self.tokens[np.repeat(keep, self.sizes)], sizes=self.sizes[keep])

    def replace_where(self, chosen: NDArray[np.bool_], others: EncodedSentences) -> EncodedSentences:
        """The sentences, but where `chosen` is true those of `others`."""
        sizes = np.where(chosen, others.sizes, self.sizes)
        is_other = np.repeat(chosen, sizes)
        tokens = np.empty(len(is_other), self.tokens.dtype)
        tokens[is_other], tokens[~is_other] = others.select(chosen).tokens, self.select(~chosen).tokens
        return replace(self, tokens=tokens, sizes=sizes)


@dataclass(frozen=True)
class EncodedPairs:
    """One split of sentence pairs as token ids."""

    source: EncodedSentences | StoredSentences
    target: EncodedSentences | StoredSentences
    indices: Indices
    """[P]: index of each pair in the split."""
    lines: Indices
    """[P]: its line number in the files, from 1."""
    target_bytes: Indices
    """[P]: size of each target as UTF-8 with its line end: the same for every tokenizer."""
    digest: str
    """SHA-256 of the split."""
    blank: int = 0
    """Lines that are empty in both languages; they are left out."""
    dropped: int = 0
    """Pairs that were too long; they are left out."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def bytes(self) -> int:
        """Size of all targets."""
        return int(self.target_bytes.sum())

    def check_lengths(self, source: int | None = None, target: int | None = None) -> None:
        """Raise where a sentence needs more positions than the model has. The end of a target needs one."""
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

    def drop_longer(self, max_length: int) -> EncodedPairs:
        """The pairs with at most `max_length` tokens in either language; the others are counted as `dropped`."""
        check_at_least(1, max_length=max_length)
        keep = (self.source.sizes <= max_length) & (self.target.sizes <= max_length)
        if not keep.any():
            raise DataError(
                f"max_length={max_length}: every pair of {self.source.where} and {self.target.where} is longer"
            )
        return replace(self.select(keep), dropped=self.dropped + int(np.count_nonzero(~keep)))

    def first(self, count: int) -> EncodedPairs:
        """The first pairs only."""
        check_at_least(1, count=count)
        return self.select(np.arange(len(self)) < count)

    def select(self, keep: NDArray[np.bool_]) -> EncodedPairs:
        """The pairs where `keep` is true."""
        source, target = self.source.select(keep), self.target.select(keep)
        per_pair = {name: getattr(self, name)[keep] for name in ("indices", "lines", "target_bytes")}
        return replace(self, source=source, target=target, **per_pair)

    def swap_half(self, seed: int, epoch: int, *, source: int = sys.maxsize, target: int = sys.maxsize) -> EncodedPairs:
        """Each pair with probability 1/2 the other way round, by (seed, epoch) alone; for training with a joint
        vocabulary. A pair that would then be too long stays as it is; `target_bytes` stay, for only scores use them."""
        fits = (self.target.sizes <= source) & (self.source.sizes <= target)
        # The last 2 keeps it apart from the generator of a PairSampler.
        chosen = fits & (np.random.default_rng((seed, epoch, 2)).random(len(self)) < 0.5)
        sides = _in_memory(self.source), _in_memory(self.target)
        swapped = [side.replace_where(chosen, other) for side, other in zip(sides, reversed(sides), strict=True)]
        return replace(self, source=swapped[0], target=swapped[1])


class PairSampler:
    """Training pairs by BPE-dropout: another random segmentation in every epoch, by (seed, epoch) alone."""

    def __init__(
        self, pairs: EncodedPairs, dropout: float, seed: int, *, source: int = sys.maxsize, target: int = sys.maxsize
    ) -> None:
        """A sentence that would be longer than the limit of its side keeps its plain segmentation."""
        self.pairs, self.seed, self.limits = pairs, seed, {"source": source, "target": target}
        generator = self._generator(0)
        self._samplers = {side: _sampler(_in_memory(getattr(pairs, side)), dropout, generator) for side in self.limits}

    def at_epoch(self, epoch: int) -> EncodedPairs:
        """The same pairs, segmented for an epoch from 0."""
        pairs, generator = self.pairs, self._generator(epoch + 1)
        for side, sampler in self._samplers.items():
            tokens, sizes = sampler.sample(generator, self.limits[side])
            pairs = replace(pairs, **{side: replace(getattr(pairs, side), tokens=tokens, sizes=sizes)})
        return pairs

    def _generator(self, number: int) -> np.random.Generator:
        # The last 1 keeps it apart from that of the order of an epoch, which has the seed (seed, epoch).
        return np.random.default_rng((self.seed, number, 1))


def _in_memory(sentences: EncodedSentences | StoredSentences) -> EncodedSentences:
    if isinstance(sentences, StoredSentences):
        raise ConfigError(
            f"{sentences.where} is larger than memory, and pairs that change in every epoch must be in it: leave out "
            f"--bpe-dropout and --bidirectional-epochs, or set {MEMORY_VARIABLE}"
        )
    return sentences


def _sampler(sentences: EncodedSentences, dropout: float, generator: np.random.Generator) -> SubwordSampler:
    tokenizer = sentences.tokenizer
    if not isinstance(tokenizer, BPE):
        raise ConfigError(f"BPE-dropout leaves out merges, and a {tokenizer.kind} tokenizer has none: use bpe")
    each = np.split(sentences.tokens, np.cumsum(sentences.sizes)[:-1])
    return SubwordSampler(tokenizer, [tokenizer.decode(ids) for ids in each], dropout, generator)


def encode_pair_split(dataset: Dataset, split: str, tokenizers: PairTokenizers) -> EncodedPairs:
    """One split of sentence pairs as token ids. The second call for the same text and tokenizers reads the cache."""
    if tokenizers.source.kind == tokenizers.target.kind and is_large_split(dataset, split, tokenizers.source.kind):
        found = encode_stored_pairs(dataset, split, tokenizers.source, tokenizers.target)
        return EncodedPairs(
            found.source,
            found.target,
            indices=np.arange(len(found.lines)),
            lines=found.lines,
            target_bytes=found.target_bytes,
            digest=found.digest,
            blank=found.blank,
        )
    rows = dataset.rows(split)
    sources, targets = zip(*rows.values, strict=True)
    lines = np.array(rows.lines)
    return EncodedPairs(
        _encode_column(sources, tokenizers.source, rows.where[0], lines),
        _encode_column(targets, tokenizers.target, rows.where[1], lines),
        indices=np.arange(len(lines)),
        lines=lines,
        target_bytes=_count_bytes(targets),
        digest=rows.digest,
        blank=rows.blank,
    )


def encode_pairs(pairs: Sequence[tuple[str, str]], tokenizers: PairTokenizers) -> EncodedPairs:
    """Given pairs, such as sentences to translate, whose targets may be empty."""
    if not pairs:
        raise DataError("there are no sentences")
    sources, targets = zip(*pairs, strict=True)
    source, target = _encode_each(sources, tokenizers.source), _encode_each(targets, tokenizers.target)
    if not source.sizes.all():
        raise DataError(f"sentence {int(source.sizes.argmin()) + 1} is empty")
    indices = np.arange(len(pairs))
    return EncodedPairs(source, target, indices, lines=indices + 1, target_bytes=_count_bytes(targets), digest="")


def _encode_each(sentences: Sequence[str], tokenizer: Tokenizer) -> EncodedSentences:
    ids = [tokenizer.encode_sentence(sentence) for sentence in sentences]
    sizes = np.array([len(sentence) for sentence in ids])
    encoded = EncodedSentences(np.concatenate(ids), sizes, tokenizer, "the sentences")
    if tokenizer.boundary in encoded.tokens:
        _raise_for_boundary(sentences, encoded, np.arange(1, len(sentences) + 1))
    return encoded


def _encode_column(sentences: Sequence[str], tokenizer: Tokenizer, where: str, lines: Indices) -> EncodedSentences:
    """Encode all sentences at once and split them at the boundaries."""
    tokens = np.asarray(encode_split(Sentences(where, sentences), TRAIN, tokenizer).tokens)
    is_boundary = tokens == tokenizer.boundary
    sizes = np.bincount(np.cumsum(is_boundary)[~is_boundary])
    encoded = EncodedSentences(tokens[~is_boundary], sizes[sizes > 0], tokenizer, where)
    if len(encoded.sizes) < len(sentences):
        # A line may contain nothing but byte-order marks.
        visible = (text.replace("\ufeff", "").strip() for text in sentences)
        line = next((n for n, text in zip(lines, visible, strict=True) if not text), lines[0])
        raise DataError(f"line {line} of {where} holds no token")
    # Each tokenizer has its own number of boundaries for a sentence and a blank line.
    expected = len(sentences) * np.count_nonzero(tokenizer.encode("a\n\n") == tokenizer.boundary)
    if np.count_nonzero(is_boundary) != expected:
        _raise_for_boundary(sentences, encoded, lines)
    return encoded


def _raise_for_boundary(sentences: Sequence[str], encoded: EncodedSentences, lines: Indices) -> None:
    tokenizer = encoded.tokenizer
    pairs = zip(lines, sentences, strict=True)
    line = next(n for n, text in pairs if tokenizer.boundary in tokenizer.encode_sentence(text))
    token = tokenizer.tokens[tokenizer.boundary]
    raise DataError(f"line {line} of {encoded.where} contains {token!r}, which marks the end of a sentence")


def _count_bytes(sentences: Sequence[str]) -> Indices:
    return np.array([len(sentence.encode()) + 1 for sentence in sentences])
