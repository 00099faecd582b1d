"""A mixer of your own: a leaky integrator, h_t = a · h_{t-1} + (1 - a) · W x_t with a learned a for each feature.

anaphor check-mixer leaky --import leaky_mixer.py
anaphor train lm --import leaky_mixer.py --data grammar --mixers leaky --out runs/leaky
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anaphor import register_mixer
from anaphor.mixers import Mixer, MixerSpec, Span


class LeakyState(NamedTuple):
    hidden: Tensor  # [B, D]: every tensor of a state has the batch first


@dataclass(frozen=True, kw_only=True)
class LeakySpec(MixerSpec):
    decay: float = 0.9
    """Share of the old value that each token keeps at the start of training."""

    def build(self) -> "Leaky":
        return Leaky(self)


class Leaky(Mixer):
    state_type = LeakyState

    def __init__(self, spec: LeakySpec) -> None:
        super().__init__(spec)
        self.in_proj = nn.Linear(spec.width, spec.out)
        self.decay = nn.Parameter(torch.full((spec.out,), spec.decay).logit())

    def initial_state(self, like: Tensor) -> LeakyState:
        return LeakyState(self.decay.new_zeros(len(like), self.width_out))

    def mix(self, x: Tensor, state: LeakyState, span: Span) -> tuple[Tensor, LeakyState]:
        hidden, decay, outputs = state.hidden, self.decay.sigmoid(), []
        # Where a row has ended, `valid` is False and the state stays as it is.
        for value, valid in zip(self.in_proj(x).unbind(1), span.valid.unbind(1), strict=True):
            hidden = torch.where(valid[:, None], decay * hidden + (1 - decay) * value, hidden)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), LeakyState(hidden)


register_mixer("leaky", LeakySpec)
