"""Batches of token sequences: segments of a stream of text, or separate examples and sentence pairs with padding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from anaphor.config import check_at_least_one
from anaphor.data.buckets import Buckets, Indices
from anaphor.data.pairs import EncodedPairs
from anaphor.data.stream_order import StreamOrder
from anaphor.data.tokenizer import Ids
from anaphor.errors import ConfigError, DataError, count_noun

# Marks positions without a target; the default `ignore_index` of torch's losses.
IGNORE_INDEX = -100


B = TypeVar("B")


@dataclass(frozen=True)
class Batch:
    """Token sequences and the token that follows each position; of sentence pairs also the source sentences."""

    input_ids: Tensor
    """[B, T], padded on the right."""
    targets: Tensor
    """[B, T]; IGNORE_INDEX where there is none."""
    lengths: Tensor | None = None
    """[B]: number of real tokens of each row; None where all are real."""
    restarts: bool = True
    """Whether the rows begin here, so that no earlier state belongs to them."""
    source_ids: Tensor | None = None
    """[B, S], padded on the right, without boundaries: the source of sentence pairs."""
    source_lengths: Tensor | None = None
    """[B]: number of real tokens of each source."""
    indices: tuple[int, ...] = ()
    """[B]: index of each row in its split, where rows are separate examples."""
    host_count: int | None = None
    """`count`, where it is known without asking the device."""

    @property
    def count(self) -> int:
        """Number of targets."""
        if self.host_count is not None:
            return self.host_count
        return self.targets.numel() if self.lengths is None else int(self.lengths.sum())

    @property
    def denominator(self) -> int | Tensor:
        """`count` without waiting for the device: a tensor [] where only the device knows it."""
        return self.targets.numel() if self.lengths is None else self.lengths.sum()

    @property
    def graph_key(self) -> tuple[object, ...]:
        """What the computation depends on besides the tensors: a CUDA graph is replayed for equal keys and shapes."""
        return (self.restarts,)

    @property
    def source(self) -> tuple[Tensor, Tensor]:
        """Ids [B, S] and lengths [B] of the source sentences."""
        if self.source_ids is None or self.source_lengths is None:
            raise ConfigError("the batch has no source sentences: it is not made of sentence pairs")
        return self.source_ids, self.source_lengths

    @property
    def has_target(self) -> Tensor:
        """[B, T]: True where there is a target."""
        return self.targets != IGNORE_INDEX

    @property
    def input_mask(self) -> Tensor:
        """[B, T]: True where a token is real."""
        if self.lengths is None:
            return torch.ones_like(self.input_ids, dtype=torch.bool)
        return _mask(self.lengths, self.input_ids.shape[1])

    @property
    def source_mask(self) -> Tensor:
        """[B, S]: True where a token of the source is real."""
        ids, lengths = self.source
        return _mask(lengths, ids.shape[1])

    def repeat(self, times: int = 2) -> Batch:
        """All rows so many times: first all of them, then all again."""
        tensors: dict[str, Any] = {
            name: torch.cat((value,) * times) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        count = None if self.host_count is None else times * self.host_count
        return replace(self, **tensors, indices=self.indices * times, host_count=count)


def _mask(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=lengths.device) < lengths[:, None]


class Batches(Sequence[B]):
    """Batches in a fixed order, each made when it is accessed."""

    @abstractmethod
    def batch(self, index: int) -> B:
        """The batch at an index from 0."""

    @overload
    def __getitem__(self, index: int) -> B: ...
    @overload
    def __getitem__(self, index: slice) -> list[B]: ...
    def __getitem__(self, index: int | slice) -> B | list[B]:
        if isinstance(index, slice):
            return [self.batch(number) for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return self.batch(index % len(self))


def batchify(tokens: Tensor, rows: int, offset: int = 0) -> Tensor:
    """[N] -> [rows, length]: the text from `offset` on, cut into equal rows; the remainder is dropped."""
    check_at_least_one(rows=rows)
    if offset < 0:
        raise ConfigError(f"offset={offset}: it must be at least 0")
    length = max(len(tokens) - offset, 0) // rows
    if length < 2:
        most = max(len(tokens) - offset, 0) // 2
        advice = f"use at most {count_noun(most, 'row')}" if most else "use a longer text"
        raise DataError(
            f"a text of {count_noun(len(tokens), 'token')} is too short for {count_noun(rows, 'row')} after "
            f"{count_noun(offset, 'token')}: each row needs 2; {advice}"
        )
    return tokens[offset : offset + rows * length].view(rows, length)


class Stream(Batches[Batch]):
    """Segments of `bptt` tokens of all rows, in order. Batches are views of the rows; the last may be shorter."""

    def __init__(
        self, tokens: Tensor, rows: int, bptt: int, *, orders: Sequence[StreamOrder] = (), epoch: int = 0
    ) -> None:
        """`orders` change the text for the epoch, one after the other."""
        check_at_least_one(bptt=bptt)
        self.rows = batchify(tokens, rows, sum(order.offset(epoch) for order in orders))  # [B, length]
        for order in orders:
            self.rows = order.arrange(self.rows, epoch)
        self.bptt = bptt

    def __len__(self) -> int:
        return -(-(self.rows.shape[1] - 1) // self.bptt)

    def batch(self, index: int) -> Batch:
        start = index * self.bptt
        end = min(start + self.bptt, self.rows.shape[1] - 1)
        return Batch(self.rows[:, start:end], self.rows[:, start + 1 : end + 1], restarts=start == 0)


class EvaluationStream(Batches[Batch]):
    """Segments for evaluation: every token is a target exactly once, the first one after a boundary.

    Rows differ by at most one token, so only the last batch has padding.
    """

    def __init__(self, tokens: Tensor, boundary: int, rows: int, bptt: int) -> None:
        check_at_least_one(rows=rows, bptt=bptt)
        if not len(tokens):
            raise DataError("a text without tokens cannot be scored")
        self.rows, self.bptt = min(rows, len(tokens)), bptt
        self.tokens = torch.cat([tokens.new_tensor([boundary]), tokens])
        share, extra = divmod(len(tokens), self.rows)
        numbers = torch.arange(self.rows, device=tokens.device)
        self.starts = numbers * share + numbers.clamp(max=extra)  # [B]
        self.lengths = share + (numbers < extra).long()  # [B]
        self.longest, self.shortest = share + bool(extra), share

    def __len__(self) -> int:
        return -(-self.longest // self.bptt)

    def batch(self, index: int) -> Batch:
        start = index * self.bptt
        end = min(start + self.bptt, self.longest)
        steps = torch.arange(start, end, device=self.tokens.device)
        positions = (self.starts[:, None] + steps).clamp(max=len(self.tokens) - 2)  # [B, T]
        inputs, targets = self.tokens[positions], self.tokens[positions + 1]
        if end <= self.shortest:
            return Batch(inputs, targets, restarts=start == 0)
        is_missing = steps >= self.lengths[:, None]
        lengths = (self.lengths - start).clamp(max=end - start)
        return Batch(inputs, targets.masked_fill(is_missing, IGNORE_INDEX), lengths, restarts=start == 0)


@dataclass(frozen=True)
class TokenSequences:
    """Sequences on a device, to be gathered into padded rows."""

    tokens: Tensor
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

    def in_order(self) -> Self:
        """The same examples in the order of their files."""
        return self._reorder(self._buckets.in_order())

    def by_length(self) -> Self:
        """The same examples, shortest first: the least padding, whatever seed and epoch; for scores."""
        return self._reorder(self._buckets.by_length())

    def count_token(self, token: int | None) -> int:
        """How often a token occurs in the examples."""
        return 0 if token is None else int((self._inputs.tokens == token).sum())

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
    # A boundary before each target; the one before the next sentence ends it.
    boundary = target.tokenizer.boundary
    with_boundaries = np.insert(target.tokens, np.cumsum(target.sizes) - target.sizes, boundary)
    sizes = np.stack([target.sizes + 1, source.sizes], 1)
    buckets = Buckets(sizes=sizes, rows=rows, max_tokens=max_tokens, pad_to=pad_to)
    inputs, sources = (
        TokenSequences.build(tokens, np.cumsum(lengths) - lengths, lengths, pad, device)
        for tokens, lengths, pad in (
            (np.append(with_boundaries, boundary), target.sizes + 1, target.tokenizer.pad),
            (source.tokens, source.sizes, source.tokenizer.pad),
        )
    )
    return PaddedBatches(inputs, sources, pairs.indices, buckets, seed=seed, epoch=epoch, text_bytes=pairs.bytes)
