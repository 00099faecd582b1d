"""Gated DeltaNet (Yang, Kautz and Hatamizadeh, 2024): the delta rule on a memory that decays.

    S_t = (I - β_t k_t k_tᵀ) D_t S_{t-1} + β_t k_t v_tᵀ        y_t = S_tᵀ q_t        D_t = exp(-A softplus(W x_t + b))

D_t is one number for a head, as in Gated DeltaNet and Qwen3-Next, or with `channel_decay` one for each channel of the
keys, from a projection of low rank, as in Kimi Delta Attention (Kimi Team, 2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.recurrences.delta import Delta, DeltaSpec
from anaphor.mixers.spec import DecayOptions


@dataclass(frozen=True, kw_only=True)
class GatedDeltaSpec(DeltaSpec, DecayOptions):
    """Gated DeltaNet: the delta rule with a memory that also forgets."""

    defaults: ClassVar[Mapping[str, Any]] = {**DeltaSpec.defaults, "channel_decay": False}

    def build(self) -> GatedDelta:
        return GatedDelta(self)


class GatedDelta(Delta):
    """The delta rule with a decay of the memory and a gate of the outputs."""

    spec: GatedDeltaSpec
    decays = True

    def __init__(self, spec: GatedDeltaSpec) -> None:
        super().__init__(spec)
        keys = self.heads * spec.key_width
        self.decay_down = None
        if spec.channel_decay:
            self.decay_down = nn.Linear(spec.width, spec.value_width, bias=False)
            self.decay_up = nn.Linear(spec.value_width, keys, bias=False)
        else:
            self.decay_up = nn.Linear(spec.width, self.heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.heads))
        self.dt_bias = nn.Parameter(torch.empty(self.decay_up.out_features))
        draw_decays(self.A_log, self.dt_bias)
        self.gate = nn.Linear(spec.width, self.heads * spec.value_width, bias=False)

    def log_decay(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        down = x if self.decay_down is None else self.decay_down(x)
        dt = F.softplus(self.decay_up(down).to(dtype) + self.dt_bias.to(dtype))
        return -self.A_log.to(dtype).exp()[:, None, None] * self.split_heads(dt)

    def normalize(self, y: Tensor, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(y, F.silu(self.gate(x)))
        return normed


def draw_decays(a_log: Tensor, dt_bias: Tensor) -> None:
    """As Mamba-2: A uniform between 1 and 16, and step sizes from 0.001 to 0.1, uniform in their logarithm."""
    with torch.no_grad():
        a_log.uniform_(1, 16).log_()
        dt = torch.empty_like(dt_bias).uniform_(math.log(1e-3), math.log(0.1)).exp()
        dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # softplus of it is dt
