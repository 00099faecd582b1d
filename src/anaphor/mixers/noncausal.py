"""Mixers over whole sequences: bidirectional ones, attention of low rank, and pooled attention.

The output of a token depends on later tokens, so these do not stream and have no state. They are for encoders and
classifiers; causal models refuse them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.config import check_at_least
from anaphor.errors import ConfigError
from anaphor.mixers.attention.heads import MultiHead, MultiHeadSpec, Visibility
from anaphor.mixers.attention.score import softmax
from anaphor.mixers.base import Mixer, Span, reset_mixer
from anaphor.mixers.linear import LinearSpec
from anaphor.mixers.recurrent import GRUSpec, LSTMSpec
from anaphor.mixers.spec import MixerSpec, require
from anaphor.taps import Tap


@dataclass(frozen=True, kw_only=True)
class BidirectionalSpec(MixerSpec):
    """Two mixers of one kind, one per direction; their outputs are concatenated."""

    inner: MixerSpec
    """The mixer of each direction. The output of the pair has twice its width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inner.streams:
            raise ConfigError(f"{type(self.inner).__name__} already attends to both directions")
        if self.inner.width != self.width or 2 * self.inner.out != self.out:
            raise ConfigError(
                f"width={self.width} and width_out={self.out} do not fit: "
                f"the pair takes {self.inner.width} and gives {2 * self.inner.out}"
            )

    @classmethod
    def of(cls, inner: MixerSpec) -> BidirectionalSpec:
        """The spec with this layer in each direction."""
        return cls(inner=inner, width=inner.width, width_out=2 * inner.out)

    @property
    def noncausal_reason(self) -> str | None:
        return "one of its directions starts at the end"

    @property
    def limit(self) -> int | None:
        return self.inner.limit

    @property
    def stands_alone(self) -> bool:
        return self.inner.stands_alone

    def build(self) -> Bidirectional:
        return Bidirectional(self)


def _bidirectional_spec(
    inner: type[MixerSpec], *, width: int, width_out: int | None = None, **options: Any
) -> BidirectionalSpec:
    out = width if width_out is None else width_out
    if out % 2:
        raise ConfigError(f"width_out={out} cannot be shared by two directions: it must be even")
    return BidirectionalSpec.of(inner(width=width, width_out=out // 2, **options))


BIDIRECTIONAL_GRU = partial(_bidirectional_spec, GRUSpec)
BIDIRECTIONAL_LSTM = partial(_bidirectional_spec, LSTMSpec)
BIDIRECTIONAL_LINEAR = partial(_bidirectional_spec, LinearSpec)


class Bidirectional(Mixer):
    """A recurrent or linear layer in each direction, outputs side by side. It reads whole sequences."""

    spec: BidirectionalSpec

    def __init__(self, spec: BidirectionalSpec) -> None:
        super().__init__(spec)
        self.forward_layer = spec.inner.build()
        self.backward_layer = spec.inner.build()
        self.follows_init_scheme = self.forward_layer.follows_init_scheme

    def reset_parameters(self) -> None:
        """Each direction by itself."""
        for layer in (self.forward_layer, self.backward_layer):
            reset_mixer(layer)

    def initial_state(self, like: Tensor) -> tuple[()]:
        return ()

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, tuple[()]]:
        y, _ = self.forward_layer(x, self.forward_layer.initial_state(x), span)
        z, _ = self.backward_layer(reverse(x, span), self.backward_layer.initial_state(x), span)
        return torch.cat((y, reverse(z, span)), dim=-1), ()


def reverse(x: Tensor, span: Span) -> Tensor:
    """The valid tokens of each row in reverse order; padding stays at the end. [B, T, D] -> [B, T, D]"""
    if not span.has_padding:
        return x.flip(1)
    steps = torch.arange(x.shape[1], device=x.device)
    index = torch.where(span.valid, span.lengths[:, None] - 1 - steps, steps)
    return x.gather(1, index[..., None].expand_as(x))


@dataclass(frozen=True, kw_only=True)
class NoncausalMultiHeadSpec(MultiHeadSpec):
    """Multi-head attention of low rank over whole sequences."""

    rank: int = 32
    """Rank of the approximation along time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, rank=self.rank)

    @property
    def noncausal_reason(self) -> str | None:
        return "it mixes all tokens, later ones included, into every key"


class NoncausalMultiHead(MultiHead):
    """Queries, keys and values of a whole sequence."""

    def __init__(self, spec: NoncausalMultiHeadSpec) -> None:
        super().__init__(spec)
        self.project = nn.Linear(spec.width, self.inner_width + 2 * self.kv_width, bias=require(spec.bias))

    def initial_state(self, like: Tensor) -> tuple[()]:
        return ()

    def project_qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.project(x).split((self.inner_width, self.kv_width, self.kv_width), dim=-1)
        return self.norm_queries(self.split_heads(q)), self.norm_keys(self.split_heads(k)), self.split_heads(v)


@dataclass(frozen=True, kw_only=True)
class LowRankSpec(NoncausalMultiHeadSpec):
    """Keys and values are projected along time to `rank` of them (Linformer, Wang et al., 2020): linear cost."""

    tokens: int = 1024
    """Maximum sequence length of the projection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, tokens=self.tokens)

    @property
    def limit(self) -> int | None:
        return self.tokens

    def build(self) -> LowRank:
        return LowRank(self)


class LowRank(NoncausalMultiHead):
    """Attention to `rank` learned mixtures of all tokens in place of the tokens (Linformer)."""

    spec: LowRankSpec

    def __init__(self, spec: LowRankSpec) -> None:
        super().__init__(spec)
        self.time_projection = nn.Parameter(torch.randn(spec.rank, spec.tokens) / spec.tokens**0.5)

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, tuple[()]]:
        tokens = x.shape[1]
        if tokens > self.spec.tokens:
            raise ConfigError(f"{tokens} tokens are more than the projection along time covers ({self.spec.tokens})")
        q, k, v = self.project_qkv(x)
        projection, visibility = self.time_projection[:, :tokens], Visibility()
        if span.has_padding:
            projection = projection * span.valid[:, None, None, :]  # [B, 1, R, T]
            visibility = Visibility(span.valid[:, None, :, None].expand(-1, -1, -1, self.spec.rank))
        context = self.attend(q, projection @ k, projection @ v, visibility)
        return self.project_out(context, q, span), ()


@dataclass(frozen=True, kw_only=True)
class SVDSpec(NoncausalMultiHeadSpec):
    """Full attention whose matrix of weights is truncated to its `rank` largest singular values."""

    def build(self) -> SVD:
        return SVD(self)


class SVD(NoncausalMultiHead):
    """The best approximation of rank r to each matrix of weights: a reference for what low rank can do, not a saving.

    The singular vectors are constants in the backward pass: their derivative is unbounded where two singular values
    meet, and those of padding are all zero.
    """

    spec: SVDSpec

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, tuple[()]]:
        q, k, v = self.project_qkv(x)
        allowed = (span.valid[:, :, None] & span.valid[:, None, :])[:, None]  # [B, 1, T, T]
        weights = self.normalize(self.score(q, self.for_each_query_head(k)), allowed)
        wide = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))  # svd has no half precision
        left = torch.linalg.svd(wide, full_matrices=False).U[..., : self.spec.rank].to(weights.dtype)  # [B, H, T, R]
        context = self.apply_weights(left @ (left.transpose(-1, -2) @ weights), v)
        return self.project_out(context, q, span), ()


@dataclass(frozen=True, kw_only=True)
class PooledSpec(MixerSpec):
    """One weighted average of the sequence, the same for every token."""

    @property
    def noncausal_reason(self) -> str | None:
        return "it averages all tokens, later ones included"

    def build(self) -> Pooled:
        return Pooled(self)


class Pooled(Mixer):
    """A score for each token, one average for the whole sequence:

        α_t = 1/√T · Σ_j (Q x_t)·(K x_j)        y_t = Σ_j e^{α_j} V x_j / Σ_j e^{α_j}

    y_t does not depend on t: every token of a sequence gets the same output.
    """

    follows_init_scheme = True

    def __init__(self, spec: PooledSpec) -> None:
        super().__init__(spec)
        self.query = nn.Linear(spec.width, spec.width, bias=False)
        self.key = nn.Linear(spec.width, spec.width, bias=False)
        self.value = nn.Linear(spec.width, spec.out, bias=False)
        self.weights = Tap()

    def initial_state(self, like: Tensor) -> tuple[()]:
        return ()

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, tuple[()]]:
        x = span.zero_padding(x)
        lengths: Tensor | int = span.lengths.clamp(min=1)[:, None] if span.has_padding else x.shape[1]
        # A narrow type would round lengths.
        wide = torch.promote_types(x.dtype, torch.float32)
        root = math.sqrt(lengths) if isinstance(lengths, int) else lengths.to(wide).sqrt().to(x.dtype)
        scores = linear_time_scores(self.query(x), self.key(x)) / root
        weights = self.weights(softmax(scores, span.valid))  # [B, T]
        pooled = weights[:, None, :] @ self.value(x)  # [B, 1, D]
        return pooled.expand(-1, x.shape[1], -1), ()


def linear_time_scores(q: Tensor, k: Tensor) -> Tensor:
    """O(T): the keys are summed first. [B, T, D], [B, T, D] -> [B, T], not divided by √T"""
    return (q @ k.sum(1)[:, :, None]).squeeze(-1)


def quadratic_scores(q: Tensor, k: Tensor) -> Tensor:
    """O(T²), as the formula is written: the reference for `linear_time_scores`."""
    return (q @ k.transpose(-1, -2)).sum(-1)
