"""A mixer of your own: the gated delta rule (Yang, Kautz and Hatamizadeh, 2024) behind a convolution of two tokens.

    anaphor check-mixer my-gated-delta --against my-gated-delta-slow --import my_gated_delta.py
    anaphor train my-recall --import my_recall.py --import my_gated_delta.py --model my-gated-delta --out runs/delta

Each head has a memory S [K, V]: S_t = a_t S_{t-1} + b_t k_t (v_t - k_t a_t S_{t-1}), and y_t = q_t S_t. `recurrent` is
the one to read; it runs as `my-gated-delta-slow`, and while the tap `states` is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor import ConfigError, register_mixer
from anaphor.mixers import Mixer, MixerSpec, Span
from anaphor.taps import Tap


class DeltaState(NamedTuple):
    memory: Tensor  # [B, H, K, V]
    last: Tensor  # [B, D]: the newest input, for the convolution


@dataclass(frozen=True, kw_only=True)
class GatedDeltaSpec(MixerSpec):
    heads: int = 4
    chunk: int = 32  # tokens that are computed at once; 1 for the slow twin

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads < 1 or self.width % self.heads or self.chunk < 1:
            raise ConfigError(f"heads={self.heads}, chunk={self.chunk}: heads must divide width={self.width}")

    def build(self) -> GatedDelta:
        return GatedDelta(self)


def recurrent(memory: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, list[Tensor]]:
    """q, k and v are [B, H, T, K], the gates [B, H, T, 1]. Returns outputs, and the memory after each token."""
    outputs, memories = list[Tensor](), list[Tensor]()
    for q_t, k_t, v_t, a_t, b_t in zip(*(part.split(1, 2) for part in (q, k, v, a, b)), strict=True):
        memory = a_t * memory
        memory = memory + k_t.mT @ (b_t * (v_t - k_t @ memory))
        memories.append(memory)
        outputs.append(q_t @ memory)
    return torch.cat(outputs, 2), memories


def chunkwise(memory: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a chunk; returns outputs and the last memory. What tokens write solves one triangular system."""
    decay = a.log().cumsum(2)  # [B, H, T, 1]
    later = torch.full_like(k @ k.mT, -torch.inf).triu(1)
    past, ratio = decay.exp(), (decay - decay.mT + later).exp()  # what is left of the memory, and of token j at token i
    system = (b * (k @ k.mT) * ratio).tril(-1)
    new = b * (v - past * (k @ memory))
    written = torch.linalg.solve_triangular(system, new, upper=False, unitriangular=True)
    y = past * (q @ memory) + ((q @ k.mT) * ratio) @ written
    return y, past[:, :, -1:] * memory + (k * ratio[:, :, -1:].mT).mT @ written


class GatedDelta(Mixer):
    spec: GatedDeltaSpec
    state_type = DeltaState
    gate_names = ("forget", "input")  # what the tap `gates` has of each head: a and b
    state_names = ("memory",)  # what the tap `states` has of each head: the norm of S

    def __init__(self, spec: GatedDeltaSpec) -> None:
        super().__init__(spec)
        self.shift = nn.Parameter(torch.full((spec.width,), 0.5))  # share of the token before, in each feature
        self.project = nn.Linear(spec.width, 3 * spec.width, bias=False)
        self.gate = nn.Linear(spec.width, 2 * spec.heads)
        self.norm = nn.RMSNorm(spec.width // spec.heads)
        self.out = nn.Linear(spec.width, spec.out, bias=False)
        self.gates, self.states = Tap(), Tap()
        nn.init.constant_(self.gate.bias.detach()[: spec.heads], 4.0)  # at first nearly everything is kept

    def initial_state(self, like: Tensor) -> DeltaState:
        sizes, single = self.norm.normalized_shape * 2, torch.promote_types(self.shift.dtype, torch.float32)
        memory = self.shift.new_zeros(len(like), self.spec.heads, *sizes, dtype=single)  # small changes of a large sum
        return DeltaState(memory, self.shift.new_zeros(len(like), self.width_in))

    def mix(self, x: Tensor, state: DeltaState, span: Span) -> tuple[Tensor, DeltaState]:
        x, heads, single = span.zero_padding(x), self.spec.heads, state.memory.dtype
        joined = torch.cat((state.last[:, None].to(x.dtype), x), 1)
        last = joined[torch.arange(len(x), device=x.device), span.lengths].to(state.last.dtype)
        x = x + self.shift * (joined[:, :-1] - x)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in self.project(x).to(single).chunk(3, -1))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        gates = self.gates(self.gate(x).to(single).sigmoid().unflatten(-1, (2, heads)))  # [B, T, 2, H]
        a, b = gates.permute(2, 0, 3, 1)[..., None].clamp(min=1e-6)
        real = span.valid[:, None, :, None]  # in padding everything is kept, and nothing is written
        with torch.autocast(x.device.type, enabled=False):
            y, memory = self._scan([q, k, v, torch.where(real, a, 1), b * real], state.memory)
        return self.out(self.norm(y).transpose(1, 2).flatten(2).to(x.dtype)), DeltaState(memory, last)

    def _scan(self, inputs: list[Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        if self.spec.chunk == 1 or self.states.is_recorded:
            y, memories = recurrent(memory, *inputs)
            norms = [memory.flatten(2).norm(dim=-1) for memory in memories]
            self.states(torch.stack(norms, 1)[:, :, None], [(norm,) for norm in norms])  # [B, T, 1, H]
            return y, memories[-1]
        outputs = []
        for chunk in zip(*(part.split(self.spec.chunk, 2) for part in inputs), strict=True):
            y, memory = chunkwise(memory, *chunk)
            outputs.append(y)
        return torch.cat(outputs, 2), memory


register_mixer("my-gated-delta", GatedDeltaSpec)
register_mixer("my-gated-delta-slow", partial(GatedDeltaSpec, chunk=1))
