"""Specs of models: the options that all of them share, those of a backbone, and those of models of tokens.

Every option is declared once. Imports no torch, so that the command line can list the options quickly; what needs torch
is imported when a spec is checked or its model is built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from anaphor.config import MAX_LAYERS, MAX_VOCABULARY, check_at_least, check_range, look_up
from anaphor.errors import ConfigError
from anaphor.mixers.spec import (
    LayerOptions,
    MixerSpec,
    PositionOptions,
    RotaryOptions,
    check_probability,
    mixer_spec,
    options_of,
)
from anaphor.registry import MIXERS
from anaphor.typecheck import check_types

if TYPE_CHECKING:
    from anaphor.mixers.attention.position import Position
    from anaphor.models.backbone import Backbone, BlockSpec

Value = TypeVar("Value")

SOMETIMES_UNUSED = ("max_positions", "activation", "feedforward_bias", "dropout_kind", "norm_kind", "norm_eps")
"""Options that every model accepts and not every model uses."""
PER_LAYER = (
    "layer_widths", "layer_norms", "layer_residuals", "layer_dropouts", "layer_kernel_sizes", "layer_short_convs",
)  # fmt: skip
PATTERNS = ("layer_positions", "layer_windows")
"""Options of one value for each layer that may be fewer, and are repeated, as mixers are."""


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Options that mean the same for every stack of layers."""

    width: int = 256
    """Model width: dimension of the vectors between the layers."""
    layers: int | None = None
    """Number of layers; None means one for each mixer that is named."""
    feedforward: int | None = None
    """Hidden width of the feed-forward networks; 0 means none, None 4 times the width, 8/3 times with a gate."""
    activation: str = "gelu"
    """Activation of the feed-forward networks: relu, gelu, gelu-tanh or silu; gated: swiglu, geglu or geglu-tanh."""
    feedforward_bias: bool = True
    """Bias in the linear maps of the feed-forward networks."""
    parallel_residual: str = "none"
    """Feed-forward network beside the mixer: none (after it), two-norms (as GPT-NeoX) or one-norm (as GPT-J)."""
    norm: str = "before"
    """Place of the norms: before (pre-norm, and one after the last layer), after (post-norm) or none."""
    norm_kind: str = "layernorm"
    """Kind of norm: layernorm or rmsnorm."""
    norm_eps: float = 1e-5
    """Added to the variance in norms."""
    residual: bool = True
    """Residual connection around each layer."""
    short_conv: int = 0
    """Kernel size of the short causal convolution of each layer (4, for example); 0 means none."""
    dropout: float = 0.0
    """Dropout probability in and after every layer, and of the embeddings."""
    dropout_kind: str = "each"
    """What dropout zeroes: each value independently (each), or the same features of all tokens (locked)."""
    init_scheme: str = "normal"
    """Weight initialization: normal (as GPT-2) or uniform."""


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """Options of models that read and predict tokens."""

    vocabulary: int
    """Vocabulary size."""
    embedding: int | None = None
    """Dimension of the embeddings; None means the width of the first layer."""
    input_dropout: float | None = None
    """Dropout probability of the embeddings; None means the same as dropout."""
    output_dropout: float = 0.0
    """Dropout probability of the hidden states before the head."""
    word_dropout: float = 0.0
    """Probability of dropping a word from a whole batch in training; a learned vector takes its place."""
    head_bias: bool = False
    """Bias of the head (output layer)."""


@dataclass(frozen=True, kw_only=True)
class BackboneSpec(LayerOptions, PositionOptions, StackOptions):
    """A stack of layers on given vectors: `BackboneSpec(width=64, layers=2, causal=False, mask="everything").build()`.

    Each option goes to the layers that have it. One that no layer has is refused.
    """

    mixers: tuple[str, ...] = ("attention",)
    """Mixer of each layer, first to last; fewer names than layers are a pattern that is repeated."""
    layer_widths: tuple[int, ...] = ()
    """Width of each layer, in place of width."""
    layer_norms: tuple[str, ...] = ()
    """Place of the norms of each layer, in place of norm, which still decides on the norm after the last layer."""
    layer_residuals: tuple[bool, ...] = ()
    """Residual connection of each layer, in place of residual."""
    layer_dropouts: tuple[float, ...] = ()
    """Dropout probability of each layer, in place of dropout, which still holds for the embeddings."""
    layer_kernel_sizes: tuple[int, ...] = ()
    """Kernel size of each layer, in place of kernel_size; it has no effect on layers other than qrnn."""
    layer_short_convs: tuple[int, ...] = ()
    """Kernel size of the short convolution of each layer, in place of short_conv; 0 means none."""
    layer_positions: tuple[str, ...] = ()
    """Position encoding inside each layer, in place of position: none, rotary, alibi, …; a pattern is repeated."""
    layer_windows: tuple[int, ...] = ()
    """Attention window of each layer, in place of window; 0 means none; a pattern is repeated."""
    causal: bool = True
    """Refuse layers that attend to later tokens; --no-causal allows them, but then there is no perplexity."""

    def __post_init__(self) -> None:
        from anaphor.models.initialize import INIT_SCHEMES

        check_types(self)
        check_mixers(self, "mixers")
        check_at_least(1, width=self.width, max_positions=self.max_positions)
        check_range(1, MAX_LAYERS, layers=self.layers)
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps={self.norm_eps}: it must be above 0 and below 1")
        look_up(INIT_SCHEMES, self.init_scheme, "init scheme")
        find_position(self.position)
        self._check_layers()
        self._check_input()
        self.blocks()

    def _check_layers(self) -> None:
        """Refuse more values for the layers than there are layers, and those that a layer cannot have."""
        if self.layers is not None and self.layers < len(self.mixers):
            raise ConfigError(
                f"layers={self.layers} is less than the {len(self.mixers)} mixers named; a pattern is no longer than "
                f"the layers"
            )
        layers = len(self.mixers_by_layer)
        for name in PER_LAYER:
            values = getattr(self, name)
            if values and len(values) != layers:
                raise ConfigError(f"{name} has {len(values)} values for {layers} layers: give one for each layer")
        for name in PATTERNS:
            if len(getattr(self, name)) > layers:
                raise ConfigError(f"{name} has {len(getattr(self, name))} values for {layers} layers: give fewer")
        for position in self.layer_positions:
            if find_position(position).method == "embed":
                raise ConfigError(
                    f"layer_positions: {position!r} is added to the input of the model, not inside a layer; use none, "
                    f"rotary, alibi, relative or relative-buckets"
                )
        check_at_least(0, layer_windows=min(self.layer_windows, default=None))

    def _check_input(self) -> None:
        if self.position != "none" and self.adds_position:
            raise ConfigError(
                f"position={self.position!r} is added to the input vectors, and a backbone takes them as they are: "
                f"add it before, or use rotary, alibi or relative"
            )

    @property
    def mixers_by_layer(self) -> tuple[str, ...]:
        """The mixer of every layer."""
        return repeat_pattern(self.mixers, len(self.mixers) if self.layers is None else self.layers)

    @property
    def widths_by_layer(self) -> tuple[int, ...]:
        """The width of every layer."""
        return self._by_layer("width")

    def _by_layer(self, name: str) -> tuple[Any, ...]:
        values: tuple[Any, ...] = getattr(self, f"layer_{name}s")
        return repeat_pattern(values or (getattr(self, name),), len(self.mixers_by_layer))

    @property
    def width_in(self) -> int:
        """Dimension of the vectors that enter the first layer."""
        return self.width

    @property
    def adds_position(self) -> bool:
        """Whether the position encoding is added to the input vectors rather than used inside attention."""
        return not self.layer_positions and find_position(self.position).method in ("embed", None)

    @property
    def embedder_position(self) -> str:
        """Position encoding that is added to the embeddings."""
        return self.position if self.adds_position else "none"

    def blocks(self) -> list[BlockSpec]:
        """The specs of the layers. Raises an error where options do not fit together."""
        given = {name: getattr(self, name) for name in sorted(option_names(LayerOptions))}
        options = {name: value for name, value in given.items() if value is not None}
        if not self.adds_position:
            options["position"] = self.layer_positions or self.position
        if self.layer_kernel_sizes:
            options["kernel_size"] = self.layer_kernel_sizes
        if self.layer_windows:
            options["window"] = self.layer_windows
        self._check_used(options)
        blocks, width_in = [], self.width_in
        by_layer = map(self._by_layer, ("width", "norm", "residual", "dropout", "short_conv"))
        for number, (name, width, norm, residual, dropout, short_conv) in enumerate(
            zip(self.mixers_by_layer, *by_layer, strict=True)
        ):
            accepted = options_of(name)
            given_here = self._options_of_layer(number, options) | {"dropout": dropout, "short_conv": short_conv}
            own = {option: value for option, value in given_here.items() if option in accepted}
            if {"qk_norm", "norm_eps"} <= accepted:
                own["norm_eps"] = self.norm_eps
            has_own_place = "short_conv" in accepted
            # With a residual connection a layer has one width throughout; without, the mixer changes it.
            mixer = mixer_spec(name, width=width if residual else width_in, width_out=width, **own)
            if self.causal and mixer.noncausal_reason is not None:
                raise ConfigError(
                    f"mixer {name!r} needs the whole sequence, and would let a token attend to those it must predict: "
                    f"{mixer.noncausal_reason}; causal=False allows it"
                )
            block = self._block(mixer, norm, residual, dropout)
            blocks.append(block if has_own_place else dataclasses.replace(block, short_conv=short_conv))
            width_in = width
        return blocks

    def _options_of_layer(self, number: int, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of mixers as one layer has them, by its number."""
        own = {**options, "kernel_size": self._by_layer("kernel_size")[number]}
        if self.layer_windows:
            own["window"] = self._by_layer("window")[number] or None
        if self.layer_positions:
            own["position"] = self._by_layer("position")[number]
            methods = {find_position(name).method for name in self.layer_positions}
            if "rotate" in methods and find_position(own["position"]).method != "rotate":
                own = {name: value for name, value in own.items() if name not in option_names(RotaryOptions)}
        return own

    def _block(self, mixer: MixerSpec, norm: str, residual: bool, dropout: float) -> BlockSpec:
        from anaphor.models.backbone import BlockSpec

        return BlockSpec(
            mixer=mixer,
            norm=norm,
            norm_kind=self.norm_kind,
            residual=residual,
            feedforward=self._choose_hidden(mixer.out) if self.feedforward is None else self.feedforward or None,
            activation=self.activation,
            feedforward_bias=self.feedforward_bias,
            parallel_residual=self.parallel_residual,
            dropout=dropout,
            dropout_kind=self.dropout_kind,
            norm_eps=self.norm_eps,
        )

    def _choose_hidden(self, width: int) -> int:
        """Hidden width of the feed-forward network of a layer. One with a gate has three matrices in place of two, and
        about as many weights."""
        from anaphor.models.backbone import GATED_ACTIVATIONS

        return 8 * max(1, round(width / 3)) if self.activation in GATED_ACTIVATIONS else 4 * width

    @property
    def layer_options(self) -> frozenset[str]:
        """Options that at least one layer has."""
        return options_of_all(self.mixers_by_layer)

    def accepts_option(self, name: str, value: Any) -> bool:
        """Whether a layer has the option, or for a position encoding the model itself."""
        return name in self.layer_options or (name == "position" and find_position(value).method in ("embed", None))

    def unused_options(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the named options on which nothing depends, each with the reason."""
        unused = {}
        if self.layer_positions or not find_position(self.position).has_limit:
            unused["max_positions"] = f"applies to --position learned only, not to position={self.position!r}"
        if self.feedforward == 0:
            reason = "applies to the feed-forward network only, and the model has none: set --feedforward"
            unused |= {"activation": reason, "feedforward_bias": reason}
        if not any(self._dropouts()):
            unused["dropout_kind"] = "has no effect without dropout: set --dropout or another dropout rate"
        if {self.norm, *self._by_layer("norm")} == {"none"}:
            unused["norm_kind"] = "applies to norms only, and the model has none: set --norm"
            if self.qk_norm in (None, "none"):
                unused["norm_eps"] = unused["norm_kind"]
        return {name: unused[name] for name in names if name in unused}

    def _dropouts(self) -> Sequence[float]:
        return self._by_layer("dropout")

    def _check_used(self, options: dict[str, Any]) -> None:
        for name, value in options.items():
            if name not in self.layer_options:
                given = f"layer_{name}s" if isinstance(value, tuple) else name
                raise ConfigError(
                    f"{given}={value!r} is not used by the layers {', '.join(self.mixers_by_layer)}; "
                    f"mixers with this option: {mixers_with(name)}"
                )

    def used_settings(self) -> dict[str, Any]:
        """Every option that this model uses, with its value. The same class with exactly these builds the same model.

        Options without effect are left out, and those without one value for all layers, such as the hidden width of
        feed-forward networks that are four times as wide as layers of different widths.
        """
        return drop_unused(self, field_values(self) | layer_option_values(self, self.blocks()) | self._derived())

    def _derived(self) -> dict[str, Any]:
        """Values derived from other options; None for options that are replaced by one value for each layer."""
        names = ("residual", "dropout", "kernel_size", "short_conv", "window", "position")
        replaced = {name: None for name in names if getattr(self, f"layer_{name}s")}
        mixers = self.mixers if len(self.mixers) == 1 else self.mixers_by_layer
        return {"mixers": mixers, "layers": len(self.mixers_by_layer), **replaced}

    def build(self) -> Backbone:
        from anaphor.models.initialize import build_backbone, build_checked

        return build_checked(build_backbone, self)


@dataclass(frozen=True, kw_only=True)
class TokenModelSpec(TokenOptions, BackboneSpec):
    """A model of tokens: embeddings and a stack of layers. Subclasses say what reads the hidden states."""

    def _check_input(self) -> None:
        check_range(1, MAX_VOCABULARY, vocabulary=self.vocabulary)
        check_at_least(1, embedding=self.embedding)
        for name in ("input_dropout", "output_dropout", "word_dropout"):
            check_probability(**{name: getattr(self, name)})

    @property
    def width_in(self) -> int:
        """Dimension of the embeddings."""
        return self.widths_by_layer[0] if self.embedding is None else self.embedding

    @property
    def embedding_dropout(self) -> float:
        """Dropout probability of the embeddings."""
        return self.dropout if self.input_dropout is None else self.input_dropout

    def _dropouts(self) -> Sequence[float]:
        return (self.embedding_dropout, self.output_dropout, *super()._dropouts())

    def _derived(self) -> dict[str, Any]:
        own: dict[str, Any] = {"embedding": self.width_in, "input_dropout": self.embedding_dropout}
        return super()._derived() | own | ({"width": None} if self.layer_widths else {})


def repeat_pattern(values: Sequence[Value], count: int) -> tuple[Value, ...]:
    """So many values: those given, again and again."""
    return tuple(values[number % len(values)] for number in range(count))


def repeat_last(values: Sequence[Value], count: int) -> tuple[Value, ...]:
    """So many values: those given, cut or with the last one repeated."""
    return (*values[:count], *[values[-1]] * (count - len(values)))


def find_position(name: str) -> type[Position]:
    """The position encoding of that name. Help needs none, and does not wait for torch, which they bring."""
    from anaphor.mixers.attention.position import POSITIONS

    return look_up(POSITIONS, name, "position")


def option_names(options: type) -> frozenset[str]:
    """Names of the fields of a dataclass of options."""
    return frozenset(field.name for field in dataclasses.fields(options))


def check_mixers(spec: Any, field: str) -> None:
    """Raise where a field that lists mixers is empty."""
    if not getattr(spec, field):
        raise ConfigError(f"{field} is empty: name at least one of {', '.join(sorted(MIXERS))}")


def mixers_with(option: str) -> str:
    """Names of the mixers that have an option, for a message."""
    return ", ".join(sorted(mixer for mixer in MIXERS if option in options_of(mixer)))


def options_of_all(mixers: Iterable[str]) -> frozenset[str]:
    """Options that at least one of these mixers has."""
    return frozenset().union(*(options_of(name) for name in mixers))


def field_values(spec: Any) -> dict[str, Any]:
    """The fields of a spec by name. Unlike `dataclasses.asdict` it keeps nested specs."""
    return {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}


def layer_option_values(spec: Any, blocks: Sequence[BlockSpec]) -> dict[str, Any]:
    """Options of mixers as the layers have them, defaults filled in; None where there is no one value for all."""
    from anaphor.mixers.noncausal import BidirectionalSpec

    mixers = [block.mixer for block in blocks] + [block.cross for block in blocks if block.cross is not None]
    parts = [mixer.inner if isinstance(mixer, BidirectionalSpec) else mixer for mixer in mixers]
    values: dict[str, Any] = {}
    for name in option_names(LayerOptions) & option_names(type(spec)):
        used = {getattr(part, name) for part in parts if hasattr(part, name)}
        values[name] = used.pop() if len(used) == 1 else getattr(spec, name)
    hidden = {block.feedforward or 0 for block in blocks}
    return values | {"feedforward": hidden.pop() if len(hidden) == 1 else spec.feedforward}


def drop_unused(spec: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Without options that nothing depends on, and without those that have no value."""
    unused = spec.unused_options(values)
    return {name: value for name, value in values.items() if name not in unused and value is not None and value != ()}


def reject_unused_by_model(spec: Any, flags: Collection[str], build: Callable[[], Any]) -> None:
    """Refuse flags that the model spec does not use, which `build` makes."""
    given = [name for name in SOMETIMES_UNUSED if name in flags and getattr(spec, name) is not None]
    for name, reason in (build().unused_options(given) if given else {}).items():
        raise ConfigError(f"{name}={getattr(spec, name)!r} {reason}")
