"""Restraint: what it costs a model to say things loudly, or to change its mind from token to token.

Both are for training alone and no part of any score (Merity, McCann and Socher, 2017, who call them activation
regularization and temporal activation regularization).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from anaphor.errors import ConfigError
from anaphor.models.head import IGNORE_INDEX


@dataclass(frozen=True)
class Restraint:
    """Prices. A token's cost is a mean over the features that the output reads of it."""

    size: float = 0.0
    """Of their squares."""
    change: float = 0.0
    """Of the squares of what differs from the token before."""

    def __post_init__(self) -> None:
        for name, price in (("activation_reg", self.size), ("temporal_activation_reg", self.change)):
            if not 0 <= price < float("inf"):
                raise ConfigError(f"{name}={price} is no price: it must be at least 0")

    def of(self, features: Tensor, targets: Tensor) -> Tensor | None:
        """The cost of all tokens with a target together; None where everything is free. [B, T, D], [B, T] -> []"""
        if not (self.size or self.change):
            return None
        x, real = features.float(), targets != IGNORE_INDEX
        cost = self.size * (x.square().mean(-1) * real).sum()
        if self.change:
            moved = (x[:, 1:] - x[:, :-1]).square().mean(-1)
            cost = cost + self.change * (moved * real[:, 1:]).sum()
        return cost
