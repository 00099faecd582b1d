"""Language model: embed, stack, head. Tokens and a state in, logits and a state out, for any number of new tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_types, look_up
from anaphor.errors import ConfigError
from anaphor.mixers import MIXERS, MixerSpec, Span, mixer_spec, options_of
from anaphor.mixers.attention.position import POSITIONS, check_limit
from anaphor.mixers.dropout import DROPOUTS
from anaphor.mixers.spec import Sizes, check_probability
from anaphor.models.block import Block, BlockSpec, Stack
from anaphor.models.capacity import built
from anaphor.models.dropout import words
from anaphor.models.initialise import INITIALISERS
from anaphor.models.options import OF_SOME_LAYERS, StackOptions


class ModelState(NamedTuple):
    """All that a model remembers of each row."""

    seen: Tensor
    """[B]: how many tokens."""
    layers: tuple[Any, ...]
    """One private state for each block; nobody else looks inside."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelSpec(StackOptions):
    """A language model, whole. Options that no layer understands are refused."""

    mixers: tuple[str, ...] = ("attention",)
    """What the layers are, from the first to the last; the last one named is repeated up to `layers`."""
    layer_widths: tuple[int, ...] = ()
    """Size of each layer's output, where they differ; empty means `width` for all."""
    layer_norms: tuple[str, ...] = ()
    """Where the norm of each layer stands, where they differ; empty means `norm` for all. The norm behind the last
    layer follows `norm` alone."""
    layer_residuals: tuple[bool, ...] = ()
    """Whether each layer's input is added to its output, where they differ; empty means `residual` for all."""
    layer_dropouts: tuple[float, ...] = ()
    """Share set to zero in and after each layer, where they differ; empty means `dropout` for all."""
    causal: bool = True
    """Whether layers that see later tokens are refused. Admitted, they see what is to be predicted, and no number of
    the model is a perplexity."""
    tied: bool = True
    """Whether the output uses the word vectors again."""
    window: int | None = None
    """How many tokens a token may see, itself included."""
    memory: int | None = None
    """How many past tokens a carried state keeps, and so how far back a token may see."""
    mask: str | None = None
    """Who may see whom: causal, window(n), hidden(i, …), joined by & and |; must be causal."""
    merge_evaluation: str | None = None
    """What the merge does when evaluated: same or concatenate."""

    def __post_init__(self) -> None:
        check_types(self)
        if isinstance(self.mixers, str) or self.mixers is None:
            raise ConfigError(f"mixers={self.mixers!r} is no list of names: write mixers=({self.mixers!r},)")
        for name in ("mixers", *_EACH):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # a list is welcome
        for name in ("vocabulary", "width", "max_positions", "embedding"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ConfigError(f"{name}={size}: it must be at least 1")
        look_up(INITIALISERS, self.init_scheme, "initialisation")
        look_up(POSITIONS, self.position, "position")
        for name in ("input_dropout", "output_dropout", "word_dropout"):
            check_probability(**{name: getattr(self, name)})
        if not self.mixers:
            raise ConfigError(f"mixers is empty: name at least one of {', '.join(sorted(MIXERS))}")
        if self.layers is not None and self.layers < len(self.mixers):
            raise ConfigError(f"layers={self.layers} is less than the {len(self.mixers)} mixers named")
        for name in _EACH:
            given = getattr(self, name)
            if given and len(given) != len(self.mixers_by_layer):
                raise ConfigError(f"{len(given)} {name} are given for {len(self.mixers_by_layer)} layers")
        self.blocks()

    @property
    def mixers_by_layer(self) -> tuple[str, ...]:
        """The mixer of every layer."""
        missing = 0 if self.layers is None else self.layers - len(self.mixers)
        return self.mixers + self.mixers[-1:] * missing

    @property
    def widths_by_layer(self) -> tuple[int, ...]:
        return self.layer_widths or (self.width,) * len(self.mixers_by_layer)

    @property
    def norms_by_layer(self) -> tuple[str, ...]:
        return self.layer_norms or (self.norm,) * len(self.mixers_by_layer)

    @property
    def residuals_by_layer(self) -> tuple[bool, ...]:
        return self.layer_residuals or (self.residual,) * len(self.mixers_by_layer)

    @property
    def dropouts_by_layer(self) -> tuple[float, ...]:
        return self.layer_dropouts or (self.dropout,) * len(self.mixers_by_layer)

    @property
    def embedding_width(self) -> int:
        return self.widths_by_layer[0] if self.embedding is None else self.embedding

    @property
    def enters_by_embedding(self) -> bool:
        """Whether positions are added to the word vectors, or belong to the attention layers."""
        return POSITIONS[self.position].door in ("embed", None)

    def blocks(self) -> list[BlockSpec]:
        """The layers spelled out. Refuses what does not fit together."""
        options = {name: getattr(self, name) for name in _LAYER_OPTIONS if getattr(self, name) is not None}
        if not self.enters_by_embedding:
            options["position"] = self.position
        self._refuse_unused(options)
        blocks, width_in = [], self.embedding_width
        frames = zip(self.norms_by_layer, self.residuals_by_layer, self.dropouts_by_layer, strict=True)
        for name, width, (norm, residual, dropout) in zip(
            self.mixers_by_layer, self.widths_by_layer, frames, strict=True
        ):
            # With a residual, a layer works at one width throughout; without, the mixer goes from one to the other.
            entering = width if residual else width_in
            understood = {key: value for key, value in options.items() if key in options_of(name)}
            if "dropout" in options_of(name):
                understood["dropout"] = dropout
            mixer = mixer_spec(name, width=entering, width_out=width, **understood)
            if self.causal:
                _refuse_unless_causal(name, mixer)
            blocks.append(self._block(mixer, norm, residual, dropout))
            width_in = width
        return blocks

    def _block(self, mixer: MixerSpec, norm: str, residual: bool, dropout: float) -> BlockSpec:
        return BlockSpec(
            mixer=mixer,
            norm=norm,
            residual=residual,
            feedforward=4 * mixer.out if self.feedforward is None else self.feedforward or None,
            activation=self.activation,
            dropout=dropout,
            dropout_kind=self.dropout_kind,
        )

    @property
    def understood(self) -> frozenset[str]:
        """Which options mean something to at least one layer."""
        return frozenset().union(*(options_of(name) for name in self.mixers_by_layer))

    def hears(self, name: str, value: Any) -> bool:
        """Whether an option would mean something to its layers."""
        if name == "position" and POSITIONS[value].door in ("embed", None):
            return True
        return name in self.understood

    def reads(self, name: str) -> bool:
        """Whether anything depends on an option that every model accepts."""
        if name == "max_positions":
            return POSITIONS[self.position].bounded
        if name == "activation":
            return self.feedforward != 0
        if name == "dropout_kind":
            entering = self.dropout if self.input_dropout is None else self.input_dropout
            return any((entering, self.output_dropout, *self.dropouts_by_layer))
        return True

    def _refuse_unused(self, options: dict[str, Any]) -> None:
        for name, value in options.items():
            if name not in self.understood:
                able = sorted(mixer for mixer in MIXERS if name in options_of(mixer))
                raise ConfigError(
                    f"{name}={value!r} means nothing to the layers {', '.join(self.mixers_by_layer)}; "
                    f"it belongs to {', '.join(able)}"
                )

    def build(self) -> LanguageModel:
        return built(LanguageModel, self)


_EACH = (
    "layer_widths",
    "layer_norms",
    "layer_residuals",
    "layer_dropouts",
)  # what may be said of every layer by itself
_LAYER_OPTIONS = (*sorted(OF_SOME_LAYERS), "window", "memory", "mask", "merge_evaluation")


def _refuse_unless_causal(name: str, mixer: MixerSpec) -> None:
    if mixer.noncausal_reason is None:
        return
    raise ConfigError(
        f"mixer {name!r} reads the whole sequence, so that a token would see what it is to predict: "
        f"{mixer.noncausal_reason}; causal=False admits it all the same"
    )


class Head(nn.Module):
    """From features to logits, with a matrix of its own or with the word vectors.

    A tied matrix is looked up at every call rather than shared: it then exists once, in every copy, file and device.
    """

    def __init__(self, width: int, vocabulary: int, bias: bool, tied_to: nn.Embedding | None) -> None:
        super().__init__()
        self.out_features = vocabulary
        self.own = nn.Parameter(torch.empty(vocabulary, width)) if tied_to is None else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        self._tied_to = (tied_to,)  # in a tuple, or it would be registered as a part a second time

    @property
    def weight(self) -> Tensor:
        """[V, D]"""
        if self.own is not None:
            return self.own
        (embedding,) = self._tied_to
        assert embedding is not None, "a head without a matrix of its own is tied"
        return embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Trunk(nn.Module):
    """Word vectors and the layers: tokens and a state in, features and a state out. Whoever builds on it draws the
    first weights, when all parts are there."""

    def __init__(self, spec: LanguageModelSpec, embed: nn.Embedding | None = None) -> None:
        """`embed` are word vectors of somebody else, to be used here too."""
        super().__init__()
        self.spec = spec
        width = spec.embedding_width
        blocks = spec.blocks()
        self.embed: nn.Embedding
        if embed is None:
            self.embed = nn.Embedding(spec.vocabulary, width)
        else:
            self.__dict__["embed"] = embed  # no part of this one: it exists once, in every copy, file and device
        self.left_out = nn.Embedding(1, width) if spec.word_dropout else None
        scheme = POSITIONS[spec.position if spec.enters_by_embedding else "none"]
        self.position = scheme(Sizes(width, heads=1, head_width=width, max_positions=spec.max_positions))
        self.input_dropout = spec.dropout if spec.input_dropout is None else spec.input_dropout
        self.layers = Stack(blocks, width)
        last = spec.widths_by_layer[-1]
        self.norm = nn.LayerNorm(last) if spec.norm == "before" else nn.Identity()
        self.narrow = nn.Linear(last, width, bias=False) if spec.tied and last != width else nn.Identity()
        # What positions add has a size of its own; word vectors are drawn small and brought to it.
        self.embedding_scale = math.sqrt(width) if self.position.fixed else 1.0
        limits = [block.mixer.limit for block in blocks] + [spec.max_positions if self.position.bounded else None]
        self.limit = min((limit for limit in limits if limit is not None), default=None)
        """How many positions the model knows; None means no end."""

    @property
    def blocks(self) -> list[Block]:
        """The layers, from the first to the last."""
        return self.layers.blocks

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.embed.weight.device

    @property
    def owns_embedding(self) -> bool:
        """Whether the word vectors are its own."""
        return "embed" in self._modules

    @property
    def causal(self) -> bool:
        """Whether no token is ever seen before it is predicted."""
        return all(mixer.streams for mixer in self.layers.mixers)

    @property
    def state_grows(self) -> bool:
        """Whether the state gets larger with every token, without end."""
        return any(block.mixer.grows for block in self.spec.blocks())

    def state_bytes(self, tokens: int, source_tokens: int = 0) -> int:
        """Bytes that one row's state holds after so many tokens, with a source of so many."""
        return torch.long.itemsize + sum(block.state_bytes(tokens, source_tokens) for block in self.layers.blocks)

    def count_parameters(self) -> int:
        """Numbers that are learned; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def initial_state(
        self, rows: int, source: Tensor | None = None, source_lengths: Tensor | None = None
    ) -> ModelState:
        """State of rows that have seen nothing but, where layers look at one, a source [B, S, D]."""
        like = self.embed.weight.new_zeros(rows, 0, self.embed.embedding_dim)
        layers = self.layers.initial_state(like, source, source_lengths)
        return ModelState(torch.zeros(rows, dtype=torch.long, device=like.device), layers)

    def features(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """What the head reads, one vector for each token. [B, T] -> [B, T, D]"""
        self._check(tokens, state)
        fresh = state is None
        if state is None:
            state = self.initial_state(len(tokens))
        span = Span.after(state.seen, tokens.shape[1], lengths)
        if self.position.bounded:  # layers with limits of their own see to them
            self._check_end(span, fresh)
        x = self.embed(tokens)
        if self.training and self.left_out is not None:
            x = words(x, tokens, self.spec.word_dropout, self.spec.vocabulary, self.left_out.weight[0])
        x = self.embedding_scale * x
        place = self.position.embed(span.positions)
        if place is not None:
            x = x + place.to(x.dtype)
        x, layers = self.layers(self._drop(x, self.input_dropout), state.layers, span)
        x = self._drop(self.narrow(self.norm(x)), self.spec.output_dropout)
        return x, ModelState(state.seen + span.lengths, layers)

    def _drop(self, x: Tensor, share: float) -> Tensor:
        return DROPOUTS[self.spec.dropout_kind](x, share) if self.training and share else x

    def _check(self, tokens: Tensor, state: ModelState | None) -> None:
        if not isinstance(tokens, Tensor) or tokens.ndim != 2:
            given = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ConfigError(f"tokens must be a tensor [rows, tokens], but they are {given}")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ConfigError(f"tokens must be int64 or int32, but they are {tokens.dtype}")
        if state is not None and not isinstance(state, ModelState):
            raise ConfigError(f"a model's state is a ModelState, but was given {type(state).__name__}")
        if state is not None and len(state.seen) != len(tokens):
            raise ConfigError(f"state has {len(state.seen)} rows, but there are {len(tokens)} rows of tokens")
        # What follows reads values, which would stall a device: there the embedding itself refuses.
        if tokens.device.type != "cpu" or not tokens.numel() or torch.compiler.is_compiling():
            return
        least, largest = (int(end) for end in tokens.aminmax())
        if least < 0 or largest >= self.spec.vocabulary:
            wrong = least if least < 0 else largest
            raise ConfigError(f"token {wrong} is outside the vocabulary of {self.spec.vocabulary:,}")

    def _check_end(self, span: Span, fresh: bool) -> None:
        """Refuse tokens after the last position. Padding does not count: it stands where the last real token does."""
        if fresh and span.full:
            check_limit(span.count, self.spec.max_positions)
        elif span.seen.device.type == "cpu" and len(span.seen) and not torch.compiler.is_compiling():
            check_limit(int((span.seen + span.lengths).max()), self.spec.max_positions)


class LanguageModel(Trunk):
    """Predicts the next token. `model(tokens, state)` goes on where the state stopped; no state means a fresh start."""

    def __init__(self, spec: LanguageModelSpec) -> None:
        super().__init__(spec)
        last = spec.widths_by_layer[-1]
        self.head = Head(last, spec.vocabulary, spec.head_bias, self.embed if spec.tied else None)
        INITIALISERS[spec.init_scheme](self)

    def forward(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """[B, T] -> logits of the token after each [B, T, V]. Rows shorter than T say so in `lengths` [B]."""
        x, state = self.features(tokens, state, lengths)
        return self.head(x), state
