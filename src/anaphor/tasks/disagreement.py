"""Disagreement: what it costs a model to predict otherwise when it reads the same with other dropout.

It is for training alone and no part of any score (Liang et al., 2021, who call it R-Drop).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anaphor.errors import ConfigError
from anaphor.models.head import IGNORE_INDEX, Head


@dataclass(frozen=True)
class Disagreement:
    """A price, on the scale of its authors.

    With two readings P and Q they make CE(P) + CE(Q) + price · (KL(P‖Q) + KL(Q‖P)) / 2 small. Here the loss of a batch
    is the mean of the two cross-entropies, so that it compares with that of a single reading. That is half of theirs,
    and so the cost of a token is price · (KL(P‖Q) + KL(Q‖P)) / 4.
    """

    price: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.price < float("inf"):
            raise ConfigError(f"rdrop={self.price} is no price: it must be at least 0")

    def of(self, features: Tensor, head: Head, targets: Tensor) -> Tensor | None:
        """The cost of all tokens with a target together; None where it is free. The rows of the features are those of
        the first reading, then those of the second. [2·B, T, D], [B, T] -> []"""
        if not self.price:
            return None
        logits: Tensor = head(features)
        wide = torch.promote_types(logits.dtype, torch.float32)
        one, other = logits.to(wide).log_softmax(-1).chunk(2)  # [B, T, V] each
        # Both divergences in one: the logarithms differ by the same, once weighted by P and once by Q.
        apart = ((one.exp() - other.exp()) * (one - other)).sum(-1)
        return self.price / 4 * (apart * (targets != IGNORE_INDEX)).sum()
