"""Batches of images: their numbers in the training split, in an order that depends on seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageBatch:
    """Images by their numbers in the training split: pixels stay where they are."""

    index: Tensor
    """int64 [B]."""
    epoch: Tensor
    """int64 []."""
    before: Tensor | None = None
    """int64 [1]: the image before the first one, with which that is mixed; None: the last one."""

    @property
    def count(self) -> int:
        return len(self.index)

    denominator = count

    def select(self, rows: slice) -> ImageBatch:
        """Some rows, one after the other."""
        before = self.index[rows.start - 1].view(1) if self.before is None or rows.start else self.before
        return ImageBatch(self.index[rows], self.epoch, before)


class ImageBatches(Sequence[ImageBatch]):
    """The batches of one epoch."""

    def __init__(self, images: int, batch_size: int, seed: int, epoch: int, device: torch.device) -> None:
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(images)).to(device)
        self.parts = order.split(batch_size)
        self.epoch = torch.tensor(epoch, device=device)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: Any) -> Any:
        return ImageBatch(self.parts[number], self.epoch)
