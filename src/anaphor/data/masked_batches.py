"""Batches of sequences in which only some positions are learned: the answers to questions, for example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from anaphor.data.batches import IGNORE_INDEX, Batch, Batches
from anaphor.errors import DataError


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Token sequences of which only some positions have a target. Loss and accuracy count these alone."""

    @classmethod
    def next_tokens(cls, tokens: Tensor, learned: Tensor, lengths: Tensor | None = None) -> MaskedBatch:
        """Sequences whose tokens are predicted from those before, where they are to be learned.

        Args:
            tokens: Ids of whole sequences, [B, T + 1].
            learned: True for each token that is a target, [B, T + 1]; the first one has nothing before it.
            lengths: Number of real tokens of each row, [B]; None where all are real.
        """
        if tokens.ndim != 2 or tokens.shape != learned.shape or tokens.shape[1] < 2:
            raise DataError(
                f"tokens {list(tokens.shape)} and learned {list(learned.shape)}: both must be [B, T + 1], with T >= 1"
            )
        if learned.dtype != torch.bool or not bool(learned[:, 1:].any()):
            raise DataError("learned must be a tensor of booleans that is True for a token after the first")
        targets = tokens[:, 1:].masked_fill(~learned[:, 1:], IGNORE_INDEX)
        return cls(tokens[:, :-1], targets, None if lengths is None else (lengths - 1).clamp(min=0))

    @property
    def count(self) -> int:
        """Number of targets."""
        return int(self.has_target.sum()) if self.host_count is None else self.host_count

    @property
    def denominator(self) -> Tensor:
        """`count` without waiting for the device."""
        return self.has_target.sum()

    def to(self, device: torch.device | str) -> MaskedBatch:
        """The batch with its tensors on a device."""
        tensors: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


class MaskedBatches(Batches[MaskedBatch]):
    """The rows of one large batch, in small ones. How many targets each has is known without asking the device."""

    def __init__(self, examples: MaskedBatch, rows: int, order: Sequence[int] | Tensor | None = None) -> None:
        """`order` are the indices of the rows; None: as they are."""
        self.examples = examples
        device = examples.input_ids.device
        chosen = torch.arange(len(examples.input_ids)) if order is None else torch.as_tensor(order)
        counts = examples.has_target.sum(1).cpu()[chosen]
        self._rows = chosen.to(device).split(rows)
        self._counts: list[int] = [int(part.sum()) for part in counts.split(rows)]

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, index: int) -> MaskedBatch:
        return self.examples.select(self._rows[index], self._counts[index])
