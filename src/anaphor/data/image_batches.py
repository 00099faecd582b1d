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

    @property
    def count(self) -> int:
        return len(self.index)

    denominator = count


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
