"""The real-gated linear recurrent unit of Griffin (De, Smith, Fernando, Botev et al., 2024), in its recurrent block.

    r_t = σ(W_r u_t + b_r)    i_t = σ(W_i u_t + b_i)    a_t = exp(-8 softplus(Λ) r_t)
    h_t = a_t h_{t-1} + √(1 - a_t²) (i_t u_t)           y_t = W_o (h_t · GELU(W_y x_t + b_y)) + b_o

u is another branch of the block, W_x x + b_x behind a short convolution. Λ gives each channel a slowest decay; the
gate r makes it up to eight times as fast. The square root keeps the size of a state: the more it keeps, the less is
added. The matrices of the gates have a block for each head. The first token of a sequence is added as it is.

Weights are laid out as those of `RecurrentGemmaRecurrentBlock` in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least
from anaphor.mixers.base import Span
from anaphor.mixers.recurrences.layer import RecurrenceSpec
from anaphor.mixers.recurrences.vector_layer import VectorRecurrence
from anaphor.mixers.short_convolution import ShortConvolution, check_short_conv
from anaphor.mixers.spec import HeadCountOptions, check_heads, require

SHARPNESS = 8.0
"""How many times as fast as the slowest decay the fastest one of a channel is."""
SLOWEST = (0.9, 0.999)
"""Range of the slowest decays at first."""


@dataclass(frozen=True, kw_only=True)
class RGLRUSpec(RecurrenceSpec, HeadCountOptions):
    """RG-LRU: the gated linear recurrence of Griffin and RecurrentGemma in its block."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4}

    lru_width: int | None = None
    """Number of channels of the recurrence; None means as many as the input has."""
    short_conv: int = 0
    """Kernel size of the short convolution in front of the recurrence; 0 means none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, lru_width=self.lru_width)
        check_heads(require(self.heads), self.channels)
        check_short_conv(short_conv=self.short_conv)

    @property
    def channels(self) -> int:
        """Number of channels of the recurrence."""
        return self.width if self.lru_width is None else self.lru_width

    def build(self) -> RGLRU:
        return RGLRU(self)


class RGLRUState(NamedTuple):
    """State of an RG-LRU block."""

    hidden: Tensor
    """[B, D]"""
    inputs: Tensor
    """[B, kernel size - 1, D]: the newest inputs of the convolution."""


class RGLRU(VectorRecurrence):
    """Two branches: a recurrence behind a short convolution, and a GELU that gates it."""

    spec: RGLRUSpec
    state_type = RGLRUState
    follows_init_scheme = True
    gate_names = ("recurrence", "input")

    def __init__(self, spec: RGLRUSpec) -> None:
        heads, channels = require(spec.heads), spec.channels
        super().__init__(spec, channels, heads)
        self.kept = max(spec.short_conv - 1, 0)
        self.linear_x = nn.Linear(spec.width, channels)
        self.linear_y = nn.Linear(spec.width, channels)
        self.convolution = ShortConvolution(channels, spec.short_conv, bias=True) if self.kept else None
        size = channels // heads
        self.gate_weight = nn.Parameter(torch.empty(heads, size, 2 * size))  # recurrence, then input
        self.gate_bias = nn.Parameter(torch.zeros(heads, 2 * size))
        self.recurrent_param = nn.Parameter(torch.empty(channels))
        self.out = nn.Linear(channels, spec.out)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Linear maps as torch; gates as RecurrentGemma; slowest decays between 0.9 and 0.999, uniform in their
        squares."""
        for module in self.children():
            if isinstance(module, nn.Linear | ShortConvolution):
                module.reset_parameters()
        nn.init.normal_(self.gate_weight, std=self.gate_weight.shape[1] ** -0.5)
        nn.init.zeros_(self.gate_bias)
        with torch.no_grad():
            rate = -0.5 * torch.empty_like(self.recurrent_param).uniform_(*(decay**2 for decay in SLOWEST)).log()
            self.recurrent_param.copy_(rate.expm1().log())  # softplus of it is the rate

    def initial_state(self, like: Tensor) -> RGLRUState:  # type: ignore[override] # it has the inputs as well
        kept = self.out.weight.new_zeros(like.shape[0], self.kept, self.channels if self.kept else 0)
        return RGLRUState(self.initial_hidden(like), kept)

    def mix(self, x: Tensor, state: RGLRUState, span: Span) -> tuple[Tensor, RGLRUState]:
        x, wide, inputs = span.zero_padding(x), state.hidden.dtype, state.inputs
        u = self.linear_x(x)
        if self.convolution is not None:
            u, inputs = self.convolution(u, inputs, span)
        u = u.to(wide)
        with torch.autocast(x.device.type, enabled=False):
            r, i = self._gates(u).unbind(2)
            log_decay = -SHARPNESS * F.softplus(self.recurrent_param.to(wide)) * r
            write = i * torch.where((span.positions == 0)[..., None], 1, keep_size(log_decay))
        h, hidden = self.scan_channels(log_decay.exp(), write, u, state.hidden, span)
        y = h.to(x.dtype) * F.gelu(self.linear_y(x), approximate="tanh")
        return self.out(y.to(x.dtype)), RGLRUState(hidden, inputs)

    def _gates(self, u: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, 2, D]: recurrence and input."""
        by_head = u.unflatten(-1, (self.heads, -1))
        logits = torch.einsum("bthk,hkj->bthj", by_head, self.gate_weight.to(u.dtype)) + self.gate_bias.to(u.dtype)
        gates = torch.sigmoid(logits.unflatten(-1, (2, -1)).transpose(2, 3).flatten(3))
        return self.gates(gates) if self.gates.is_recorded else gates


def keep_size(log_decay: Tensor) -> Tensor:
    """√(1 - a²): what is added with this weight keeps the variance of a state. The derivative is bounded near a = 1,
    where that of a root is not."""
    return (-torch.expm1(2 * log_decay)).clamp(min=1e-12).sqrt()
