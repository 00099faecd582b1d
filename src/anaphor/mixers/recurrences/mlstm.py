"""mLSTM of xLSTM (Beck, Pöppel, Spanring et al., 2024): an LSTM whose cell is a matrix, with an exponential input gate.

    C_t = f_t C_{t-1} + i_t k_t v_tᵀ        n_t = f_t n_{t-1} + i_t k_t        f_t = σ(f̃_t)    i_t = exp(ĩ_t)
    h_t = C_tᵀ q_t / max(|n_tᵀ q_t|, 1)     y_t = W (σ(o_t) · norm(h_t))

exp(ĩ) may be large, so that C and n are kept divided by exp(m_t), where m_t = max(log f_t + m_{t-1}, ĩ_t) is the
logarithm of the largest weight so far. With the gates f' = exp(log f_t + m_{t-1} - m_t) and i' = exp(ĩ_t - m_t), which
are at most one, it is a recurrence with a memory like the others, and n is the column of C for a value that is always
one.

Weights and numbers are those of `xLSTMLayer` in transformers with `qk_dim_factor=0.5` and `expand_v=2.0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.errors import ConfigError
from anaphor.mixers.base import Span
from anaphor.mixers.recurrences.layer import MemorySpec, QKVRecurrence
from anaphor.mixers.recurrences.matrix_state import Steps
from anaphor.mixers.spec import require

FORGET_BIASES = (3.0, 6.0)
"""First biases of the forget gates, from the first head to the last."""
EPS = 1e-6
"""Added to what the outputs are divided by."""


@dataclass(frozen=True, kw_only=True)
class MLSTMSpec(MemorySpec):
    """mLSTM of xLSTM: a matrix as the cell, an exponential input gate, and a normalizer."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4, "expand_v": 1.0}

    qk_dim_factor: float = 1.0
    """Width of the queries and keys of all heads, as a multiple of the width."""
    gate_soft_cap: float = 15.0
    """Pre-activations of the gates lie between plus and minus this."""
    norm_eps: float = 1e-6
    """Added to the variance in the norm of the outputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gate_soft_cap > 0:
            raise ConfigError(f"gate_soft_cap={self.gate_soft_cap}: it must be above 0")

    @property
    def key_width(self) -> int:
        width = self.width * self.qk_dim_factor / require(self.heads)
        if width < 1 or width != int(width):
            raise ConfigError(
                f"qk_dim_factor={self.qk_dim_factor} times width={self.width} by heads={self.heads} is {width:g}: it "
                f"must be a whole number from 1 on"
            )
        return int(width)

    def build(self) -> MLSTM:
        return MLSTM(self)


class MLSTMState(NamedTuple):
    """State of an mLSTM."""

    memory: Tensor
    """[B, H, K, V + 1]: C exp(-m), and n exp(-m) as its last column."""
    inputs: Tensor
    """[B, kernel size - 1, C]: the newest inputs of the convolution."""
    stabilizer: Tensor
    """[B, H]: m, the logarithm of the largest weight so far."""


class MLSTM(QKVRecurrence):
    """A memory with an exponential input gate, whose outputs are divided by the sum of their weights."""

    spec: MLSTMSpec
    state_type = MLSTMState
    gate_names = ("log input", "log forget")

    def __init__(self, spec: MLSTMSpec) -> None:
        super().__init__(spec)
        heads, keys, width = self.memory_shape
        self.memory_shape = (heads, keys, width + 1)
        values = heads * width
        self.gate_weight = nn.Linear(spec.width, 2 * heads, bias=False)  # input, then forget
        self.gate_bias = nn.Parameter(torch.cat((torch.zeros(heads), torch.linspace(*FORGET_BIASES, heads))))
        self.output_gate = nn.Linear(spec.width, values, bias=False)
        self.norm = MultiHeadLayerNorm(values, spec.norm_eps)
        self.out = nn.Linear(values, spec.out, bias=False)

    def initial_state(self, like: Tensor) -> MLSTMState:  # type: ignore[override] # it has the stabilizer as well
        memory, inputs = super().initial_state(like)
        return MLSTMState(memory, inputs, memory.new_zeros(len(memory), self.heads))

    def mix(self, x: Tensor, state: MLSTMState, span: Span) -> tuple[Tensor, MLSTMState]:
        x, wide = span.zero_padding(x), state.memory.dtype
        q, k, v, inputs = self.project_qkv(x, state.inputs, span, silu=False)
        q, k, v = (self.split_heads(part) for part in (q, k, v))
        log_input, log_forget = self._log_gates(x, wide)
        if span.has_padding:
            padding = ~span.valid[:, None]
            log_input, log_forget = log_input.masked_fill(padding, -torch.inf), log_forget.masked_fill(padding, 0)
        m = stabilize(log_input, log_forget, state.stabilizer)
        before = torch.cat((state.stabilizer[..., None], m[..., :-1]), dim=-1)
        log_decay = (log_forget + before - m).clamp(max=0)  # above zero by rounding only
        k = k.to(wide) * (log_input - m).exp()[..., None]

        def divide_by(total: Tensor) -> Tensor:
            return torch.maximum(total.abs(), (-m).exp()[..., None]) + EPS

        steps = Steps(q.to(wide) * self.spec.key_width**-0.5, k, v, log_decay[..., None])
        y, memory = self.scan(steps, state.memory, span, divisor=divide_by)
        y = self.norm(y.transpose(1, 2)) * torch.sigmoid(self.output_gate(x))
        return self.out(y.to(x.dtype)), MLSTMState(memory, inputs, m[..., -1].clone())

    def _log_gates(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Logarithms of the input and the forget gates. [B, T, D] -> [B, H, T] each"""
        cap = self.spec.gate_soft_cap
        raw = cap * torch.tanh((self.gate_weight(x).to(dtype) + self.gate_bias.to(dtype)) / cap)
        log_input, raw_forget = raw.chunk(2, dim=-1)
        gates = self.gates(torch.stack((log_input, F.logsigmoid(raw_forget)), dim=2))  # [B, T, 2, H]
        log_input, log_forget = gates.transpose(1, 3).unbind(2)
        return log_input, log_forget


class MultiHeadLayerNorm(nn.Module):
    """Layer norm of each head by itself, with a scale for each channel."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, y: Tensor) -> Tensor:
        """[B, T, H, V] -> [B, T, H·V]"""
        return F.layer_norm(y, y.shape[-1:], eps=self.eps).flatten(2) * self.weight.to(y.dtype)


def stabilize(log_input: Tensor, log_forget: Tensor, start: Tensor) -> Tensor:
    """m_t = max(log_forget_t + m_{t-1}, log_input_t) for all tokens at once. [B, H, T] twice, [B, H] -> [B, H, T]"""
    total = log_forget.cumsum(-1)
    largest, _ = (log_input - total).cummax(-1)
    return total + torch.maximum(largest, start[..., None])
