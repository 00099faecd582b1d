"""Encoder: reads a whole source. Start: what a recurrent decoder begins with after that."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers import InputFeeding, Mixer
from anaphor.mixers.recurrent import Hidden, HiddenAndCell, Recurrent
from anaphor.models.block import Stack, WithSource
from anaphor.models.initialise import INITIALISERS
from anaphor.models.language_model import LanguageModelSpec, Trunk


class Encoded(NamedTuple):
    """What an encoder made of a source."""

    features: Tensor
    """[B, S, D]"""
    lengths: Tensor | None
    """[B]: how many tokens of each row are real; None means all."""
    layers: tuple[Any, ...]
    """The state of each layer after the last real token; () where a layer reads both ways."""

    @property
    def ends(self) -> Tensor:
        """The first and the last real token's features side by side, zeros for a row without any. [B, 2·D]"""
        first = self.features[:, 0]
        if self.lengths is None:
            return torch.cat((first, self.features[:, -1]), dim=-1)
        place = (self.lengths - 1).clamp(min=0).long()[:, None, None].expand(-1, 1, first.shape[-1])
        ends = torch.cat((first, self.features.gather(1, place).squeeze(1)), dim=-1)
        return ends.masked_fill((self.lengths == 0)[:, None], 0)


class Encoder(Trunk):
    """A stack that reads the source as a whole, so that its layers may look in both directions."""

    def __init__(self, spec: LanguageModelSpec, embed: nn.Embedding | None = None) -> None:
        super().__init__(spec, embed)
        INITIALISERS[spec.init_scheme](self)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Encoded:
        """[B, S], [B] -> [B, S, D] and the last states"""
        if isinstance(tokens, Tensor) and tokens.ndim == 2 and not tokens.shape[1]:
            raise ConfigError("a source needs at least one token; a row without any has length 0")
        x, state = self.features(tokens, None, lengths)
        return Encoded(x, lengths, state.layers)


class Start(nn.Module):
    """The first state of every recurrent layer of a decoder.

    It is the last state of the encoder's layer at the same height where the two are alike, so that nothing has to be
    learned. Elsewhere, as after a layer that reads both ways, it is a learned map of the encoder's two ends: the first
    token's features have seen all that follows, the last one's all that came before.
    """

    def __init__(self, encoder: Stack, decoder: Stack) -> None:
        super().__init__()
        below = [_kind(mixer) for mixer in encoder.mixers]
        width = 2 * encoder.blocks[-1].width_out
        self.bridges = nn.ModuleDict()
        for height, (kind, size) in enumerate(kind for mixer in decoder.mixers for kind in kinds(mixer)):
            alike = height < len(below) and below[height] == (kind, size)
            if kind is not None and not alike:
                self.bridges[str(height)] = nn.Linear(width, len(kind._fields) * size)

    def forward(self, encoded: Encoded, decoder: Stack, states: tuple[Any, ...]) -> tuple[Any, ...]:
        """The decoder's states, begun where the encoder stopped."""
        begun, height = [], 0
        for mixer, state in zip(decoder.mixers, states, strict=True):
            own = state.own if isinstance(state, WithSource) else state
            tensors = [self._tensors(encoded, height + n, kind) for n, (kind, _) in enumerate(kinds(mixer))]
            height += len(tensors)
            if isinstance(mixer, InputFeeding):
                own = mixer.begin(own, tensors)
            elif isinstance(mixer, Recurrent):
                own = mixer.state_type(*(new.to(old.dtype) for new, old in zip(tensors[0], own, strict=True)))
            begun.append(state._replace(own=own) if isinstance(state, WithSource) else own)
        return tuple(begun)

    def _tensors(
        self, encoded: Encoded, height: int, kind: type[Hidden] | type[HiddenAndCell] | None
    ) -> tuple[Tensor, ...]:
        if kind is None:
            return ()
        if str(height) not in self.bridges:
            return tuple(encoded.layers[height])
        hidden, *cell = self.bridges[str(height)](encoded.ends).chunk(len(kind._fields), dim=-1)
        return (torch.tanh(hidden), *cell)  # an output of a recurrent layer lies between -1 and 1, a cell anywhere


Kind = tuple[type[Hidden] | type[HiddenAndCell] | None, int]  # of state, and its width; None: no recurrent layer


def kinds(mixer: Mixer) -> list[Kind]:
    """Of each layer that the mixer is: one, unless it is a stack by itself."""
    if isinstance(mixer, InputFeeding):
        return [(HiddenAndCell if mixer.kind.keeps_cell else Hidden, mixer.width_out)] * mixer.spec.layers
    return [_kind(mixer)]


def _kind(mixer: Mixer) -> Kind:
    return (mixer.state_type if isinstance(mixer, Recurrent) else None), mixer.width_out
