"""Activation regularization (Merity, McCann and Socher, 2017): penalties on what the output layer reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anaphor.errors import ConfigError
from anaphor.registry import register_loss_term

if TYPE_CHECKING:
    from torch import Tensor

    from anaphor.data.batches import Batch
    from anaphor.models.head import Head
    from anaphor.training.loss_terms import Penalty


@dataclass(frozen=True, kw_only=True)
class ActivationRegularization:
    """Weights of the two penalties."""

    section: ClassVar[str] = "activation_regularization"

    activation_reg: float = 0.0
    """Activation regularization (AR): weight of the squared hidden states that the output layer reads."""
    temporal_activation_reg: float = 0.0
    """Temporal activation regularization (TAR): weight of their squared change from token to token."""

    def __post_init__(self) -> None:
        for name in ("activation_reg", "temporal_activation_reg"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be at least 0, and finite")

    def penalty(self, hidden_states: Tensor, head: Head, batch: Batch) -> Tensor:
        """Sum over all tokens with a target. [B, T, D] -> []"""
        x, valid = hidden_states.float(), batch.has_target
        total = self.activation_reg * (x.square().mean(-1) * valid).sum()
        if self.temporal_activation_reg:
            change = (x[:, 1:] - x[:, :-1]).square().mean(-1)
            total = total + self.temporal_activation_reg * (change * valid[:, 1:]).sum()
        return total


def make_term(settings: ActivationRegularization) -> Penalty | None:
    """The penalty; None where both weights are 0."""
    is_used = settings.activation_reg or settings.temporal_activation_reg
    return settings.penalty if is_used else None


def register() -> None:
    register_loss_term("activation-regularization", make_term, ActivationRegularization, tasks=("lm",))
