"""Batches of labeled texts of similar length, padded to the longest of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphor.data.batches import TokenSequences
from anaphor.data.buckets import Buckets, Indices
from anaphor.data.tokenizer import Ids


@dataclass(frozen=True)
class LabeledBatch:
    """Token sequences with a class each."""

    tokens: Tensor
    """[B, T], padded on the right."""
    lengths: Tensor
    """[B]: number of real tokens of each row."""
    labels: Tensor
    """[B]: index of the class; 0 where it is not known."""

    @property
    def count(self) -> int:
        return len(self.labels)

    denominator = count


class LabeledBatches(Sequence[LabeledBatch]):
    """Texts, each once, in batches of similar length. The order depends on (seed, epoch) alone."""

    def __init__(
        self,
        texts: Sequence[Ids],
        labels: Sequence[int],
        *,
        pad: int,
        rows: int,
        pad_to: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = np.array([len(text) for text in texts])
        self.seed, self.sizes = seed, sizes
        self._buckets = Buckets(sizes=sizes[:, None], rows=rows, pad_to=pad_to)
        self._tokens = TokenSequences.build(np.concatenate(texts), np.cumsum(sizes) - sizes, sizes, pad, device)
        self._labels = torch.tensor(labels, dtype=torch.int64, device=device)
        self._arrange(self._buckets.shuffle(seed, 0))

    def at_epoch(self, epoch: int) -> LabeledBatches:
        """The same texts in the order of another epoch."""
        return self._reorder(self._buckets.shuffle(self.seed, epoch))

    def by_length(self) -> LabeledBatches:
        """The same texts, shortest first: the least padding, for scores. `order` says which is which."""
        return self._reorder(self._buckets.by_length())

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return int(self.sizes.sum())

    def count_token(self, token: int | None) -> int:
        """How often a token occurs in the texts."""
        return 0 if token is None else int((self._tokens.tokens == token).sum())

    @property
    def padding_share(self) -> float:
        """Share of padding of all positions of all batches."""
        held = sum(len(batch) * self._buckets.widths(batch)[0] for batch in self.batches)
        return float(1 - self.sizes.sum() / held)

    def padding_share_at(self, length: int) -> float:
        """What it would be if every text were padded to one length."""
        return float(1 - self.sizes.sum() / (len(self.sizes) * length))

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        chosen = self.batches[number]
        start = self._starts[number]
        rows = self.order[start : start + len(chosen)]  # [B], on the device
        tokens, _, lengths = self._tokens.gather(rows, *self._buckets.widths(chosen))
        return LabeledBatch(tokens, lengths, self._labels[rows])

    def _reorder(self, batches: list[Indices]) -> LabeledBatches:
        other = copy(self)
        other._arrange(batches)
        return other

    def _arrange(self, batches: list[Indices]) -> None:
        self.batches = batches
        sizes = np.array([len(batch) for batch in batches])
        self._starts: list[int] = (np.cumsum(sizes) - sizes).tolist()
        self.order = torch.from_numpy(np.concatenate(batches)).to(self._labels.device)
        """[N]: index of each text, batch by batch."""
