"""Mixers move information along time: (x, state, span) -> (y, state). `MIXERS` lists them by name."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anaphor.mixers.attention.layer import Attention, AttentionSpec, CrossAttention, CrossAttentionSpec
    from anaphor.mixers.base import KVBuffer, Mixer, Span, count_bytes, detach, map_state, select_rows
    from anaphor.mixers.input_feeding import InputFeeding, InputFeedingSpec
    from anaphor.mixers.linear import LinearSpec, QRNNSpec
    from anaphor.mixers.noncausal import Bidirectional, BidirectionalSpec, LowRankSpec, PooledSpec, SVDSpec
    from anaphor.mixers.recurrent import GRUSpec, LSTMSpec, RNNSpec
    from anaphor.mixers.spec import MixerSpec, mixer_spec, options_of
    from anaphor.registry import MIXERS

__all__ = [
    "MIXERS", "Attention", "AttentionSpec", "Bidirectional", "BidirectionalSpec", "CrossAttention",
    "CrossAttentionSpec", "GRUSpec", "InputFeeding", "InputFeedingSpec", "KVBuffer", "LSTMSpec", "LinearSpec",
    "LowRankSpec", "Mixer", "MixerSpec", "PooledSpec", "QRNNSpec", "RNNSpec", "SVDSpec", "Span", "count_bytes",
    "detach", "map_state", "mixer_spec", "options_of", "select_rows",
]  # fmt: skip
# Imported on first use, so that `anaphor.mixers.spec` and with it `anaphor --help` need not wait for torch.
_MODULES = {
    "attention.layer": ("Attention", "AttentionSpec", "CrossAttention", "CrossAttentionSpec"),
    "base": ("KVBuffer", "Mixer", "Span", "count_bytes", "detach", "map_state", "select_rows"),
    "input_feeding": ("InputFeeding", "InputFeedingSpec"),
    "linear": ("LinearSpec", "QRNNSpec"),
    "noncausal": ("Bidirectional", "BidirectionalSpec", "LowRankSpec", "PooledSpec", "SVDSpec"),
    "recurrent": ("GRUSpec", "LSTMSpec", "RNNSpec"),
    "spec": ("MIXERS", "MixerSpec", "mixer_spec", "options_of"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # which would take every name for known

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(import_module(f"anaphor.mixers.{_HOME[name]}"), name)
        raise AttributeError(f"module 'anaphor.mixers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
