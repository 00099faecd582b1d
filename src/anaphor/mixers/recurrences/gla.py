"""Gated linear attention (Yang, Wang, Shen, Panda and Kim, 2023): each channel of the keys forgets at a rate of its
own, which the token decides.

    S_t = Diag(α_t) S_{t-1} + k_t v_tᵀ        y_t = S_tᵀ q_t        α_t = σ(W₂ W₁ x_t + b)^(1/16)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least
from anaphor.mixers.base import Span
from anaphor.mixers.recurrences.layer import HeadNorm, MemorySpec, MemoryState, QKVRecurrence
from anaphor.mixers.recurrences.matrix_state import Steps


@dataclass(frozen=True, kw_only=True)
class GLASpec(MemorySpec):
    """Gated linear attention: a decay for each channel of the keys, computed from the token."""

    rank: int = 16
    """Rank of the projection that the decays come from."""
    gate_logit_normalizer: float = 16.0
    """The logarithm of a decay is divided by this, so that it is near one at first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, rank=self.rank, gate_logit_normalizer=self.gate_logit_normalizer)

    def build(self) -> GLA:
        return GLA(self)


class GLA(QKVRecurrence):
    """Linear attention with a decay for each channel of the keys, and an output gate."""

    spec: GLASpec
    gate_names = ("output",)

    def __init__(self, spec: GLASpec) -> None:
        super().__init__(spec)
        values = self.heads * spec.value_width
        self.decay_down = nn.Linear(spec.width, spec.rank, bias=False)
        self.decay_up = nn.Linear(spec.rank, self.heads * spec.key_width)
        self.gate = nn.Linear(spec.width, values, bias=False)
        self.norm = HeadNorm(spec.value_width, spec.norm_eps)
        self.out = nn.Linear(values, spec.out, bias=False)

    def mix(self, x: Tensor, state: MemoryState, span: Span) -> tuple[Tensor, MemoryState]:
        x = span.zero_padding(x)
        q, k, v, inputs = self.project_qkv(x, state.inputs, span, silu=False)
        q, k, v = (self.split_heads(part) for part in (q, k, v))
        logits = self.decay_up(self.decay_down(x)).to(state.memory.dtype)
        log_decay = self.split_heads(F.logsigmoid(logits)) / self.spec.gate_logit_normalizer
        y, memory = self.scan(Steps(q * self.spec.key_width**-0.5, k, v, log_decay), state.memory, span)
        y = self.norm(y, self.gates(F.silu(self.gate(x))[:, :, None])[:, :, 0])
        return self.out(y.to(x.dtype)), MemoryState(memory, inputs)
