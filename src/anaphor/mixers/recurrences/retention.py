"""Retention (Sun et al., 2023): linear attention whose memory decays by a fixed factor for each head.

    S_t = γ_h S_{t-1} + k_t v_tᵀ        y_t = S_tᵀ q_t        γ_h = 1 - 2^(-5 - h)

Queries and keys are rotated by their positions. Each head is normalized, and a gate multiplies the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.attention.position import Rotary
from anaphor.mixers.base import Span
from anaphor.mixers.recurrences.layer import HeadNorm, MemorySpec, MemoryState, QKVRecurrence
from anaphor.mixers.recurrences.matrix_state import Steps
from anaphor.mixers.spec import Sizes, require


@dataclass(frozen=True, kw_only=True)
class RetentionSpec(MemorySpec):
    """Retention: a decay for each head that is the same for all tokens."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4, "expand_v": 2.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        Rotary.check(self.sizes)

    @property
    def sizes(self) -> Sizes:
        """Dimensions that the rotation needs."""
        return Sizes(self.width, require(self.heads), self.key_width, max_positions=1)

    def build(self) -> Retention:
        return Retention(self)


class Retention(QKVRecurrence):
    """Linear attention with a fixed decay for each head, rotated queries and keys, and an output gate."""

    spec: RetentionSpec
    gate_names = ("output",)

    def __init__(self, spec: RetentionSpec) -> None:
        super().__init__(spec)
        values = self.heads * spec.value_width
        self.rotary = Rotary(spec.sizes)
        self.gate = nn.Linear(spec.width, values, bias=False)
        self.norm = HeadNorm(spec.value_width, spec.norm_eps)
        self.out = nn.Linear(values, spec.out, bias=False)

    def mix(self, x: Tensor, state: MemoryState, span: Span) -> tuple[Tensor, MemoryState]:
        x, wide = span.zero_padding(x), state.memory.dtype
        q, k, v, inputs = self.project_qkv(x, state.inputs, span, silu=False)
        rotation = self.rotary.rotation(span.positions, wide)
        q, k = (self.rotary.rotate(self.split_heads(part).to(wide), rotation) for part in (q, k))
        log_decay = torch.log1p(-(2.0 ** (-5 - torch.arange(self.heads, dtype=wide, device=x.device))))
        log_decay = log_decay[:, None, None].expand(len(x), -1, span.count, -1)
        steps = Steps(q, k * self.spec.key_width**-0.5, self.split_heads(v), log_decay)
        y, memory = self.scan(steps, state.memory, span)
        y = self.norm(y, self.gates(F.silu(self.gate(x))[:, :, None])[:, :, 0])
        return self.out(y.to(x.dtype)), MemoryState(memory, inputs)
