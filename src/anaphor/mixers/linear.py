"""Linear attention: weights are products of features, so the past fits into one matrix of constant size.

The same function in two forms. `parallel` is the one to read: a matrix of weights over the new tokens, as in softmax
attention. `chunkwise` is the one that runs: parallel within a chunk, recurrent between chunks. Tests compare them with
each other and with the recurrence token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import look_up
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.spec import LinearOptions, MixerSpec, check_at_least, check_heads, required
from anaphor.taps import Tap

# Features are positive, so that weights are; a little is added where they may all be zero.
FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    # elu(x) + 1 would round away what is near minus one; this is the same, exp(x) below zero.
    "elu": lambda x: F.relu(x) + x.clamp(max=0).exp(),
    "relu": lambda x: F.relu(x) + 1e-3,
    "softmax": lambda x: torch.softmax(x, dim=-1),
}


class LinearState(NamedTuple):
    """Sums over the past."""

    kv_sum: Tensor  # [B, H, K, K]: Σ f(k) vᵀ
    k_sum: Tensor  # [B, H, K]: Σ f(k)


def parallel(
    q: Tensor, k: Tensor, v: Tensor, past: LinearState, tap: Callable[[Tensor], Tensor] = lambda w: w
) -> tuple[Tensor, LinearState]:
    """q and k are features; all three are [B, H, T, K]. `tap` gets the weights of the new tokens [B, H, T, T]."""
    products = (q @ k.transpose(-1, -2)).tril()
    normalizer = _clamp_positive(products.sum(-1, keepdim=True) + q @ past.k_sum[..., None])
    w = tap(products / normalizer)
    y = w @ v + q @ past.kv_sum / normalizer
    return y, LinearState(past.kv_sum + k.transpose(-1, -2) @ v, past.k_sum + k.sum(-2))


def chunkwise(q: Tensor, k: Tensor, v: Tensor, past: LinearState, size: int) -> tuple[Tensor, LinearState]:
    """`parallel` on chunks of `size` tokens: linear time, and matrix products throughout."""
    outputs = []
    for chunks in zip(q.split(size, -2), k.split(size, -2), v.split(size, -2), strict=True):
        y, past = parallel(*chunks, past)
        outputs.append(y)
    return torch.cat(outputs, dim=-2), past


def _clamp_positive(normalizer: Tensor) -> Tensor:
    """It is zero for padding in a row without tokens; zero divided by zero would make the gradient NaN."""
    return normalizer.clamp(min=torch.finfo(normalizer.dtype).tiny)


@dataclass(frozen=True, kw_only=True)
class LinearSpec(MixerSpec, LinearOptions):
    """Attention with a state of constant size. It computes no scores: no mask, no window, no position encoding."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4, "bias": True, "feature_map": "elu"}

    chunk: int = 64
    """Number of tokens per chunk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(required(self.heads), self.width)
        check_at_least(1, chunk=self.chunk)
        look_up(FEATURE_MAPS, required(self.feature_map), "feature map")

    def build(self) -> Linear:
        return Linear(self)


class Linear(Mixer):
    spec: LinearSpec
    state_type = LinearState

    def __init__(self, spec: LinearSpec) -> None:
        super().__init__(spec)
        self.heads = required(spec.heads)
        self.feature_map = FEATURE_MAPS[required(spec.feature_map)]
        self.project = nn.Linear(spec.width, 3 * spec.width, bias=required(spec.bias))
        self.weights = Tap()
        self.out = nn.Linear(spec.width, spec.out, bias=required(spec.bias))

    @property
    def state_shape(self) -> tuple[int, int, int]:
        size = self.width_in // self.heads
        return (self.heads, size, size)

    def initial_state(self, like: Tensor) -> LinearState:
        rows, dtype = like.shape[0], torch.promote_types(self.out.weight.dtype, torch.float32)
        heads, size, _ = self.state_shape
        return LinearState(
            self.out.weight.new_zeros(rows, heads, size, size, dtype=dtype),
            self.out.weight.new_zeros(rows, heads, size, dtype=dtype),
        )

    def mix(self, x: Tensor, state: LinearState, span: Span) -> tuple[Tensor, LinearState]:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1)
        )  # [B, H, T, K]
        # Sums over a long text overflow half precision: they and what is added are in single precision at least.
        q, k, v = (part.to(state.kv_sum.dtype) for part in (q, k, v))
        q, k = self.feature_map(q), self.feature_map(k)
        if span.has_padding:
            padding = ~span.valid[:, None, :, None]
            q, k = q.masked_fill(padding, 0), k.masked_fill(padding, 0)
        if self.weights.is_recorded:
            y, state = parallel(q, k, v, state, self.weights)
        else:
            y, state = chunkwise(q, k, v, state, self.spec.chunk)
        return self.out(y.transpose(1, 2).flatten(2).to(x.dtype)), state
