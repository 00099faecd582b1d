"""Batches of sentence pairs: similar lengths together, both sides padded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anaphor.data.buckets import Buckets, Places
from anaphor.data.pair_corpus import EncodedPairs
from anaphor.data.text import IGNORED, Ordered
from anaphor.data.tokenizer import Ids


@dataclass(frozen=True)
class PairBatch:
    """Sentences, and what their translations are to be predicted from, token by token."""

    source_ids: Tensor
    """[B, S], padded on the right, without boundaries."""
    source_lengths: Tensor
    """[B]: how many tokens of each source are real."""
    input_ids: Tensor
    """[B, T], padded on the right: a boundary, then the target sentence."""
    targets: Tensor
    """[B, T]: the target sentence, then a boundary; IGNORED where there is none."""
    lengths: Tensor
    """[B]: how many targets each row has."""
    places: tuple[int, ...]
    """[B]: which pair of the split each row is."""
    count: int
    """How many targets there are. A number of the host: nobody waits for the device."""

    @property
    def fixed(self) -> tuple[object, ...]:
        """What recorded work depends on beside the shapes: nothing."""
        return ()

    @property
    def amount(self) -> Tensor:
        """`count`, where the device finds it. []"""
        return self.lengths.sum()

    @property
    def source_mask(self) -> Tensor:
        """[B, S]: True where a token is real."""
        return _real(self.source_lengths, self.source_ids.shape[1])

    @property
    def input_mask(self) -> Tensor:
        """[B, T]: True where a token is real."""
        return _real(self.lengths, self.input_ids.shape[1])

    def twice(self) -> PairBatch:
        """All rows, and after the last one all rows again."""
        named = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        doubled = {name: torch.cat((value, value)) for name, value in named.items()}
        return replace(self, **doubled, places=self.places * 2, count=self.count * 2)


class Padding(NamedTuple):
    """The part of all positions of all batches that is padding."""

    source: float
    target: float
    both: float


class PairBatches(Ordered[PairBatch]):
    """Pairs, each once, in batches of similar length. The order depends on (seed, epoch) and on nothing else."""

    def __init__(
        self,
        pairs: EncodedPairs,
        *,
        rows: int | None = None,
        tokens: int | None = None,
        multiple: int = 1,
        seed: int = 0,
        epoch: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """Either so many `rows` a batch, or as many as fit into so many `tokens` on their longer side, padding counted.

        Both sides are padded to a multiple of `multiple`, so that there are few shapes.
        """
        source, target = pairs.source, pairs.target
        # A boundary before each target; the one before the next is what ends it.
        boundary = target.tokenizer.boundary
        bounded = np.insert(target.tokens, np.cumsum(target.sizes) - target.sizes, boundary)
        self._source = _Rows(source.tokens, source.sizes, source.tokenizer.pad, device)
        self._target = _Rows(np.append(bounded, boundary), target.sizes + 1, target.tokenizer.pad, device)
        self._sizes = np.stack([target.sizes + 1, source.sizes], 1)
        self._buckets = Buckets(sizes=self._sizes, rows=rows, tokens=tokens, multiple=multiple)
        self._places, self.seed = pairs.places, seed
        self._arrange(self._buckets.shuffled(seed, epoch))

    def at(self, epoch: int) -> PairBatches:
        """The same pairs in the order of another epoch."""
        return self._with(self._buckets.shuffled(self.seed, epoch))

    def in_order(self) -> PairBatches:
        """The same pairs in the order of their files."""
        return self._with(self._buckets.in_order())

    def by_length(self) -> PairBatches:
        """The same pairs, the shortest first: the least padding, whatever seed and epoch; for scores."""
        return self._with(self._buckets.by_length())

    @property
    def padding(self) -> Padding:
        """How much of the work is for nothing, on each side."""
        held = np.array([len(batch) * np.array(self._buckets.widths(batch)) for batch in self.batches]).sum(0)
        real = self._sizes.sum(0)
        target, source = 1 - real / held
        return Padding(float(source), float(target), both=float(1 - real.sum() / held.sum()))

    def __len__(self) -> int:
        return len(self.batches)

    def batch(self, place: int) -> PairBatch:
        chosen = self.batches[place]
        rows = self._order[self._starts[place] : self._starts[place] + len(chosen)]  # [B], on the device
        target_width, source_width = self._buckets.widths(chosen)
        source_ids, source_lengths, _ = self._source.padded(rows, source_width)
        input_ids, lengths, targets = self._target.padded(rows, target_width)
        return PairBatch(
            source_ids,
            source_lengths,
            input_ids,
            targets,
            lengths,
            places=tuple(self._places[chosen].tolist()),
            count=int(self._sizes[chosen, 0].sum()),
        )

    def _with(self, batches: list[Places]) -> PairBatches:
        other = object.__new__(PairBatches)
        other.__dict__.update(self.__dict__)
        other._arrange(batches)
        return other

    def _arrange(self, batches: list[Places]) -> None:
        self.batches = batches
        sizes = np.array([len(batch) for batch in batches])
        self._starts: list[int] = (np.cumsum(sizes) - sizes).tolist()
        # Sent once: a batch is then made on the device from what is there.
        self._order = torch.from_numpy(np.concatenate(batches)).to(self._source.flat.device)


class _Rows:
    """Sentences of one side on a device."""

    def __init__(self, flat: Ids, sizes: Places, pad: int, device: torch.device | str) -> None:
        self.flat = torch.from_numpy(flat.astype(np.int64)).to(device)
        self.starts = torch.from_numpy(np.cumsum(sizes) - sizes).to(device)
        self.sizes = torch.from_numpy(sizes).to(device)
        self.pad = pad

    def padded(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens [B, width], lengths [B], the token after each [B, width])."""
        lengths = self.sizes[rows]
        steps = torch.arange(width, device=rows.device)
        real = steps < lengths[:, None]
        places = self.starts[rows][:, None] + torch.minimum(steps, lengths[:, None] - 1)
        following = self.flat[(places + 1).clamp(max=len(self.flat) - 1)]
        return self.flat[places].masked_fill(~real, self.pad), lengths, following.masked_fill(~real, IGNORED)


def _real(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=lengths.device) < lengths[:, None]
