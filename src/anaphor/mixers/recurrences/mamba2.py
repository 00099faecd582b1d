"""Mamba-2 (Dao and Gu, 2024): a state space model as a recurrence with a decay for each head.

    S_t = exp(-A Δ_t) S_{t-1} + Δ_t B_t x_tᵀ        y_t = S_tᵀ C_t + D x_t

B_t, C_t, x_t and the step size Δ_t all come from the token; B and C, the keys and queries, are shared by all heads.

With `data_dependent_rope` B_t and C_t are rotated, each pair of channels by an angle that has grown by Δ_t θ_t with
each token, where θ_t comes from the token, too (Mamba-3, 2025). The decay then acts like a complex number: a state that
turns can count in circles, which one that only shrinks cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least
from anaphor.errors import ConfigError
from anaphor.mixers.base import Span
from anaphor.mixers.recurrences.gated_delta import draw_decays
from anaphor.mixers.recurrences.layer import Recurrence, RecurrenceSpec
from anaphor.mixers.recurrences.matrix_state import Steps
from anaphor.mixers.short_convolution import ShortConvolution, check_short_conv
from anaphor.mixers.spec import StateSpaceOptions, check_heads, require


@dataclass(frozen=True, kw_only=True)
class Mamba2Spec(RecurrenceSpec, StateSpaceOptions):
    """Mamba-2: a state space model with a decay for each head."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4, "d_state": 64, "data_dependent_rope": False}

    expand: int = 2
    """Width of all heads together, as a multiple of the width."""
    short_conv: int = 0
    """Kernel size of the short convolution of x, B and C; 0 means none."""
    norm_eps: float = 1e-5
    """Added to the mean square in the norm of the outputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, expand=self.expand, d_state=self.d_state)
        check_heads(require(self.heads), self.inner_width)
        check_short_conv(short_conv=self.short_conv)
        if self.data_dependent_rope and require(self.d_state) % 2:
            raise ConfigError(f"d_state={self.d_state}: data_dependent_rope rotates pairs, so it must be even")

    @property
    def inner_width(self) -> int:
        """Width of all heads together."""
        return self.expand * self.width

    def build(self) -> Mamba2:
        return Mamba2(self)


class Mamba2State(NamedTuple):
    """State of a Mamba-2 layer."""

    memory: Tensor
    """[B, H, N, P]: state size by width of a head."""
    inputs: Tensor
    """[B, kernel size - 1, C]: the newest inputs of the convolution."""
    angles: Tensor
    """[B, H, N / 2]: how far each pair has turned; [B, H, 0] without rotation."""


class Mamba2(Recurrence):
    """A state space layer: x, B and C behind a short convolution where one is wanted, a step size, and a gate."""

    spec: Mamba2Spec
    state_type = Mamba2State
    gate_names = ("step size",)

    def __init__(self, spec: Mamba2Spec) -> None:
        heads, inner, size = require(spec.heads), spec.inner_width, require(spec.d_state)
        channels, kept = inner + 2 * size, max(spec.short_conv - 1, 0)
        super().__init__(spec, (heads, size, inner // heads), (kept, channels if kept else 0))
        self.sizes = (inner, channels, heads)
        self.pairs = size // 2 if spec.data_dependent_rope else 0
        self.project = nn.Linear(spec.width, sum(self.sizes), bias=False)  # gate, then x B C, then step size
        self.convolution = ShortConvolution(channels, spec.short_conv, bias=True) if kept else None
        self.rope = nn.Linear(spec.width, self.pairs, bias=False) if self.pairs else None
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.ones(heads))
        draw_decays(self.A_log, self.dt_bias)
        self.norm = nn.RMSNorm(inner, eps=spec.norm_eps)
        self.out = nn.Linear(inner, spec.out, bias=False)

    def initial_state(self, like: Tensor) -> Mamba2State:  # type: ignore[override] # it has the angles as well
        memory, inputs = super().initial_state(like)
        return Mamba2State(memory, inputs, memory.new_zeros(len(memory), self.heads, self.pairs))

    def mix(self, x: Tensor, state: Mamba2State, span: Span) -> tuple[Tensor, Mamba2State]:
        x, wide, inputs = span.zero_padding(x), state.memory.dtype, state.inputs
        gate, xbc, dt = self.project(x).split(self.sizes, dim=-1)
        if self.convolution is not None:
            xbc, inputs = self.convolution(xbc, inputs, span)
        v, b, c = F.silu(xbc).split((self.sizes[0], *2 * self.memory_shape[1:2]), dim=-1)
        dt = F.softplus(dt.to(wide) + self.dt_bias.to(wide))
        dt = span.zero_padding(self.gates(dt[:, :, None])[:, :, 0]).transpose(1, 2)[..., None]  # [B, H, T, 1]
        b, c = (part.to(wide)[:, None].expand(-1, self.heads, -1, -1) for part in (b, c))
        angles = state.angles
        if self.rope is not None:
            turned = angles[:, :, None] + (dt * self.rope(x).to(wide)[:, None]).cumsum(2)  # [B, H, T, N / 2]
            b, c, angles = rotate_pairs(b, turned), rotate_pairs(c, turned), turned[:, :, -1].remainder(2 * math.pi)
        log_decay = -self.A_log.to(wide).exp()[:, None, None] * dt
        skip = self.D[:, None].expand(len(x), -1, span.count)
        y, memory = self.scan(Steps(c, dt * b, self.split_heads(v), log_decay), state.memory, span, skip)
        y = self.norm(y.transpose(1, 2).flatten(2) * F.silu(gate.to(wide)))
        return self.out(y.to(x.dtype)), Mamba2State(memory, inputs, angles)


def rotate_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """A channel of the first half and one of the second half are a pair. [.., N], [.., N / 2] -> [.., N]"""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
