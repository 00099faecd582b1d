"""minGRU (Feng et al., 2024): a GRU whose gate and candidate come from the input only.

    z_t = σ(W_z x_t + b_z)        c_t = W_c x_t + b_c        h_t = (1 - z_t) h_{t-1} + z_t c_t

Without the hidden state in the gate all products are computed at once, and what is left is a weighted mean: every state
lies between the candidates of the tokens before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anaphor.mixers.base import Span
from anaphor.mixers.recurrences.layer import RecurrenceSpec
from anaphor.mixers.recurrences.vector_layer import VectorRecurrence, VectorState


@dataclass(frozen=True, kw_only=True)
class MinGRUSpec(RecurrenceSpec):
    """minGRU: a gated recurrent unit whose gates come from the input only."""

    defaults: ClassVar[Mapping[str, Any]] = {}

    def build(self) -> MinGRU:
        return MinGRU(self)


class MinGRU(VectorRecurrence):
    """A gated mean of candidates."""

    gate_names = ("update",)
    gate_biases: ClassVar[tuple[float, ...]] = (-1.0,)
    """First value of the bias of each gate. With zero half of a state would be lost with every token."""

    def __init__(self, spec: RecurrenceSpec) -> None:
        super().__init__(spec, spec.out)
        self.project = nn.Linear(spec.width, (len(self.gate_biases) + 1) * spec.out)  # gates, then candidate
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's linear map, but a state keeps most of itself at first."""
        self.project.reset_parameters()
        with torch.no_grad():
            for bias, value in zip(self.project.bias.chunk(len(self.gate_biases) + 1), self.gate_biases, strict=False):
                bias.fill_(value)

    def update_logits(self, gate_inputs: Tensor) -> Tensor:
        """Logits of the share of the candidate in the new state. [B, T, gates · D] -> [B, T, D]"""
        return gate_inputs

    def mix(self, x: Tensor, state: VectorState, span: Span) -> tuple[Tensor, VectorState]:
        projected = self.project(span.zero_padding(x)).to(state.hidden.dtype)
        gate_inputs, candidate = projected.tensor_split([len(self.gate_biases) * self.channels], dim=-1)
        logits = self.update_logits(gate_inputs)
        update, decay = torch.sigmoid(logits), torch.sigmoid(-logits)  # 1 - σ would round away a small one
        if self.gates.is_recorded:
            update = self.gates(update[:, :, None])[:, :, 0]
            decay = 1 - update
        states, hidden = self.scan_channels(decay, update, candidate, state.hidden, span)
        return states.to(x.dtype), VectorState(hidden)
