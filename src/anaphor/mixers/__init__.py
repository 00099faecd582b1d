"""Mixers move information along time: (x, state, span) -> (y, state). `MIXERS` names them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from anaphor.config import check_fields, look_up
from anaphor.errors import ConfigError
from anaphor.mixers.attention.cross import CrossAttention, CrossAttentionSpec
from anaphor.mixers.attention.layer import Attention, AttentionSpec
from anaphor.mixers.base import Mixer, MixerSpec, Span
from anaphor.mixers.bidirectional import Bidirectional, BidirectionalSpec
from anaphor.mixers.decoder import InputFeeding, InputFeedingSpec
from anaphor.mixers.linear import LinearSpec
from anaphor.mixers.low_rank import LowRankSpec, SVDSpec
from anaphor.mixers.pooled import PooledSpec
from anaphor.mixers.recurrent import GRUSpec, LSTMSpec, RNNSpec
from anaphor.mixers.state import Growing, count_bytes, detach, map_state, select_rows


def _both_ways(
    inner: type[MixerSpec], *, width: int, width_out: int | None = None, **options: Any
) -> BidirectionalSpec:
    out = width if width_out is None else width_out
    if out % 2:
        raise ConfigError(f"width_out={out} cannot be shared by two directions: it must be even")
    return BidirectionalSpec.of(inner(width=width, width_out=out // 2, **options))


MIXERS: dict[str, Callable[..., MixerSpec]] = {
    "rnn-tanh": partial(RNNSpec, nonlinearity="tanh"),
    "rnn-relu": partial(RNNSpec, nonlinearity="relu"),
    "rnn-identity": partial(RNNSpec, nonlinearity="identity"),
    "gru": GRUSpec,
    "lstm": LSTMSpec,
    "attention": AttentionSpec,
    "linear": LinearSpec,
    "low-rank": LowRankSpec,
    "svd": SVDSpec,
    "pooled": PooledSpec,
    "bidirectional-gru": partial(_both_ways, GRUSpec),
    "bidirectional-lstm": partial(_both_ways, LSTMSpec),
    "bidirectional-linear": partial(_both_ways, LinearSpec),
}


def mixer_spec(name: str, **options: Any) -> MixerSpec:
    """The spec of a mixer by its name, with the given fields."""
    maker = look_up(MIXERS, name, "mixer")
    check_fields(_spec_type(maker), options)
    return maker(**options)


def options_of(name: str) -> frozenset[str]:
    """Which options a mixer of that name understands."""
    maker = look_up(MIXERS, name, "mixer")
    chosen = set(maker.keywords) if isinstance(maker, partial) else set()
    return frozenset(field.name for field in dataclasses.fields(_spec_type(maker))) - chosen


def _spec_type(maker: Callable[..., MixerSpec]) -> type[MixerSpec]:
    if isinstance(maker, partial):
        maker = maker.args[0] if maker.args else maker.func
    assert isinstance(maker, type)
    assert issubclass(maker, MixerSpec)
    return maker


__all__ = [
    "MIXERS",
    "Attention",
    "AttentionSpec",
    "Bidirectional",
    "BidirectionalSpec",
    "CrossAttention",
    "CrossAttentionSpec",
    "GRUSpec",
    "Growing",
    "InputFeeding",
    "InputFeedingSpec",
    "LSTMSpec",
    "LinearSpec",
    "LowRankSpec",
    "Mixer",
    "MixerSpec",
    "PooledSpec",
    "RNNSpec",
    "SVDSpec",
    "Span",
    "count_bytes",
    "detach",
    "map_state",
    "mixer_spec",
    "options_of",
    "select_rows",
]
