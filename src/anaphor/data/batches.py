"""Batches of token sequences, and those of a stream: a text in parallel rows, segment after segment."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar, overload

import torch
from torch import Tensor

from anaphor.config import check_at_least
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.data.stored_tokens import StoredRows, StoredTokens
from anaphor.data.stream_order import StreamOrder
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

    def select(self, rows: Tensor | slice, host_count: int | None = None) -> Self:
        """The rows with these indices, of a mask, or of a slice. `host_count` is their `count`, where it is known."""
        tensors: dict[str, Any] = {name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)}
        indices = self.indices[rows] if isinstance(rows, slice) else ()
        return replace(self, **tensors, indices=indices, host_count=host_count)

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
    length = row_length(len(tokens), rows, offset)
    return tokens[offset : offset + rows * length].view(rows, length)


def row_length(count: int, rows: int, offset: int = 0) -> int:
    """Tokens of each row of a text of `count` tokens from `offset` on."""
    check_at_least(1, rows=rows)
    check_at_least(0, offset=offset)
    length = max(count - offset, 0) // rows
    if length < 2:
        most = max(count - offset, 0) // 2
        advice = f"use at most {count_noun(most, 'row')}" if most else "use a longer text"
        raise DataError(
            f"a text of {count_noun(count, 'token')} is too short for {count_noun(rows, 'row')} after "
            f"{count_noun(offset, 'token')}: each row needs 2; {advice}"
        )
    return length


class Stream(Batches[Batch]):
    """Segments of `bptt` tokens of all rows, in order. Batches are views of the rows; the last may be shorter."""

    def __init__(
        self, tokens: Tensor | StoredTokens, rows: int, bptt: int, *, orders: Sequence[StreamOrder] = (), epoch: int = 0
    ) -> None:
        """`orders` change the text for the epoch, one after the other."""
        check_at_least(1, bptt=bptt)
        offset = sum(order.offset(epoch) for order in orders)
        self.rows: Tensor | StoredRows  # [B, length]
        if isinstance(tokens, StoredTokens):
            self.rows = StoredRows(tokens, rows, row_length(len(tokens), rows, offset), offset)
        else:
            self.rows = batchify(tokens, rows, offset)
        for order in orders:
            self.rows = arrange(self.rows, order, epoch)
        self.bptt = bptt

    def __len__(self) -> int:
        return -(-(self.rows.shape[1] - 1) // self.bptt)

    def batch(self, index: int) -> Batch:
        start = index * self.bptt
        end = min(start + self.bptt, self.rows.shape[1] - 1)
        if isinstance(self.rows, StoredRows):
            read = self.rows.read(start, end + 1)
            return Batch(read[:, :-1], read[:, 1:], restarts=start == 0)
        return Batch(self.rows[:, start:end], self.rows[:, start + 1 : end + 1], restarts=start == 0)


def arrange(rows: Tensor | StoredRows, order: StreamOrder, epoch: int) -> Tensor | StoredRows:
    """The tokens of the rows in the order of an epoch."""
    count, length = rows.shape
    starts = order.starts(count, length, epoch)
    if isinstance(rows, StoredRows):
        if type(order).arrange is not StreamOrder.arrange:
            raise ConfigError(
                f"{type(order).__name__} arranges all tokens at once, and this text is read from the disk: with "
                f"{MEMORY_VARIABLE} larger than the text it is read into memory"
            )
        return rows if starts is None else rows.rotate(starts)
    if starts is not None:
        places = torch.from_numpy(starts[:, None]).to(rows.device) + torch.arange(length, device=rows.device)
        rows = rows.gather(1, places % length)
    return order.arrange(rows, epoch)


class EvaluationStream(Batches[Batch]):
    """Segments for evaluation: every token is a target exactly once, the first one after a boundary.

    Rows differ by at most one token, so only the last batch has padding.
    """

    def __init__(self, tokens: Tensor | StoredTokens, boundary: int, rows: int, bptt: int) -> None:
        check_at_least(1, rows=rows, bptt=bptt)
        if not len(tokens):
            raise DataError("a text without tokens cannot be scored")
        self.rows, self.bptt = min(rows, len(tokens)), bptt
        self.tokens: Tensor | StoredTokens
        if isinstance(tokens, StoredTokens):
            self.tokens = tokens.after(boundary)
        else:
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
