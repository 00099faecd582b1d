"""minLSTM (Feng et al., 2024): an LSTM whose gates come from the input only, and add up to one.

    f_t = σ(W_f x_t + b_f)    i_t = σ(W_i x_t + b_i)    c_t = W_c x_t + b_c
    h_t = f_t / (f_t + i_t) h_{t-1} + i_t / (f_t + i_t) c_t

The scale of a state does not depend on the number of tokens, because its gates are divided by their sum. With
u_t = i_t / (f_t + i_t) it is a minGRU with the update gate u_t, which depends on two maps of the input, not one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from anaphor.mixers.recurrences.min_gru import MinGRU, MinGRUSpec


@dataclass(frozen=True, kw_only=True)
class MinLSTMSpec(MinGRUSpec):
    """minLSTM: a long short-term memory whose gates come from the input only."""

    def build(self) -> MinLSTM:
        return MinLSTM(self)


class MinLSTM(MinGRU):
    """A gated mean of candidates, with a gate to forget and one to write."""

    gate_names = ("normalized input",)
    gate_biases = (1.0, 0.0)  # forget, input

    def update_logits(self, gate_inputs: Tensor) -> Tensor:
        f, i = gate_inputs.chunk(2, dim=-1)
        return F.logsigmoid(i) - F.logsigmoid(f)  # σ of this is i / (f + i)
