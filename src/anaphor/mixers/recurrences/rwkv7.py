"""RWKV-7 "Goose" (Peng et al., 2025): a delta rule in which removing and writing are separate, with a decay for each
channel of the keys.

    S_t = (Diag(w_t) - (α_t ⊙ κ_t) κ_tᵀ) S_{t-1} + k_t v_tᵀ        y_t = S_tᵀ r_t

Everything comes from mixtures of a token and the one before it (token shift). κ, the key of what is removed, has
length one; α between 0 and 1 says for each channel how much. This is the layer by itself: the model of the paper also
mixes the values of the first layer into those of all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.base import Span
from anaphor.mixers.recurrences.layer import MemoryState, Recurrence, RecurrenceSpec
from anaphor.mixers.recurrences.matrix_state import Steps
from anaphor.mixers.short_convolution import join_past
from anaphor.mixers.spec import HeadCountOptions, check_heads, require

SLOWEST = math.exp(-0.5)
"""The logarithm of a decay lies between minus this and 0."""
MIXTURES = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
"""What is computed from a mixture of its own, with the exponent of its first values."""


@dataclass(frozen=True, kw_only=True)
class RWKV7Spec(RecurrenceSpec, HeadCountOptions):
    """RWKV-7: a delta rule with a decay for each channel, and separate keys for removing and writing."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(require(self.heads), self.width)

    def build(self) -> RWKV7:
        return RWKV7(self)


class LowRankMap(nn.Module):
    """W₂ f(W₁ x) + b, through a few dimensions."""

    def __init__(self, width: int, rank: int, *, bias: bool = True) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=bias)


class RWKV7(Recurrence):
    """The time mixing layer of RWKV-7."""

    spec: RWKV7Spec
    follows_init_scheme = False
    gate_names = ("rate",)
    least_log_decay = -SLOWEST

    def __init__(self, spec: RWKV7Spec) -> None:
        width, heads = spec.width, require(spec.heads)
        super().__init__(spec, (heads, width // heads, width // heads), (1, width))
        self.mixture = nn.ParameterDict({name: torch.empty(width) for name in MIXTURES})
        self.receptance, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.decay_map = LowRankMap(width, _rank(1.8 * width**0.5))
        self.rate_map = LowRankMap(width, _rank(1.8 * width**0.5))
        self.gate_map = LowRankMap(width, _rank(0.6 * width**0.8), bias=False)
        self.k_k, self.k_a, self.r_k = (nn.Parameter(torch.empty(width)) for _ in range(3))
        self.norm = nn.GroupNorm(heads, width, eps=1e-5 * (width // heads))
        self.out = nn.Linear(width, spec.out, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the paper draws its first layer: channels look back and forget at rates spread over a wide range."""
        place = torch.arange(self.width_in) / self.width_in
        with torch.no_grad():
            for name, exponent in MIXTURES.items():
                self.mixture[name].copy_(1 - place**exponent)
            for module in (self.receptance, self.key, self.value, self.out, self.norm):
                module.reset_parameters()
            for low_rank in (self.decay_map, self.rate_map, self.gate_map):
                low_rank.down.reset_parameters()
                nn.init.orthogonal_(low_rank.up.weight, gain=0.1)
            self.decay_map.up.bias.copy_(-5.5 + 5 * place**0.85)
            self.rate_map.up.bias.zero_()
            self.k_k.fill_(0.85)
            self.k_a.fill_(1.0)
            self.r_k.zero_()

    def mix(self, x: Tensor, state: MemoryState, span: Span) -> tuple[Tensor, MemoryState]:
        x, wide = span.zero_padding(x), state.memory.dtype
        joined, inputs = join_past(x, state.inputs, span)
        change = joined[:, : span.count] - x
        mixed = {name: x + change * share.to(x.dtype) for name, share in self.mixture.items()}
        r, k, v = self.receptance(mixed["r"]), self.key(mixed["k"]), self.value(mixed["v"])
        r, k, v = (self.split_heads(part).to(wide) for part in (r, k, v))
        w = self.decay_map.up(torch.tanh(self.decay_map.down(mixed["w"])))
        log_decay = -SLOWEST * torch.sigmoid(self.split_heads(w).to(wide))
        rate = torch.sigmoid(self.rate_map.up(self.rate_map.down(mixed["a"])).to(wide))
        rate = self.split_heads(self.gates(rate[:, :, None])[:, :, 0])
        gate = self.gate_map.up(torch.sigmoid(self.gate_map.down(mixed["g"])))
        k_k, k_a, r_k = (part.to(wide).view(self.heads, 1, -1) for part in (self.k_k, self.k_a, self.r_k))
        removal = F.normalize(k * k_k, dim=-1)
        k = k * (1 + (rate - 1) * k_a)
        # The paper removes from the memory before it decays: a division, by at least 0.54, makes up for that.
        steps = Steps(r, k, v, log_decay, b=-removal * (-log_decay).exp(), a=removal * rate)
        y, memory = self.scan(steps, state.memory, span)
        y = y.transpose(1, 2).flatten(2)  # [B, T, H V]
        y = F.group_norm(y.flatten(0, 1), self.heads, self.norm.weight.to(wide), self.norm.bias.to(wide), self.norm.eps)
        bonus = (r * k * r_k).sum(-1, keepdim=True) * v
        y = y.view(*x.shape[:2], -1) + bonus.transpose(1, 2).flatten(2)
        return self.out(y.to(x.dtype) * gate), MemoryState(memory, inputs)


def _rank(size: float) -> int:
    """The nearest multiple of 32, at least 32."""
    return max(32, round(size / 32) * 32)
