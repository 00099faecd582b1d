"""Spec of an encoder-decoder: a language model whose initial state comes from a source. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anaphor.config import MAX_LAYERS, MAX_VOCABULARY, check_range, look_up
from anaphor.errors import ConfigError
from anaphor.mixers.spec import (
    ConvolutionOptions,
    HeadOptions,
    LinearOptions,
    PositionOptions,
    RecurrentOptions,
    RotaryOptions,
)
from anaphor.models.language_model_spec import LanguageModelSpec
from anaphor.models.spec import (
    StackOptions,
    TokenOptions,
    check_mixers,
    drop_unused,
    field_values,
    find_position,
    layer_option_values,
    mixers_with,
    option_names,
    options_of_all,
)
from anaphor.typecheck import check_types

if TYPE_CHECKING:
    from anaphor.models.backbone import BlockSpec
    from anaphor.models.seq2seq import Seq2Seq

CONDITIONS = {
    "none": "the decoder does not use the source",
    "state": "recurrent layers of the decoder start from the encoder's final state",
    "attention": "every token of the decoder attends to the source",
}
TIES = {
    "all": "one embedding matrix for source, target and output",
    "target": "one embedding matrix for target and output",
    "none": "three matrices",
}
CELLS = frozenset({"rnn-tanh", "rnn-relu", "rnn-identity", "gru", "lstm"})
"""Mixers that can start from an encoder's final state."""
RECURRENT = CELLS | {"qrnn"}
"""Mixers that need no position encoding."""
_MIXER_OPTIONS = frozenset().union(
    *map(option_names, (HeadOptions, RotaryOptions, ConvolutionOptions, RecurrentOptions, LinearOptions))
)


@dataclass(frozen=True, kw_only=True)
class DecoderSpec(LanguageModelSpec):
    """A language model whose layers attend to a source, if there is one."""

    source_width: int | None = None
    """Dimension of the source vectors; None means that no layer attends to them."""
    input_feeding: bool = False
    """Whether all layers are one mixer that attends to the source and feeds its output back."""

    @property
    def layer_options(self) -> frozenset[str]:
        if self.input_feeding:
            return option_names(RecurrentOptions)
        return super().layer_options | (frozenset() if self.source_width is None else option_names(HeadOptions))

    def blocks(self) -> list[BlockSpec]:
        from anaphor.mixers.attention.layer import CrossAttentionSpec
        from anaphor.mixers.input_feeding import InputFeedingSpec

        if self.input_feeding:
            mixer = InputFeedingSpec(
                width=self.width if self.residual else self.width_in,
                width_out=self.width,
                cell=self.mixers[0],
                layers=len(self.mixers_by_layer),
                source_width=self.source_width,
                dropout=self.dropout,
                dropout_kind=self.dropout_kind,
                weight_drop=self.weight_drop,
            )
            return [self._block(mixer, self.norm, self.residual, self.dropout)]
        blocks = super().blocks()
        if self.source_width is None:
            return blocks
        options = {name: getattr(self, name) for name in option_names(HeadOptions)}
        cross = CrossAttentionSpec(
            width=self.width,
            source_width=self.source_width,
            dropout=self.dropout,
            norm_eps=self.norm_eps,
            **options,
        )
        return [dataclasses.replace(block, cross=cross) for block in blocks]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSpec(
    TokenOptions,
    LinearOptions,
    ConvolutionOptions,
    RecurrentOptions,
    RotaryOptions,
    HeadOptions,
    PositionOptions,
    StackOptions,
):
    """An encoder-decoder. Options that neither side has are refused."""

    source_vocabulary: int
    """Vocabulary size of the source."""
    encoder: tuple[str, ...] = ("attention",)
    """Mixer of each encoder layer, first to last; a pattern is repeated. Attention is bidirectional there."""
    decoder: tuple[str, ...] = ("attention",)
    """Mixer of each decoder layer, first to last; a pattern is repeated."""
    encoder_layers: int | None = None
    """Number of encoder layers; None means as many as the decoder has."""
    condition: str = "attention"
    """How the decoder uses the source: none, state (initial state) or attention."""
    input_feeding: bool | None = None
    """Input feeding (Luong et al., 2015); None means for a decoder of lstm or of gru layers with attention."""
    tied: str = "target"
    """Tied weights: all (both embeddings and the head), target (its embeddings and the head) or none."""

    def __post_init__(self) -> None:
        from anaphor.mixers.recurrent import RecurrentSpec

        check_types(self)
        for side in ("encoder", "decoder"):
            check_mixers(self, side)
        look_up(CONDITIONS, self.condition, "condition")
        look_up(TIES, self.tied, "tie")
        check_range(1, MAX_VOCABULARY, source_vocabulary=self.source_vocabulary)
        check_range(1, MAX_LAYERS, encoder_layers=self.encoder_layers)
        find_position(self.position)
        if self.tied == "all" and self.source_vocabulary != self.vocabulary:
            raise ConfigError(
                f"tied='all' needs one vocabulary for both sides, but the source has {self.source_vocabulary:,} tokens "
                f"and the target {self.vocabulary:,}: use tied='target'"
            )
        decoder = ", ".join(self.decoder)
        if self.input_feeding and not self._can_feed_input:
            raise ConfigError(
                f"input_feeding=True needs condition='attention' and a decoder of only lstm or only gru layers, "
                f"not condition={self.condition!r} and {decoder}"
            )
        if self.condition == "attention" and not self.feeds_input and not self.residual:
            raise ConfigError(
                f"condition='attention' with the decoder {decoder} puts cross-attention into every layer, for which "
                f"residual=False does not work: use residual=True, or decoder=lstm or decoder=gru, which have input "
                f"feeding instead"
            )
        self._check_used()
        recurrent = [isinstance(block.mixer, RecurrentSpec) for block in self.decoder_spec().blocks()]
        if self.condition != "none":
            self.encoder_spec()
        if self.condition == "state" and not any(recurrent):
            *first, last = sorted(CELLS)
            raise ConfigError(
                f"condition='state' sets the initial state of {', '.join(first)} and {last} layers, and the decoder "
                f"{decoder} has none: use decoder=lstm, or condition='attention'"
                f"{'' if self.residual else ' with residual=True'}"
            )

    @property
    def _can_feed_input(self) -> bool:
        return self.condition == "attention" and set(self.decoder) in ({"lstm"}, {"gru"})

    @property
    def feeds_input(self) -> bool:
        """Whether the decoder is one mixer with input feeding."""
        return self._can_feed_input and self.input_feeding is not False

    def encoder_spec(self) -> LanguageModelSpec:
        """The encoder: a language model without a head, not causal."""
        options = options_of_all(self.encoder)
        layers = self.encoder_layers
        if layers is None and self.layers is not None:
            layers = max(self.layers, len(self.encoder))
        return LanguageModelSpec(
            vocabulary=self.source_vocabulary,
            mixers=self.encoder,
            layers=layers,
            causal=False,
            tied=False,
            mask="everything" if "mask" in options else None,
            **self._shared(self.encoder, options),
        )

    def decoder_spec(self) -> DecoderSpec:
        """The decoder: a language model that uses the source."""
        return DecoderSpec(
            vocabulary=self.vocabulary,
            mixers=self.decoder,
            layers=self.layers,
            tied=self.tied != "none",
            head_bias=self.head_bias,
            output_dropout=self.output_dropout,
            source_width=self.width if self.condition == "attention" else None,
            input_feeding=self.feeds_input,
            **self._shared(self.decoder, self._decoder_options),
        )

    @property
    def sides(self) -> list[LanguageModelSpec]:
        """Specs of the encoder, where the source is used, and of the decoder."""
        return [*([] if self.condition == "none" else [self.encoder_spec()]), self.decoder_spec()]

    def blocks(self) -> list[BlockSpec]:
        """The specs of the layers of both sides, the encoder's first."""
        return [block for side in self.sides for block in side.blocks()]

    @property
    def _decoder_options(self) -> frozenset[str]:
        if self.feeds_input:
            return option_names(RecurrentOptions)
        return options_of_all(self.decoder) | (
            option_names(HeadOptions) if self.condition == "attention" else frozenset()
        )

    def _shared(self, mixers: tuple[str, ...], accepted: frozenset[str]) -> dict[str, Any]:
        """Options of one side that both sides have in common."""
        everywhere = (option_names(StackOptions) | {"embedding", "input_dropout", "word_dropout", "max_positions"}) - {
            "layers"
        }
        return {
            **{name: getattr(self, name) for name in everywhere | (_MIXER_OPTIONS & accepted)},
            "position": self.position if _needs_position(mixers, self.position) else "none",
        }

    @property
    def _mixers(self) -> list[tuple[str, ...]]:
        return [self.decoder] if self.condition == "none" else [self.encoder, self.decoder]

    @property
    def _layer_options(self) -> frozenset[str]:
        encoder = frozenset() if self.condition == "none" else options_of_all(self.encoder)
        return encoder | self._decoder_options

    def accepts_option(self, name: str, value: Any) -> bool:
        """Whether a layer of one side has the option."""
        if name == "position":
            return any(_needs_position(mixers, value) for mixers in self._mixers)
        return name in self._layer_options

    def unused_options(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the named options on which nothing depends, each with the reason."""
        names = list(names)
        by_side = [side.unused_options(names) for side in self.sides]
        unused = {name: reason for name, reason in by_side[-1].items() if all(name in side for side in by_side)}
        if "max_positions" in unused and self.position != "none":
            unused["max_positions"] = f"applies to --position learned only, not to position={self.position!r}"
        if self.condition == "none":
            reason = "applies to an encoder, and condition='none' uses none"
            unused |= {name: reason for name in ("encoder", "encoder_layers") if name in names}
        return unused

    def _check_used(self) -> None:
        layers = ", ".join(dict.fromkeys(name for mixers in self._mixers for name in mixers))
        for name in sorted(_MIXER_OPTIONS - self._layer_options):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is not used by the layers {layers}; mixers with this option: "
                    f"{mixers_with(name)}"
                )
        if self.position != "none" and not self.accepts_option("position", self.position):
            raise ConfigError(f"position={self.position!r} is not used by the layers {layers}")

    def used_settings(self) -> dict[str, Any]:
        """Every option that this model uses, with its value: exactly these build the same model."""
        encoder, decoder = self.sides[0], self.sides[-1]
        values = field_values(self) | {
            "encoder": encoder.used_settings()["mixers"] if self.condition != "none" else self.encoder,
            "decoder": decoder.used_settings()["mixers"],
            "layers": len(decoder.mixers_by_layer),
            "encoder_layers": len(encoder.mixers_by_layer),
            "embedding": decoder.width_in,
            "input_dropout": decoder.embedding_dropout,
            "input_feeding": self.feeds_input if self._can_feed_input else None,
        }
        return drop_unused(self, values | layer_option_values(self, self.blocks()))

    def build(self) -> Seq2Seq:
        from anaphor.models.initialize import build_checked
        from anaphor.models.seq2seq import Seq2Seq

        return build_checked(Seq2Seq, self)


def _needs_position(mixers: tuple[str, ...], position: str) -> bool:
    """Whether layers use a position encoding. Recurrent layers encode the order of tokens without one."""
    if find_position(position).method in ("embed", None):
        return any(name.removeprefix("bidirectional-") not in RECURRENT for name in mixers)
    return "position" in options_of_all(mixers)
