"""sLSTM of xLSTM (Beck, Pöppel, Spanring et al., 2024): an LSTM with exponential gates, a normalizer, and heads.

    z̃, ĩ, f̃, õ = W x_t + R h_{t-1} + b        z = tanh(z̃)    i = exp(ĩ)    f = σ(f̃)    o = σ(õ)
    c_t = f c_{t-1} + i z        n_t = f n_{t-1} + i        h_t = o c_t / n_t

R has a block for each head. Its gates read the state before, so that tokens can only be computed one after the other,
and outputs are not linear in any values: this mixer has neither a parallel form nor an implied attention. That is also
what lets it track a state that the other recurrences of this folder cannot.

exp(ĩ) may be large, so that c and n are kept divided by exp(m_t), m_t = max(log f + m_{t-1}, ĩ). As the largest weight
is then one, n is at least one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.recurrences.mlstm import MultiHeadLayerNorm
from anaphor.mixers.spec import HeadCountOptions, MixerSpec, check_heads, require
from anaphor.taps import Tap

EMPTY = -1e30
"""Logarithm of the largest weight before the first token. Minus infinity would make differences NaN."""


@dataclass(frozen=True, kw_only=True)
class SLSTMSpec(MixerSpec, HeadCountOptions):
    """sLSTM of xLSTM: an LSTM with exponential gates and a normalizer, computed token by token."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4}
    sequential_reason: ClassVar[str] = "its gates read the state before"

    norm_eps: float = 1e-6
    """Added to the variance in the norm of the outputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(require(self.heads), self.out)

    def build(self) -> SLSTM:
        return SLSTM(self)


class SLSTMState(NamedTuple):
    """State of an sLSTM, [B, D] each."""

    hidden: Tensor
    cell: Tensor
    """c exp(-m)"""
    normalizer: Tensor
    """n exp(-m)"""
    stabilizer: Tensor
    """m"""


class SLSTM(Mixer):
    """A recurrent layer with memory mixing inside each head."""

    spec: SLSTMSpec
    state_type = SLSTMState
    gate_names: ClassVar[tuple[str, ...]] = ("input", "forget", "candidate", "output")
    """Names of what the tap `gates` [B, T, 4, D] records, in order: input and forget gate divided by exp(m)."""

    def __init__(self, spec: SLSTMSpec) -> None:
        super().__init__(spec)
        self.heads = require(spec.heads)
        size = spec.out // self.heads
        self.project = nn.Linear(spec.width, 4 * spec.out)  # input, forget, candidate, output
        self.recurrent = nn.Parameter(torch.empty(self.heads, size, 4 * size))
        self.norm = MultiHeadLayerNorm(spec.out, spec.norm_eps)
        self.gates, self.states = Tap(), Tap()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's LSTM, but the bias of the forget gate is one: with zero a cell would lose half of its content with
        every token before anything is learned."""
        self.project.reset_parameters()
        nn.init.ones_(self.project.bias.detach().chunk(4)[1])
        bound = self.width_out**-0.5
        nn.init.uniform_(self.recurrent, -bound, bound)
        nn.init.ones_(self.norm.weight)

    @property
    def state_shape(self) -> tuple[int]:
        return (self.width_out,)

    def initial_state(self, like: Tensor) -> SLSTMState:
        weight = self.project.weight
        # A cell that changes slowly adds what half precision would round away.
        dtype = torch.promote_types(weight.dtype, torch.float32)
        zeros = weight.new_zeros(like.shape[0], self.width_out, dtype=dtype)
        return SLSTMState(zeros, zeros.clone(), zeros.clone(), torch.full_like(zeros, EMPTY))

    def mix(self, x: Tensor, state: SLSTMState, span: Span) -> tuple[Tensor, SLSTMState]:
        gate_inputs = self.project(span.zero_padding(x)).to(state.cell.dtype)
        states, gates = [], []
        with torch.autocast(x.device.type, enabled=False):
            for t, now in enumerate(gate_inputs.unbind(1)):
                following, gate = self.cell(now, state)
                if span.has_padding:
                    valid = span.valid[:, t, None]
                    pairs = zip(following, state, strict=True)
                    following = SLSTMState(*(torch.where(valid, new, old) for new, old in pairs))
                state = following
                states.append(state)
                gates.append(gate)
            self._show(self.states, states)
            self._show(self.gates, gates)
            h = torch.stack([one.hidden for one in states], dim=1)
            y = self.norm(h.unflatten(-1, (self.heads, -1)))
        return y.to(x.dtype), state

    def cell(self, gate_inputs: Tensor, state: SLSTMState) -> tuple[SLSTMState, tuple[Tensor, ...]]:
        """One step for all rows: the next state and the gates. [B, 4 D], [B, D] each"""
        h, c, n, m = state
        by_head = h.unflatten(-1, (self.heads, 1, -1)) @ self.recurrent.to(h.dtype)  # [B, H, 1, 4 K]
        mixed = by_head.squeeze(2).unflatten(-1, (4, -1)).transpose(1, 2).flatten(1)  # [B, 4 D]
        i, f, z, o = (gate_inputs + mixed).chunk(4, dim=-1)
        kept = F.logsigmoid(f) + m
        m = torch.maximum(kept, i)
        i, f, z, o = (i - m).exp(), (kept - m).exp(), torch.tanh(z), torch.sigmoid(o)
        c, n = f * c + i * z, f * n + i
        return SLSTMState(o * c / n, c, n, m), (i, f, z, o)

    def _show(self, tap: Tap, steps: list[SLSTMState] | list[tuple[Tensor, ...]]) -> None:
        if tap.is_recorded:
            tap(torch.stack([torch.stack(tuple(step), dim=1) for step in steps], dim=1), steps)
