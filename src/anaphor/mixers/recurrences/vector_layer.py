"""What the recurrences whose state is a vector share: the choice of a form, and the taps.

A mixer computes decays, and values with the weights that they are added with; `scan_channels` does the rest.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.recurrences.layer import RecurrenceSpec
from anaphor.mixers.recurrences.vector_state import implied_attention, recurrent, scan
from anaphor.taps import Tap

CHUNKS = {"cpu": 16, "cuda": 32}
"""Tokens of a chunk, by kind of device."""
AT_ONCE = 16
"""Channels whose maps are computed together where only their mean is wanted."""


class VectorState(NamedTuple):
    """State of a recurrence without a convolution."""

    hidden: Tensor
    """[B, D]"""


class VectorRecurrence(Mixer):
    """Base class of recurrences whose state is a vector, each channel by itself."""

    spec: RecurrenceSpec
    state_type: ClassVar[type] = VectorState
    gate_names: ClassVar[tuple[str, ...]] = ()
    """Names of what the tap `gates` [B, T, gates, D] records, in order."""
    decay_names: ClassVar[tuple[str, ...]] = ("decay",)
    """Name of what the tap `decay` [B, T, D] records."""
    state_names: ClassVar[tuple[str, ...]] = ("hidden",)
    """Name of what the tap `states` [B, T, 1, D] records."""

    def __init__(self, spec: RecurrenceSpec, channels: int, heads: int = 1) -> None:
        """`heads`: groups of channels; the tap `weights` shows the mean over each."""
        super().__init__(spec)
        self.channels, self.heads = channels, heads
        self.weights, self.weights_by_channel = Tap(), Tap()
        self.values, self.context = Tap(), Tap()
        self.decay, self.gates, self.states = Tap(), Tap(), Tap()

    @property
    def state_shape(self) -> tuple[int]:
        return (self.channels,)

    def initial_hidden(self, like: Tensor) -> Tensor:
        """Zeros [B, D]."""
        weight = next(self.parameters())
        # What changes slowly adds what half precision would round away.
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return weight.new_zeros(like.shape[0], self.channels, dtype=dtype)

    def initial_state(self, like: Tensor) -> VectorState:
        return VectorState(self.initial_hidden(like))

    def scan_channels(
        self, decay: Tensor, write: Tensor, values: Tensor, hidden: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        """The states [B, T, D] of h_t = decay_t h_{t-1} + write_t values_t and the last one [B, D], in the precision of
        the state whatever autocast says. [B, T, D] three times, [B, D]"""
        with torch.autocast(hidden.device.type, enabled=False):
            decay, write, values = (part.to(hidden.dtype) for part in (decay, write, values))
            if span.has_padding:  # the state stays as it is
                padding = ~span.valid[..., None]
                decay, write = decay.masked_fill(padding, 1), write.masked_fill(padding, 0)
            if self.decay.is_recorded:
                decay = self.decay(decay)
            if self.values.is_recorded:
                values = _by_token(self.values(_by_channel(values)))
            states = self._run(decay, write * values, hidden)
            last = states[:, -1]
            if self.weights.is_recorded:
                w = self._average_weights(decay, write)
                self.weights(w, [(w,)])
            if self.weights_by_channel.is_recorded:
                w = self.weights_by_channel(implied_attention(decay, write, self._chunk(hidden)))
                of_past = scan(decay, torch.zeros_like(values), hidden, self._chunk(hidden))
                states = of_past + _by_token(w @ _by_channel(values))
            if self.context.is_recorded:
                states = _by_token(self.context(_by_channel(states)))
            return states, last.clone()  # a view would keep all states in memory

    def _run(self, decay: Tensor, added: Tensor, hidden: Tensor) -> Tensor:
        if self.states.is_recorded:
            steps = recurrent(decay, added, hidden)
            all_states: Tensor = self.states(torch.stack(steps, dim=1)[:, :, None], [(step,) for step in steps])
            return all_states[:, :, 0]
        if self.spec.chunk == 1 or added.shape[1] == 1:
            return torch.stack(recurrent(decay, added, hidden), dim=1)
        return scan(decay, added, hidden, self._chunk(hidden))

    def _chunk(self, hidden: Tensor) -> int:
        """Of a single token, as the twin has it, there is no scan over chunks."""
        return max(2, self.spec.chunk or CHUNKS.get(hidden.device.type, CHUNKS["cuda"]))

    def _average_weights(self, decay: Tensor, write: Tensor) -> Tensor:
        """Mean of the maps of the channels of each head [B, H, T, T], a few channels at a time: the maps of all
        together may be larger than the memory."""
        heads = zip(decay.chunk(self.heads, dim=-1), write.chunk(self.heads, dim=-1), strict=True)
        return torch.stack([self._sum_weights(*head) for head in heads], dim=1) / (self.channels // self.heads)

    def _sum_weights(self, decay: Tensor, write: Tensor) -> Tensor:
        """[B, T, D] twice -> [B, T, T]"""
        few = zip(decay.split(AT_ONCE, dim=-1), write.split(AT_ONCE, dim=-1), strict=True)
        maps: Tensor = sum(implied_attention(*both, self._chunk(decay)).sum(1) for both in few)  # type: ignore[assignment]
        return maps


def _by_channel(x: Tensor) -> Tensor:
    """[B, T, D] -> [B, D, T, 1]"""
    return x.transpose(1, 2)[..., None]


def _by_token(x: Tensor) -> Tensor:
    """[B, D, T, 1] -> [B, T, D]"""
    return x.squeeze(-1).transpose(1, 2)
