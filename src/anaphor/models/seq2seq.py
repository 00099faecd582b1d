"""Encoder-decoder: a language model whose initial state is made from a source.

`encode` reads the source and gives a state. From there on everything is as with a language model, generation and beam
search included, because the state holds all that the decoder uses of the source.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.base import Mixer
from anaphor.mixers.input_feeding import InputFeeding
from anaphor.mixers.recurrent import HiddenState, LSTMState, Recurrent
from anaphor.models.backbone import Backbone, Block, mixer_state, replace_mixer_state
from anaphor.models.embedding import Embedding
from anaphor.models.head import Head
from anaphor.models.initialize import INIT_SCHEMES
from anaphor.models.language_model import LanguageModel, ModelState, TokenModel
from anaphor.models.language_model_spec import LanguageModelSpec
from anaphor.models.seq2seq_spec import Seq2SeqSpec


class Encoded(NamedTuple):
    """An encoder's output."""

    hidden_states: Tensor
    """[B, S, D]"""
    lengths: Tensor | None
    """[B]: number of real tokens; None means all."""
    layers: tuple[Any, ...]
    """The state of each layer after the last real token; () for a bidirectional layer."""

    @property
    def ends(self) -> Tensor:
        """Hidden states of the first and the last real token, concatenated; zeros for a row without tokens. [B, 2·D]"""
        first = self.hidden_states[:, 0]
        if self.lengths is None:
            return torch.cat((first, self.hidden_states[:, -1]), dim=-1)
        last = (self.lengths - 1).clamp(min=0).long()[:, None, None].expand(-1, 1, first.shape[-1])
        ends = torch.cat((first, self.hidden_states.gather(1, last).squeeze(1)), dim=-1)
        return ends.masked_fill((self.lengths == 0)[:, None], 0)


class Encoder(TokenModel):
    """Reads the source as a whole; its layers may see in both directions."""

    def __init__(self, spec: LanguageModelSpec, shared_embedding: Embedding | None = None) -> None:
        super().__init__(spec, shared_embedding)
        INIT_SCHEMES[spec.init_scheme](self)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Encoded:
        """[B, S], [B] -> [B, S, D] and the final states"""
        if isinstance(tokens, Tensor) and tokens.ndim == 2 and not tokens.shape[1]:
            raise ConfigError("a source needs at least one token; a row without any has length 0")
        x, state = self.compute_hidden_states(tokens, None, lengths)
        return Encoded(x, lengths, state.layers)


class Bridge(nn.Module):
    """The initial state of every recurrent layer of a decoder.

    It is the final state of the encoder layer of the same number, where the two have the same kind of state. Elsewhere,
    as after a bidirectional layer, it is a learned projection of the encoder's hidden states of first and last token.
    """

    def __init__(self, encoder: Backbone, decoder: Backbone) -> None:
        super().__init__()
        encoder_states = [_state_kind(mixer) for mixer in encoder.mixers]
        width = 2 * encoder.blocks[-1].width_out
        self.projections = nn.ModuleDict()
        for number, (kind, size) in enumerate(state for mixer in decoder.mixers for state in _state_kinds(mixer)):
            same = number < len(encoder_states) and encoder_states[number] == (kind, size)
            if kind is not None and not same:
                self.projections[str(number)] = nn.Linear(width, len(kind._fields) * size)

    def forward(self, encoded: Encoded, decoder: Backbone, states: tuple[Any, ...]) -> tuple[Any, ...]:
        """The decoder's states with those of recurrent layers replaced."""
        initial, number = [], 0
        for mixer, state in zip(decoder.mixers, states, strict=True):
            own = mixer_state(state)
            tensors = [self._tensors(encoded, number + n, kind) for n, (kind, _) in enumerate(_state_kinds(mixer))]
            number += len(tensors)
            if isinstance(mixer, InputFeeding):
                own = mixer.replace_hidden(own, tensors)
            elif isinstance(mixer, Recurrent):
                own = mixer.state_type(*(new.to(old.dtype) for new, old in zip(tensors[0], own, strict=True)))
            initial.append(replace_mixer_state(state, own))
        return tuple(initial)

    def _tensors(
        self, encoded: Encoded, number: int, kind: type[HiddenState] | type[LSTMState] | None
    ) -> tuple[Tensor, ...]:
        if kind is None:
            return ()
        if str(number) not in self.projections:
            return tuple(mixer_state(encoded.layers[number]))
        hidden, *cell = self.projections[str(number)](encoded.ends).chunk(len(kind._fields), dim=-1)
        return (torch.tanh(hidden), *cell)  # a hidden state lies between -1 and 1, a cell state anywhere


StateKind = tuple[type[HiddenState] | type[LSTMState] | None, int]
"""Type and width of a layer's recurrent state; the type of a layer without one is None."""


def _state_kinds(mixer: Mixer) -> list[StateKind]:
    """One for each layer of the mixer: several with input feeding."""
    if isinstance(mixer, InputFeeding):
        return [(LSTMState if mixer.has_cell else HiddenState, mixer.width_out)] * mixer.spec.layers
    return [_state_kind(mixer)]


def _state_kind(mixer: Mixer) -> StateKind:
    return (mixer.state_type if isinstance(mixer, Recurrent) else None), mixer.width_out


class Seq2Seq(nn.Module):
    """Predicts the next token of a target: `state = model.encode(source_ids, source_lengths)`, and then, as with a
    language model, `logits, state = model(tokens, state, lengths)`."""

    def __init__(self, spec: Seq2SeqSpec) -> None:
        super().__init__()
        self.spec = spec
        self.decoder = LanguageModel(spec.decoder_spec())
        self.encoder: Encoder | None = None
        self.bridge: Bridge | None = None
        if spec.condition != "none":
            self.encoder = Encoder(spec.encoder_spec(), self.decoder.embed if spec.tied == "all" else None)
            self.bridge = Bridge(self.encoder.layers, self.decoder.layers)

    @property
    def blocks(self) -> list[Block]:
        """The layers of both sides, the encoder's first."""
        return [*([] if self.encoder is None else self.encoder.blocks), *self.decoder.blocks]

    @property
    def device(self) -> torch.device:
        """Device of its weights."""
        return self.decoder.device

    @property
    def embed(self) -> Embedding:
        """Embeddings of the target's tokens."""
        return self.decoder.embed

    @property
    def head(self) -> Head:
        return self.decoder.head

    @property
    def max_positions(self) -> int | None:
        """Maximum number of positions of the target; None means unbounded."""
        return self.decoder.max_positions

    @property
    def max_source_positions(self) -> int | None:
        """Maximum number of positions of the source; None means unbounded."""
        return None if self.encoder is None else self.encoder.max_positions

    @property
    def causal(self) -> bool:
        """Whether no token of the target sees a later one."""
        return self.decoder.causal

    @property
    def state_grows(self) -> bool:
        """Whether the state grows with every token of the target, without bound."""
        return self.decoder.state_grows

    def state_bytes(self, tokens: int, source_tokens: int) -> int:
        """Bytes of one row's state after so many tokens of the target, with a source of so many."""
        return self.decoder.state_bytes(tokens, source_tokens)

    def count_parameters(self) -> int:
        """Number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def encode(self, source_ids: Tensor, source_lengths: Tensor | None = None) -> ModelState:
        """The state before the first token of the target. [B, S], [B] -> state of B rows"""
        if self.encoder is None or self.bridge is None:
            return self.decoder.initial_state(len(source_ids))
        encoded = self.encoder(source_ids, source_lengths)
        state = self.decoder.initial_state(len(source_ids), encoded.hidden_states, source_lengths)
        return state._replace(layers=self.bridge(encoded, self.decoder.layers, state.layers))

    def compute_hidden_states(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """The head's input, one vector for each token of the target. [B, T] -> [B, T, D]"""
        if state is None and self.encoder is not None:
            raise ConfigError("an encoder-decoder starts from a source: use the state that encode(source_ids, …) gives")
        return self.decoder.compute_hidden_states(tokens, state, lengths)

    def predict_next(self, x: Tensor, state: ModelState) -> Tensor:
        """Logits of the next token after the last one. [B, D] -> [B, V]"""
        return self.decoder.predict_next(x, state)

    def forward(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """[B, T] -> logits of the next token [B, T, V]. `lengths` [B] are those of rows with padding."""
        x, state = self.compute_hidden_states(tokens, state, lengths)
        return self.head(x), state
