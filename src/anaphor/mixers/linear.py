"""Linear attention: weights are products of features, so the past fits into one matrix of fixed size.

The same map is computed in three ways. `whole` is the one to read: a matrix of weights over the new tokens, as in
softmax attention. `stepwise` is a recurrence. `chunked` is the one to run: within a chunk as `whole`, between chunks as
`stepwise`. Tests hold the three together.
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

# Feature maps are positive, so that weights are; a little is added where they may all be zero.
FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    # Not by adding one to elu, where what is near minus one is rounded away: e to the x for what is below zero.
    "elu": lambda x: F.relu(x) + x.clamp(max=0).exp(),
    "relu": lambda x: F.relu(x) + 1e-3,
    "softmax": lambda x: torch.softmax(x, dim=-1),
}


class Sums(NamedTuple):
    """All that linear attention knows of the past."""

    products: Tensor  # [B, H, K, K]: Σ f(k) vᵀ
    features: Tensor  # [B, H, K]: Σ f(k)


def whole(
    q: Tensor, k: Tensor, v: Tensor, past: Sums, tap: Callable[[Tensor], Tensor] = lambda w: w
) -> tuple[Tensor, Sums]:
    """q and k are features already; all three are [B, H, T, K]. `tap` sees the share of each new token [B, H, T, T]."""
    products = (q @ k.transpose(-1, -2)).tril()
    total = _positive(products.sum(-1, keepdim=True) + q @ past.features[..., None])
    w = tap(products / total)
    y = w @ v + q @ past.products / total
    return y, Sums(past.products + k.transpose(-1, -2) @ v, past.features + k.sum(-2))


def stepwise(q: Tensor, k: Tensor, v: Tensor, past: Sums) -> tuple[Tensor, Sums]:
    """Token after token, as one would write a recurrent layer."""
    products, features = past
    outputs = []
    for query, key, value in zip(q.unbind(-2), k.unbind(-2), v.unbind(-2), strict=True):
        products = products + key[..., :, None] * value[..., None, :]
        features = features + key
        total = _positive((query * features).sum(-1, keepdim=True))
        outputs.append((query[..., None, :] @ products).squeeze(-2) / total)
    return torch.stack(outputs, dim=-2), Sums(products, features)


def chunked(q: Tensor, k: Tensor, v: Tensor, past: Sums, size: int) -> tuple[Tensor, Sums]:
    """`whole` on pieces of `size` tokens: time linear in the length, and matrix products throughout."""
    outputs = []
    for pieces in zip(q.split(size, -2), k.split(size, -2), v.split(size, -2), strict=True):
        y, past = whole(*pieces, past)
        outputs.append(y)
    return torch.cat(outputs, dim=-2), past


def _positive(total: Tensor) -> Tensor:
    """Padding in a row that has not begun has nothing to look at; zero over zero would poison the gradient."""
    return total.clamp(min=torch.finfo(total.dtype).tiny)


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
    state_type = Sums

    @property
    def state_shape(self) -> tuple[int, int, int]:
        size = self.width_in // self.heads
        return (self.heads, size, size)

    def __init__(self, spec: LinearSpec) -> None:
        super().__init__(spec)
        self.heads = required(spec.heads)
        self.feature_map = FEATURE_MAPS[required(spec.feature_map)]
        self.project = nn.Linear(spec.width, 3 * spec.width, bias=required(spec.bias))
        self.weights = Tap()
        self.out = nn.Linear(spec.width, spec.out, bias=required(spec.bias))

    def initial_state(self, like: Tensor) -> Sums:
        rows, dtype = like.shape[0], torch.promote_types(self.out.weight.dtype, torch.float32)
        heads, size, _ = self.state_shape
        return Sums(
            self.out.weight.new_zeros(rows, heads, size, size, dtype=dtype),
            self.out.weight.new_zeros(rows, heads, size, dtype=dtype),
        )

    def mix(self, x: Tensor, state: Sums, span: Span) -> tuple[Tensor, Sums]:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1)
        )  # [B, H, T, K]
        # Sums over a long text outgrow half precision, so they and what is added to them are kept in single at least.
        q, k, v = (part.to(state.products.dtype) for part in (q, k, v))
        q, k = self.feature_map(q), self.feature_map(k)
        if not span.full:  # what is not there asks nothing and adds nothing
            missing = ~span.valid[:, None, :, None]
            q, k = q.masked_fill(missing, 0), k.masked_fill(missing, 0)
        if self.weights.watched:
            y, state = whole(q, k, v, state, self.weights)
        else:
            y, state = chunked(q, k, v, state, self.spec.chunk)
        return self.out(y.transpose(1, 2).flatten(2).to(x.dtype)), state
