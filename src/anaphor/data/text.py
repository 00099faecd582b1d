"""Batches of text: a stream in columns and segments, or separate examples with padding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from anaphor.data.buckets import Buckets, at_least_one
from anaphor.data.reading import dialogues
from anaphor.data.tokenizer import Ids
from anaphor.errors import ConfigError, DataError

__all__ = ["IGNORED", "Batch", "Complete", "Padded", "Stream", "columns", "dialogues", "offset_of"]

Item = TypeVar("Item")
# Stands where there is no target; the framework's losses pass it over.
IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Tokens and the token that follows each."""

    input_ids: Tensor
    """[B, T], padded on the right."""
    targets: Tensor
    """[B, T]; IGNORED where there is none."""
    lengths: Tensor | None = None
    """[B]: how many tokens of each row are real; None means all of them."""
    restarts: bool = True
    """The rows begin here: whatever state there was does not belong to them."""
    real: int | None = None
    """The sum of the lengths, where the host knows it and need not ask the device."""

    @property
    def input_mask(self) -> Tensor:
        """[B, T]: True where a token is real."""
        if self.lengths is None:
            return torch.ones_like(self.input_ids, dtype=torch.bool)
        return torch.arange(self.input_ids.shape[1], device=self.input_ids.device) < self.lengths[:, None]

    @property
    def fixed(self) -> tuple[object, ...]:
        """What recorded work depends on beside the shapes: it can be replayed on other batches that agree in it."""
        return (self.restarts,)

    @property
    def amount(self) -> int | Tensor:
        """`count`, and nobody waits for it: a tensor [] where only the device knows."""
        return self.targets.numel() if self.lengths is None else self.lengths.sum()

    @property
    def count(self) -> int:
        """How many targets there are."""
        if self.lengths is None:
            return self.targets.numel()
        return int(self.lengths.sum()) if self.real is None else self.real


class Ordered(Sequence[Item]):
    """Batches of any kind in a fixed order, each made when it is asked for."""

    @abstractmethod
    def batch(self, place: int) -> Item:
        """The batch at a place from 0 on."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self.batch(place) for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        return self.batch(index % len(self))


class Batches(Ordered[Batch]):
    """Batches of text."""


def columns(tokens: Tensor, rows: int, offset: int = 0) -> Tensor:
    """[N] -> [rows, length]: the text from `offset` on, cut into equal parts; what is left over is dropped."""
    at_least_one(rows=rows)
    if offset < 0:
        raise ConfigError(f"offset={offset}: it must be at least 0")
    length = max(len(tokens) - offset, 0) // rows
    if length < 2:
        most = max(len(tokens) - offset, 0) // 2
        cure = f"take at most {most} rows" if most else "give a longer text"
        raise DataError(
            f"a text of {len(tokens)} tokens is too short for {rows} rows after {offset} tokens: "
            f"each row needs 2; {cure}"
        )
    return tokens[offset : offset + rows * length].view(rows, length)


def offset_of(epoch: int, rows: int, bptt: int) -> int:
    """How far to shift the columns in an epoch, so that the cuts between rows and segments fall elsewhere each time.

    The first epoch has none. Over one cycle every transition of a text is learnt, those at the cuts and at the end too.
    """
    return epoch % (largest_offset(rows, bptt) + 1)


def largest_offset(rows: int, bptt: int) -> int:
    """The last shift of a cycle."""
    # After `rows` shifts the end of the text has been reached; with two rows the cut between them moves back and forth
    # once, so one shift more.
    return max(bptt - 1, rows)


class Stream(Batches):
    """Segments of `bptt` tokens of all columns, in order. Batches are views of the text; the last may be shorter."""

    def __init__(self, tokens: Tensor, rows: int, bptt: int, offset: int = 0) -> None:
        at_least_one(bptt=bptt)
        self.columns = columns(tokens, rows, offset)  # [B, length]
        self.bptt = bptt

    def __len__(self) -> int:
        return -(-(self.columns.shape[1] - 1) // self.bptt)

    def batch(self, place: int) -> Batch:
        start = place * self.bptt
        end = min(start + self.bptt, self.columns.shape[1] - 1)
        return Batch(self.columns[:, start:end], self.columns[:, start + 1 : end + 1], restarts=start == 0)


class Complete(Batches):
    """For honest scores: every token is a target exactly once, the first after a boundary, whatever rows and bptt.

    Rows differ by at most one token, so padding stands in the last batch only.
    """

    def __init__(self, tokens: Tensor, boundary: int, rows: int, bptt: int) -> None:
        at_least_one(rows=rows, bptt=bptt)
        if not len(tokens):
            raise DataError("a text without tokens has no score")
        self.rows, self.bptt = min(rows, len(tokens)), bptt
        self.tokens = torch.cat([tokens.new_tensor([boundary]), tokens])
        share, extra = divmod(len(tokens), self.rows)
        places = torch.arange(self.rows, device=tokens.device)
        self.starts = places * share + places.clamp(max=extra)  # [B]
        self.lengths = share + (places < extra).long()  # [B]
        self.longest, self.shortest = share + bool(extra), share

    def __len__(self) -> int:
        return -(-self.longest // self.bptt)

    def batch(self, place: int) -> Batch:
        begin = place * self.bptt
        end = min(begin + self.bptt, self.longest)
        steps = torch.arange(begin, end, device=self.tokens.device)
        places = (self.starts[:, None] + steps).clamp(max=len(self.tokens) - 2)  # [B, T]
        inputs, targets = self.tokens[places], self.tokens[places + 1]
        if end <= self.shortest:
            return Batch(inputs, targets, restarts=begin == 0)
        missing = steps >= self.lengths[:, None]
        lengths = (self.lengths - begin).clamp(max=end - begin)
        return Batch(inputs, targets.masked_fill(missing, IGNORED), lengths, restarts=begin == 0)


class Padded(Batches):
    """Separate examples, each once, in batches of similar length.

    Each example predicts its tokens from the second on, so the first (a start token) is never a target. The order
    depends on (seed, epoch) and on nothing else.
    """

    def __init__(
        self,
        examples: Sequence[Ids],
        *,
        pad: int,
        rows: int | None = None,
        tokens: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        device: torch.device | str = "cpu",
        size: int | None = None,
    ) -> None:
        """Either so many `rows` a batch, or as many as fit into so many `tokens`, padding counted. `size` are the bytes
        of the examples' text, for whoever scores them."""
        if not examples:
            raise DataError("there are no examples to learn from")
        sizes = np.array([len(example) for example in examples])
        if (short := sizes.min()) < 2:
            raise DataError(
                f"example {int(sizes.argmin())} has {short} tokens: one to start from and one to predict is least"
            )
        self._flat = torch.from_numpy(np.concatenate(examples).astype(np.int64)).to(device)
        self._starts = torch.from_numpy(np.cumsum(sizes) - sizes).to(device)
        self._sizes = sizes - 1  # transitions, on the host: batches are cut by them
        self._buckets = Buckets(sizes=self._sizes[:, None], rows=rows, tokens=tokens)
        self.pad, self.seed, self.bytes = pad, seed, size
        self.batches = self._buckets.shuffled(seed, epoch)

    def at(self, epoch: int) -> Padded:
        """The same examples in the order of another epoch."""
        other = object.__new__(Padded)
        other.__dict__.update(self.__dict__)
        other.batches = self._buckets.shuffled(self.seed, epoch)
        return other

    @property
    def examples(self) -> int:
        """How many there are."""
        return len(self._sizes)

    @property
    def padding_share(self) -> float:
        """The part of all positions of all batches that is padding."""
        held = sum(len(batch) * int(self._sizes[batch].max()) for batch in self.batches)
        return 1 - int(self._sizes.sum()) / held

    def count_of(self, token: int | None) -> int:
        """How often a token stands in the examples."""
        return 0 if token is None else int((self._flat == token).sum())

    def __len__(self) -> int:
        return len(self.batches)

    def batch(self, place: int) -> Batch:
        chosen = torch.from_numpy(self.batches[place])
        device = self._flat.device
        lengths = torch.from_numpy(self._sizes)[chosen].to(device)
        steps = torch.arange(int(self._sizes[chosen].max()), device=device)
        real = steps < lengths[:, None]  # [B, T]
        places = self._starts[chosen.to(device)][:, None] + torch.minimum(steps, lengths[:, None] - 1)
        inputs = self._flat[places].masked_fill(~real, self.pad)
        targets = self._flat[places + 1].masked_fill(~real, IGNORED)
        return Batch(inputs, targets, lengths, real=int(self._sizes[chosen].sum()))
