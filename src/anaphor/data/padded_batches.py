"""Batches of separate examples, or of sentence pairs, of similar length: padded to the longest of each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from anaphor.data.batches import IGNORE_INDEX, B, Batch, Batches
from anaphor.data.buckets import Buckets, Indices
from anaphor.data.pairs import EncodedPairs, EncodedSentences
from anaphor.data.stored_pairs import StoredSentences
from anaphor.data.stored_tokens import StoredTokens
from anaphor.data.streamed_text import StoredExamples
from anaphor.data.tokenizer import Ids
from anaphor.errors import DataError, count_noun


@dataclass(frozen=True)
class TokenSequences:
    """Sequences on a device, to be gathered into padded rows."""

    tokens: Tensor | StoredTokens
    """[N]: all of them, concatenated; the target of each token is the next one."""
    starts: Tensor
    """[P]: where each begins."""
    sizes: Tensor
    """[P]"""
    pad: int

    @classmethod
    def build(cls, tokens: Ids, starts: Indices, sizes: Indices, pad: int, device: torch.device | str) -> Self:
        flat, begin, size = (torch.from_numpy(array).to(device) for array in (tokens.astype(np.int64), starts, sizes))
        return cls(flat, begin, size, pad)

    def count(self, token: int) -> int:
        """How often a token occurs."""
        if isinstance(self.tokens, StoredTokens):
            return self.tokens.count(token, int((self.starts + self.sizes).max()) + 1)
        return int((self.tokens == token).sum())

    def gather(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens [B, width], the token after each [B, width], lengths [B])."""
        lengths = self.sizes[rows]
        steps = torch.arange(width, device=rows.device)
        is_real = steps < lengths[:, None]
        positions = self.starts[rows][:, None] + torch.minimum(steps, lengths[:, None] - 1)
        following = self.tokens[(positions + 1).clamp(max=len(self.tokens) - 1)]
        ids = self.tokens[positions].masked_fill(~is_real, self.pad)
        return ids, following.masked_fill(~is_real, IGNORE_INDEX), lengths


class Padding(NamedTuple):
    """Fraction of all positions of all batches that is padding; 0 for a source where there is none."""

    source: float
    target: float
    both: float


class BatchesByLength(Batches[B]):
    """Examples, each once, in batches of similar length. The order depends on (seed, epoch) alone."""

    def __init__(self, inputs: TokenSequences, buckets: Buckets, *, seed: int, epoch: int = 0) -> None:
        self._inputs, self._buckets, self.seed = inputs, buckets, seed
        self._arrange(buckets.shuffle(seed, epoch))

    def at_epoch(self, epoch: int) -> Self:
        """The same examples in the order of another epoch."""
        return self._reorder(self._buckets.shuffle(self.seed, epoch))

    def by_length(self) -> Self:
        """The same examples, shortest first: the least padding, whatever seed and epoch; for scores."""
        return self._reorder(self._buckets.by_length())

    def count_token(self, token: int | None) -> int:
        """How often a token occurs in the examples."""
        return 0 if token is None else self._inputs.count(token)

    def __len__(self) -> int:
        return len(self.batches)

    def _rows(self, index: int) -> Tensor:
        """[B]: indices of the examples of a batch, on the device."""
        return self.order[self._starts[index] : self._starts[index] + len(self.batches[index])]

    def _reorder(self, batches: list[Indices]) -> Self:
        other = copy(self)
        other._arrange(batches)
        return other

    def _arrange(self, batches: list[Indices]) -> None:
        self.batches = batches
        sizes = np.array([len(batch) for batch in batches])
        self._starts: list[int] = (np.cumsum(sizes) - sizes).tolist()
        # Copied to the device once: batches are gathered there without further copies.
        self.order = torch.from_numpy(np.concatenate(batches)).to(self._inputs.tokens.device)
        """[N]: index of each example, batch by batch."""


class PaddedBatches(BatchesByLength[Batch]):
    """Examples or sentence pairs; `batch_examples` and `batch_pairs` make them."""

    def __init__(
        self,
        inputs: TokenSequences,
        source: TokenSequences | None,
        indices: Indices,
        buckets: Buckets,
        *,
        seed: int,
        epoch: int,
        text_bytes: int | None = None,
    ) -> None:
        super().__init__(inputs, buckets, seed=seed, epoch=epoch)
        self._source, self._indices = source, indices
        self.text_bytes = text_bytes
        """Size of the text of the examples as UTF-8, for scores."""

    @property
    def examples(self) -> int:
        """Number of examples."""
        return len(self._indices)

    @property
    def tokens(self) -> int:
        """Number of tokens that are predicted."""
        return sum(int(self._buckets.sizes[batch, 0].sum()) for batch in self.batches)

    @property
    def padding(self) -> Padding:
        """Share of padding of each side."""
        held = np.array([len(batch) * np.array(self._buckets.widths(batch)) for batch in self.batches]).sum(0)
        real = self._buckets.sizes.sum(0)
        target, *source = 1 - real / held
        return Padding(float(source[0]) if source else 0.0, float(target), both=float(1 - real.sum() / held.sum()))

    @property
    def padding_share(self) -> float:
        """Share of padding of all sides together."""
        return self.padding.both

    def batch(self, index: int) -> Batch:
        chosen, rows = self.batches[index], self._rows(index)
        width, *source_width = self._buckets.widths(chosen)
        input_ids, targets, lengths = self._inputs.gather(rows, width)
        source_ids = source_lengths = None
        if self._source is not None:
            source_ids, _, source_lengths = self._source.gather(rows, *source_width)
        return Batch(
            input_ids,
            targets,
            lengths,
            source_ids=source_ids,
            source_lengths=source_lengths,
            indices=tuple(self._indices[chosen].tolist()),
            host_count=int(self._buckets.sizes[chosen, 0].sum()),
        )


def batch_examples(
    examples: Sequence[Ids],
    *,
    pad: int,
    rows: int | None = None,
    max_tokens: int | None = None,
    seed: int = 0,
    epoch: int = 0,
    device: torch.device | str = "cpu",
    text_bytes: int | None = None,
) -> PaddedBatches:
    """Batches of examples of similar length. The first token of an example (a start token) is never a target.

    Args:
        examples: Ids of each example, at least two.
        pad: Id that fills rows up.
        rows: Examples per batch; give this or `max_tokens`.
        max_tokens: Tokens per batch, including padding.
        seed: With `epoch`, decides on the order of the batches.
        epoch: Number of the epoch.
        device: Where the batches are.
        text_bytes: Bytes of the text of all examples, for bits per byte.
    """
    if not examples:
        raise DataError("there are no examples")
    lengths = np.array([len(example) for example in examples])
    if (shortest := lengths.min()) < 2:
        raise DataError(
            f"example {int(lengths.argmin())} has {count_noun(shortest, 'token')}: it needs at least one to "
            f"start from and one target"
        )
    sizes = lengths - 1  # inputs
    buckets = Buckets(sizes=sizes[:, None], rows=rows, max_tokens=max_tokens)
    inputs = TokenSequences.build(np.concatenate(examples), np.cumsum(lengths) - lengths, sizes, pad, device)
    return PaddedBatches(inputs, None, np.arange(len(sizes)), buckets, seed=seed, epoch=epoch, text_bytes=text_bytes)


def batch_stored_examples(
    examples: StoredExamples, *, pad: int, rows: int, seed: int, device: torch.device | str
) -> PaddedBatches:
    """The same for examples that are larger than memory: only their lengths are in it."""
    sizes = examples.lengths - 1
    starts, lengths = (torch.from_numpy(array).to(device) for array in (examples.starts, sizes))
    inputs = TokenSequences(StoredTokens(examples.tokens, device), starts, lengths, pad)
    buckets = Buckets(sizes=sizes[:, None], rows=rows)
    total = int(examples.bytes.sum())
    return PaddedBatches(inputs, None, np.arange(len(sizes)), buckets, seed=seed, epoch=0, text_bytes=total)


def batch_pairs(
    pairs: EncodedPairs,
    *,
    rows: int | Callable[[int], int] | None = None,
    max_tokens: int | None = None,
    pad_to: int = 1,
    seed: int = 0,
    epoch: int = 0,
    device: torch.device | str = "cpu",
) -> PaddedBatches:
    """Batches of sentence pairs of similar length.

    Inputs are a boundary and the target sentence; targets are the target sentence and a boundary.

    Args:
        pairs: The encoded pairs.
        rows: Pairs per batch, or a function of their padded length; give this or `max_tokens`.
        max_tokens: Tokens per batch on the longer side, including padding.
        pad_to: Padded lengths are a multiple of this.
        seed: With `epoch`, decides on the order of the batches.
        epoch: Number of the epoch.
        device: Where the batches are.
    """
    source, target = pairs.source, pairs.target
    sizes = np.stack([target.sizes + 1, source.sizes], 1)
    buckets = Buckets(sizes=sizes, rows=rows, max_tokens=max_tokens, pad_to=pad_to)
    if isinstance(source, StoredSentences) or isinstance(target, StoredSentences):
        inputs, sources = _stored_sequences(target, 1, device), _stored_sequences(source, 0, device)
        return PaddedBatches(inputs, sources, pairs.indices, buckets, seed=seed, epoch=epoch, text_bytes=pairs.bytes)
    # A boundary before each target; the one before the next sentence ends it.
    boundary = target.tokenizer.boundary
    with_boundaries = np.insert(target.tokens, np.cumsum(target.sizes) - target.sizes, boundary)
    inputs, sources = (
        TokenSequences.build(tokens, np.cumsum(lengths) - lengths, lengths, pad, device)
        for tokens, lengths, pad in (
            (np.append(with_boundaries, boundary), target.sizes + 1, target.tokenizer.pad),
            (source.tokens, source.sizes, source.tokenizer.pad),
        )
    )
    return PaddedBatches(inputs, sources, pairs.indices, buckets, seed=seed, epoch=epoch, text_bytes=pairs.bytes)


def _stored_sequences(
    sentences: EncodedSentences | StoredSentences, boundaries: int, device: torch.device | str
) -> TokenSequences:
    """Sentences on the disk, each with so many boundaries before it."""
    assert isinstance(sentences, StoredSentences), "both sides of pairs are read in one way"
    starts, sizes = torch.from_numpy(sentences.starts), torch.from_numpy(sentences.sizes + boundaries)
    tokens = StoredTokens(sentences.tokens, device)
    return TokenSequences(tokens, starts.to(device), sizes.to(device), sentences.tokenizer.pad)
