"""Conditional language model: a language model whose first state was made from a source.

`encode` reads the source and gives a state; from there on everything is as for a language model, generation and search
included, because the state holds all there is to know of the source. Three ways to condition: `none` leaves the source
unread, `state` lets the decoder's recurrent layers start where the encoder stopped, `attention` lets every token look
at the source as well.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.config import check_types, look_up
from anaphor.errors import ConfigError
from anaphor.mixers import CrossAttentionSpec, InputFeedingSpec, options_of
from anaphor.mixers.attention.position import POSITIONS
from anaphor.mixers.kernels.input_feeding import CELLS
from anaphor.mixers.recurrent import RecurrentSpec
from anaphor.models.block import Block, BlockSpec
from anaphor.models.capacity import built
from anaphor.models.encoder import Encoder, Start
from anaphor.models.language_model import Head, LanguageModel, LanguageModelSpec, ModelState
from anaphor.models.options import OF_ALL_LAYERS, OF_SOME_LAYERS, StackOptions

CONDITIONS = {
    "none": "the source is not read",
    "state": "recurrent layers start from the encoder's last state",
    "attention": "every token looks at the source",
}
TIES = {
    "all": "one matrix for source, target and output",
    "target": "one matrix for target and output",
    "none": "three matrices",
}
RECURRENT = frozenset({"rnn-tanh", "rnn-relu", "rnn-identity", "gru", "lstm"})


@dataclass(frozen=True, kw_only=True)
class DecoderSpec(LanguageModelSpec):
    """A language model whose layers look at a source, if there is one."""

    source_width: int | None = None
    """Size of every source vector; None means that nobody looks."""
    feeds: bool = False
    """Whether all layers are one mixer that looks at the source and feeds what it found back."""

    @property
    def understood(self) -> frozenset[str]:
        if self.feeds:
            return FEEDING
        return super().understood | (frozenset() if self.source_width is None else CROSS)

    def blocks(self) -> list[BlockSpec]:
        if self.feeds:
            mixer = InputFeedingSpec(
                width=self.width if self.residual else self.embedding_width,
                width_out=self.width,
                cell=self.mixers[0],
                layers=len(self.mixers_by_layer),
                source_width=self.source_width,
                dropout=self.dropout,
                dropout_kind=self.dropout_kind,
                weight_drop=self.weight_drop or 0.0,
            )
            return [self._block(mixer, self.norm, self.residual, self.dropout)]
        blocks = super().blocks()
        if self.source_width is None:
            return blocks
        options = {name: getattr(self, name) for name in CROSS & OF_SOME_LAYERS if getattr(self, name) is not None}
        cross = CrossAttentionSpec(width=self.width, source_width=self.source_width, dropout=self.dropout, **options)
        return [dataclasses.replace(block, cross=cross) for block in blocks]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSpec(StackOptions):
    """A conditional language model, whole. Options that mean nothing to encoder and decoder are refused."""

    vocabulary: int
    """How many different tokens the target has."""
    layers: int | None = None
    """How many layers the decoder has; None means as many as are named."""
    position: str = "none"
    """How a token's place gets in, on a side that is not recurrent throughout: none, learned, sinusoidal, rotary, …"""
    source_vocabulary: int
    """How many different tokens the source has."""
    encoder: tuple[str, ...] = ("attention",)
    """What the encoder's layers are, from the first to the last; the last one named is repeated. Attention looks both
    ways there."""
    decoder: tuple[str, ...] = ("attention",)
    """What the decoder's layers are, likewise."""
    condition: str = "attention"
    """What the decoder knows of the source: none, state or attention."""
    input_feeding: bool | None = None
    """Whether what attention found is read again with the next token; None means if all layers are lstm or all gru.
    The layers are then one, with one attention above them (Luong et al., 2015)."""
    encoder_layers: int | None = None
    """How many layers the encoder has; None means as many as `layers` says."""
    tied: str = "target"
    """Which word vectors are one matrix: all (source, target and output), target (and output) or none."""

    def __post_init__(self) -> None:
        check_types(self)
        for side in ("encoder", "decoder"):
            names = getattr(self, side)
            if isinstance(names, str) or names is None:
                raise ConfigError(f"{side}={names!r} is no list of names: write {side}=({names!r},)")
            object.__setattr__(self, side, tuple(names))
            if not names:
                raise ConfigError(f"{side} is empty: name at least one mixer")
        look_up(CONDITIONS, self.condition, "condition")
        look_up(TIES, self.tied, "tie")
        if self.source_vocabulary < 1:
            raise ConfigError(f"source_vocabulary={self.source_vocabulary}: it must be at least 1")
        if self.encoder_layers is not None and self.encoder_layers < 1:
            raise ConfigError(f"encoder_layers={self.encoder_layers}: it must be at least 1")
        if self.tied == "all" and self.source_vocabulary != self.vocabulary:
            raise ConfigError(
                f"tied='all' needs one vocabulary for both sides, but the source has {self.source_vocabulary:,} tokens "
                f"and the target {self.vocabulary:,}: use tied='target'"
            )
        if self.input_feeding and not self._can_feed:
            raise ConfigError(
                f"input feeding needs condition='attention' and a decoder that is {' or '.join(CELLS)} throughout, "
                f"not condition={self.condition!r} and {', '.join(self.decoder)}"
            )
        if self.condition == "attention" and not self.feeds and not self.residual:
            raise ConfigError(
                f"condition='attention' with the decoder {', '.join(self.decoder)} puts cross-attention into every "
                f"layer, which needs residual=True; only lstm or gru throughout do without, by input feeding"
            )
        self._refuse_unused()
        blocks = self.decoding().blocks()
        self.encoding()
        if self.condition == "state" and not any(isinstance(block.mixer, RecurrentSpec) for block in blocks):
            raise ConfigError(
                f"condition='state' is for recurrent layers to start from, but the decoder is "
                f"{', '.join(self.decoder)}: use condition='attention'"
            )

    @property
    def _can_feed(self) -> bool:
        return self.condition == "attention" and len(set(self.decoder)) == 1 and self.decoder[0] in CELLS

    @property
    def feeds(self) -> bool:
        """Whether the decoder is one mixer with input feeding."""
        return self._can_feed and self.input_feeding is not False

    def encoding(self) -> LanguageModelSpec:
        """The encoder: a language model without an output, that may look ahead."""
        looks = "everything" if "mask" in _known(self.encoder) else None
        return LanguageModelSpec(
            vocabulary=self.source_vocabulary,
            mixers=self.encoder,
            layers=self._depth(self.encoder),
            causal=False,
            tied=False,
            mask=looks,
            **self._shared(self.encoder, _known(self.encoder)),
        )

    def decoding(self) -> DecoderSpec:
        """The decoder: a language model that looks at a source."""
        return DecoderSpec(
            vocabulary=self.vocabulary,
            mixers=self.decoder,
            layers=self.layers,
            tied=self.tied != "none",
            head_bias=self.head_bias,
            output_dropout=self.output_dropout,
            source_width=self.width if self.condition == "attention" else None,
            feeds=self.feeds,
            **self._shared(self.decoder, self._decoder_options),
        )

    def blocks(self) -> list[BlockSpec]:
        """The layers of both sides, the encoder's first, where the source is read."""
        return [*([] if self.condition == "none" else self.encoding().blocks()), *self.decoding().blocks()]

    @property
    def _decoder_options(self) -> frozenset[str]:
        if self.feeds:
            return FEEDING
        return _known(self.decoder) | (CROSS if self.condition == "attention" else frozenset())

    def _depth(self, names: tuple[str, ...]) -> int | None:
        """The decoder's number of layers need not fit the encoder's names, unless it was meant for them."""
        if self.encoder_layers is not None:
            return self.encoder_layers
        return None if self.layers is None else max(self.layers, len(names))

    def _shared(self, names: tuple[str, ...], understood: frozenset[str]) -> dict[str, Any]:
        """Fields that both sides have; options go where they are understood."""
        said = {name: getattr(self, name) for name in OF_SOME_LAYERS & understood if getattr(self, name) is not None}
        return {
            **{name: getattr(self, name) for name in OF_ALL_LAYERS},
            **said,
            "position": self.position if _is_placed(names, self.position) else "none",
        }

    def hears(self, name: str, value: Any) -> bool:
        """Whether an option would mean something to one of its sides."""
        if name == "position":
            return _is_placed(self.encoder, value) or _is_placed(self.decoder, value)
        return name in _known(self.encoder) | self._decoder_options

    def _refuse_unused(self) -> None:
        look_up(POSITIONS, self.position, "position")
        layers = ", ".join(dict.fromkeys(self.encoder + self.decoder))
        for name in sorted(OF_SOME_LAYERS - _known(self.encoder) - self._decoder_options):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name}={getattr(self, name)!r} means nothing to the layers {layers}")
        if self.position != "none" and not self.hears("position", self.position):
            raise ConfigError(f"position={self.position!r} means nothing to the layers {layers}")

    def build(self) -> Seq2Seq:
        return built(Seq2Seq, self)


CROSS = frozenset(field.name for field in dataclasses.fields(CrossAttentionSpec))
FEEDING = frozenset(field.name for field in dataclasses.fields(InputFeedingSpec)) & OF_SOME_LAYERS


def _is_placed(names: tuple[str, ...], position: str) -> bool:
    """Whether layers are told where their tokens stand. Recurrent ones count by themselves."""
    if POSITIONS[position].door in ("embed", None):
        return any(name.removeprefix("bidirectional-") not in RECURRENT for name in names)
    return "position" in _known(names)


def _known(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset().union(*(options_of(name) for name in names))


class Seq2Seq(nn.Module):
    """Predicts the next token of a target: `state = model.encode(source_ids, source_lengths)`, and then, as any
    language model, `logits, state = model(tokens, state, lengths)`."""

    def __init__(self, spec: Seq2SeqSpec) -> None:
        super().__init__()
        self.spec = spec
        self.decoder = LanguageModel(spec.decoding())
        self.encoder: Encoder | None = None
        self.start: Start | None = None
        if spec.condition != "none":
            self.encoder = Encoder(spec.encoding(), self.decoder.embed if spec.tied == "all" else None)
            self.start = Start(self.encoder.layers, self.decoder.layers)

    @property
    def blocks(self) -> list[Block]:
        """The layers of both sides, the encoder's first."""
        return [*([] if self.encoder is None else self.encoder.blocks), *self.decoder.blocks]

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.decoder.device

    @property
    def embed(self) -> nn.Embedding:
        """Word vectors of the target."""
        return self.decoder.embed

    @property
    def head(self) -> Head:
        return self.decoder.head

    @property
    def limit(self) -> int | None:
        """How many positions of the target the model knows; None means no end."""
        return self.decoder.limit

    @property
    def source_limit(self) -> int | None:
        """How many positions of the source the model knows; None means no end."""
        return None if self.encoder is None else self.encoder.limit

    @property
    def causal(self) -> bool:
        """Whether no token of the target is ever seen before it is predicted."""
        return self.decoder.causal

    @property
    def state_grows(self) -> bool:
        """Whether the state gets larger with every token of the target, without end."""
        return self.decoder.state_grows

    def state_bytes(self, tokens: int, source_tokens: int) -> int:
        """Bytes that one row's state holds after so many tokens of the target, with a source of so many."""
        return self.decoder.state_bytes(tokens, source_tokens)

    def count_parameters(self) -> int:
        """Numbers that are learned; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def encode(self, source_ids: Tensor, source_lengths: Tensor | None = None) -> ModelState:
        """The state before the first token of the target. [B, S], [B] -> state of B rows"""
        if self.encoder is None or self.start is None:
            return self.decoder.initial_state(len(source_ids))
        encoded = self.encoder(source_ids, source_lengths)
        state = self.decoder.initial_state(len(source_ids), encoded.features, source_lengths)
        return state._replace(layers=self.start(encoded, self.decoder.layers, state.layers))

    def features(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """What the head reads, one vector for each token of the target. [B, T] -> [B, T, D]"""
        if state is None and self.encoder is not None:
            raise ConfigError("a conditional model begins with a source: let encode(source_ids, …) make the state")
        return self.decoder.features(tokens, state, lengths)

    def forward(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """[B, T] -> logits of the token after each [B, T, V]. Rows shorter than T say so in `lengths` [B]."""
        x, state = self.features(tokens, state, lengths)
        return self.head(x), state
