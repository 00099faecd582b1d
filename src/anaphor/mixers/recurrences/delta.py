"""DeltaNet (Schlag, Irie and Schmidhuber, 2021; in parallel: Yang, Wang, Zhang, Shen and Kim, 2024): before a value is
written, the memory's present value for its key is taken away, in whole or in part.

    S_t = (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ        y_t = S_tᵀ q_t        |k_t| = 1

The matrix in front of S_{t-1} has the eigenvalue 1 - β_t in the direction of the key. With β between 0 and 1 it
shrinks what is there; with β up to 2 it may also turn the sign (Grazzi et al., 2024), without which no product of such
matrices tells an even number of tokens from an odd one. Several steps a token make products of such reflections, which
reach every rotation (DeltaProduct, Siems et al., 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anaphor.config import check_range
from anaphor.mixers.base import Span
from anaphor.mixers.recurrences.layer import HeadNorm, MemorySpec, MemoryState, QKVRecurrence
from anaphor.mixers.recurrences.matrix_state import Steps
from anaphor.mixers.spec import DeltaOptions, require

MAX_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class DeltaSpec(MemorySpec, DeltaOptions):
    """DeltaNet: a memory that replaces the value of a key rather than add to it."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "heads": 4,
        "expand_v": 1.0,
        "allow_neg_eigval": False,
        "num_householder": 1,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(1, MAX_STEPS, num_householder=self.num_householder)

    def build(self) -> Delta:
        return Delta(self)


class Delta(QKVRecurrence):
    """The delta rule, with keys and queries of length one."""

    spec: DeltaSpec
    decays = False

    def __init__(self, spec: DeltaSpec) -> None:
        self.steps = require(spec.num_householder)
        super().__init__(spec, writes=self.steps)
        self.beta = nn.Linear(spec.width, self.steps * self.heads, bias=False)
        self.norm = HeadNorm(spec.value_width, spec.norm_eps)
        self.out = nn.Linear(self.heads * spec.value_width, spec.out, bias=False)

    @property
    def gate_names(self) -> tuple[str, ...]:  # type: ignore[override] # one for each step
        """Names of what the tap `gates` [B, T, steps, H] records: how much of a value is replaced."""
        return ("beta",) if self.steps == 1 else tuple(f"beta {number}" for number in range(1, self.steps + 1))

    def split_writes(self, x: Tensor) -> Tensor:
        """[B, T, n H K] -> [B, H, T n, K]"""
        by_write: Tensor = x.unflatten(-1, (self.steps, self.heads, -1))  # [B, T, n, H, K]
        return by_write.flatten(1, 2).transpose(1, 2)

    def log_decay(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What a subclass forgets before it corrects: nothing here."""
        return None

    def normalize(self, y: Tensor, x: Tensor) -> Tensor:
        """The norm of the outputs, and in a subclass a gate. [B, H, T, V], [B, T, D] -> [B, T, H V]"""
        normed: Tensor = self.norm(y)
        return normed

    def mix(self, x: Tensor, state: MemoryState, span: Span) -> tuple[Tensor, MemoryState]:
        x, wide = span.zero_padding(x), state.memory.dtype
        q, k, v, inputs = self.project_qkv(x, state.inputs, span, silu=True)
        q, k, v = self.split_heads(q).to(wide), self.split_writes(k).to(wide), self.split_writes(v)
        q, k = (unit_length(part) for part in (q, k))
        beta = torch.sigmoid(self.beta(x).to(wide)) * (2 if self.spec.allow_neg_eigval else 1)
        beta = self.gates(beta.unflatten(-1, (self.steps, self.heads)))  # [B, T, n, H]
        beta = beta.flatten(1, 2).transpose(1, 2)[..., None]  # [B, H, T n, 1]
        steps = Steps(q * self.spec.key_width**-0.5, beta * k, v.to(wide), self.log_decay(x, wide), b=k)
        y, memory = self.scan(steps, state.memory, span)
        return self.out(self.normalize(y, x).to(x.dtype)), MemoryState(memory, inputs)


def unit_length(x: Tensor) -> Tensor:
    """Vectors of length one; those that are nearly zero stay so."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
