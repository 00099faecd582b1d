"""Specs of mixers. Imports no torch, so that the command line can list their options quickly."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from anaphor.config import check_at_least, look_up, nearest
from anaphor.errors import ConfigError
from anaphor.registry import MIXERS
from anaphor.typecheck import check_types

if TYPE_CHECKING:
    from anaphor.mixers.base import Mixer

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class HeadCountOptions:
    """Options of mixers with heads. In every class of options None is the mixer's own default."""

    heads: int | None = None
    """Number of heads."""


@dataclass(frozen=True, kw_only=True)
class ProjectionOptions(HeadCountOptions):
    """Options of mixers with queries, keys and values."""

    bias: bool | None = None
    """Bias in the projections of attention."""


@dataclass(frozen=True, kw_only=True)
class HeadOptions(ProjectionOptions):
    """Options of mixers that compute attention scores."""

    head_width: int | None = None
    """Dimension of each head; None means width / heads."""
    kv_heads: int | None = None
    """Number of heads of keys and values, each for a group of query heads; None means as many as heads."""
    out_bias: bool | None = None
    """Bias in the output projection of attention; None means the same as bias."""
    qk_norm: str | None = None
    """Norm of each query and each key of a head, before rotation: none, layernorm or rmsnorm."""
    score: str | None = None
    """Attention score: scaled-dot, dot, bilinear, additive or cosine."""
    softcap: float | None = None
    """Soft cap c of the scores: c·tanh(score/c); None means no cap."""
    normalize: str | None = None
    """Normalization of the scores: softmax, softmax-sink, sigmoid or sparsemax."""
    merge: str | None = None
    """Merge of the heads: concatenate, shuffle, shift, reweight or reweight-matrix."""
    merge_evaluation: str | None = None
    """Merge of the heads in evaluation: same (as in training) or concatenate."""
    combine: str | None = None
    """Output of a head: its context vector (context), or context plus query (query)."""


@dataclass(frozen=True, kw_only=True)
class ReachOptions:
    """Options of self-attention: which tokens a token attends to."""

    mask: str | None = None
    """Attention mask from causal, window(n), band(before, after), prefix(n), hidden(i, …), everything, & and |."""
    window: int | None = None
    """Attention window: number of tokens a token attends to, itself included."""
    memory: int | None = None
    """Number of past tokens that a carried state keeps."""


@dataclass(frozen=True, kw_only=True)
class PositionOptions:
    """Options of everything that may encode positions."""

    position: str = "none"
    """Positions: none, learned, sinusoidal, sinusoidal-unpaired, rotary, alibi, relative or relative-buckets."""
    max_positions: int = 1024
    """Number of learned positions."""


@dataclass(frozen=True, kw_only=True)
class RotaryOptions:
    """Options of rotary positions."""

    rope_theta: float | None = None
    """Base of the frequencies of rotary positions; None means 10000."""
    rope_scaling: str | None = None
    """Scaled rotary positions: linear(factor), ntk(factor), yarn(factor, length) or llama3(factor, length)."""
    partial_rotary_factor: float | None = None
    """Part of the dimensions of each head that rotary positions rotate; None means all."""


@dataclass(frozen=True, kw_only=True)
class RecurrentOptions:
    """Options of recurrent mixers."""

    weight_drop: float | None = None
    """Dropout probability of the recurrent (hidden-to-hidden) weights; of all weights in a qrnn."""


@dataclass(frozen=True, kw_only=True)
class LinearOptions(ProjectionOptions):
    """Options of linear attention."""

    feature_map: str | None = None
    """Feature map of linear attention: elu, relu or softmax."""


@dataclass(frozen=True, kw_only=True)
class ConvolutionOptions:
    """Options of mixers whose gates are convolutions."""

    kernel_size: int | None = None
    """Number of tokens, the newest included, from which a qrnn computes its gates."""


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(HeadCountOptions):
    """Options of recurrences whose state is a matrix for each head."""

    expand_v: float | None = None
    """Width of the values of such a recurrence as a multiple of the width of its keys."""


@dataclass(frozen=True, kw_only=True)
class DeltaOptions(MemoryOptions):
    """Options of the delta rule."""

    allow_neg_eigval: bool | None = None
    """Let a delta rule have eigenvalues from -1 to 1 in place of 0 to 1."""
    num_householder: int | None = None
    """Steps of the delta rule for each token (Householder products)."""


@dataclass(frozen=True, kw_only=True)
class DecayOptions:
    """Options of recurrences with a choice of decays."""

    channel_decay: bool | None = None
    """Give each channel of the keys of gated-delta a decay of its own, not each head (Kimi Delta Attention)."""


@dataclass(frozen=True, kw_only=True)
class StateSpaceOptions(HeadCountOptions):
    """Options of state space layers."""

    d_state: int | None = None
    """State dimension of each channel of mamba2."""
    data_dependent_rope: bool | None = None
    """Rotate the state of mamba2 by angles that depend on the tokens (Mamba-3)."""


@dataclass(frozen=True, kw_only=True)
class LayerOptions(
    HeadOptions,
    ReachOptions,
    RotaryOptions,
    ConvolutionOptions,
    RecurrentOptions,
    LinearOptions,
    DeltaOptions,
    DecayOptions,
    StateSpaceOptions,
):
    """Every option that only some mixers have. A model passes each one to the layers that have it."""


@dataclass(frozen=True, kw_only=True)
class MixerSpec:
    """Base class of every mixer's spec."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Values of the options that are None."""
    sequential_reason: ClassVar[str] = ""
    """Why a recurrence among those with a parallel form has neither that nor an implied attention."""

    width: int
    """Dimension of the input vectors."""
    width_out: int | None = None
    """Dimension of the output vectors; None means the same as the input."""

    def __post_init__(self) -> None:
        for name, value in self.defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        check_types(self)
        for name in ("width", "width_out"):
            check_at_least(1, **{name: getattr(self, name)})

    @property
    def out(self) -> int:
        """Dimension of the output vectors."""
        return self.width if self.width_out is None else self.width_out

    @property
    def noncausal_reason(self) -> str | None:
        """Why the mixer needs whole sequences; None if it is causal and streams."""
        return None

    @property
    def streams(self) -> bool:
        """Whether the mixer may process a sequence in chunks and carry its state from one to the next."""
        return self.noncausal_reason is None

    @property
    def grows(self) -> bool:
        """Whether the state grows with every token, without bound."""
        return False

    @property
    def carries_by_default(self) -> bool:
        """Whether training carries the state from one segment of a text to the next, if nothing else is said."""
        return self.streams and not self.grows

    @property
    def limit(self) -> int | None:
        """Maximum sequence length; None means unbounded."""
        return None

    @property
    def stands_alone(self) -> bool:
        """Whether a stack of it works as it is, without norms, residual connections and feed-forward networks."""
        return False

    def build(self) -> Mixer:
        """The mixer with freshly drawn weights."""
        raise NotImplementedError(f"{type(self).__name__} does not define build")


@dataclass(frozen=True)
class Sizes:
    """Dimensions that the parts of attention are built from."""

    width: int
    """Dimension of a token vector."""
    heads: int
    """Number of heads."""
    head_width: int
    """Dimension of a query, key or value in one head."""
    max_positions: int
    """Number of positions in a learned table."""
    kv_heads: int | None = None
    """Number of heads of keys and values; None means as many as heads."""
    rope_theta: float = 10_000.0
    """Base of the frequencies of rotary positions."""
    rope_scaling: str | None = None
    """How these frequencies are scaled."""
    partial_rotary_factor: float = 1.0
    """Part of the dimensions of a head that is rotated."""


MixerFactory = Callable[..., MixerSpec]


def mixer_spec(name: str, **options: Any) -> MixerSpec:
    """The spec of the mixer of that name with the given options."""
    names = options_of(name)
    for option in options:
        if option not in names:
            hint = nearest(option, names) or f" (known: {', '.join(sorted(names))})"
            raise ConfigError(f"mixer {name!r} has no option {option!r}{hint}")
    return _factory_of(name)(**options)


def options_of(name: str) -> frozenset[str]:
    """Names of the options that the mixer of that name accepts."""
    return _parameters(_factory_of(name))


def _factory_of(name: str) -> MixerFactory:
    factory: MixerFactory = look_up(MIXERS, name, "mixer")
    return factory


def _parameters(factory: MixerFactory) -> frozenset[str]:
    if isinstance(factory, partial):
        if factory.args:  # a wrapper round a mixer has the options of that mixer
            return _parameters(factory.args[0])
        return _parameters(factory.func) - set(factory.keywords)
    if dataclasses.is_dataclass(factory):
        return frozenset(field.name for field in dataclasses.fields(factory))
    return frozenset(inspect.signature(factory).parameters)


def require(option: Value | None) -> Value:
    """The value of an option that has a default: a spec has replaced None by it."""
    assert option is not None, "a spec fills in its defaults"
    return option


def check_probability(**options: float | None) -> None:
    """Refuse a dropout probability outside [0, 1)."""
    for name, value in options.items():
        if value is not None and not 0 <= value < 1:
            raise ConfigError(f"{name}={value} is not a dropout probability: it must be at least 0 and below 1")


def check_finite(**options: float | None) -> None:
    """Refuse numbers that are not finite. None passes."""
    for name, value in options.items():
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{name}={value}: it must be finite")


def check_heads(heads: int, width: int) -> None:
    """Refuse a number of heads that does not divide the width."""
    check_divides("heads", heads, "width", width)


def check_divides(part: str, count: int, whole: str, total: int) -> None:
    """Refuse a number that does not divide another one; both are options."""
    check_at_least(1, **{part: count})
    if total % count:
        divisors = [number for number in range(1, total + 1) if total % number == 0]
        closest = min(divisors, key=lambda number: abs(number - count))
        raise ConfigError(f"{part}={count} does not divide {whole}={total}; the nearest that does is {part}={closest}")
