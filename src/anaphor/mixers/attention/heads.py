"""What all multi-head attention shares: splitting, attending and merging heads.

Attention has two paths. Torch's fused attention runs while the tap `weights` is not recorded and the parts allow it;
the explicit path computes the matrix of weights. Tests compare them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least, look_up
from anaphor.errors import ConfigError
from anaphor.mixers.attention.score import LEARNED_NORMALIZERS, NORMALIZERS, SCORES, Score, SoftCapped, build_normalizer
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.layers import NORM_KINDS, Linear, Norm
from anaphor.mixers.spec import HeadOptions, MixerSpec, Sizes, check_divides, check_heads, check_probability, require
from anaphor.taps import Tap


class Merge(nn.Module):
    """Concatenation of the heads. [B, H, T, K] -> [B, T, H·K]

    A subclass changes the heads before, in training, and in evaluation unless `evaluation` is "concatenate".
    """

    is_causal: ClassVar[bool] = True
    """Whether the output of a token depends on no later token."""
    default_evaluation: ClassVar[str] = "same"

    def __init__(self, evaluation: str | None = None) -> None:
        self.check(evaluation)
        super().__init__()
        self.evaluation = evaluation or self.default_evaluation

    @classmethod
    def check(cls, evaluation: str | None) -> None:
        """Raise for an unknown way to evaluate. Specs call it, for which no module is made."""
        look_up(EVALUATIONS, evaluation or cls.default_evaluation, "evaluation of a merge")

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        """The heads before they are concatenated. [B, H, T, K] -> [B, H, T, K]"""
        return heads

    def forward(self, heads: Tensor, span: Span) -> Tensor:
        if self.training or self.evaluation == "same":
            heads = self.rearrange(heads, span)
        return heads.transpose(1, 2).flatten(2)


EVALUATIONS = {"same": "as in training", "concatenate": "plain concatenation"}


class Shuffle(Merge):
    """The heads in a random order, drawn at every call. In evaluation their own order by default."""

    default_evaluation = "concatenate"

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        return heads[:, torch.randperm(heads.shape[1], device=heads.device)]


class Shift(Merge):
    """The heads rotated by one: the second one first, the first one last."""

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        return heads.roll(-1, dims=1)


class Reweight(Merge):
    """Each head times its norm at that position, divided by the mean norm of all heads there."""

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        norm = torch.linalg.vector_norm(heads, dim=-1, keepdim=True)  # [B, H, T, 1]
        # The smallest normal number, so that positions where every head is zero stay zero.
        weight: Tensor = norm / norm.mean(1, keepdim=True).clamp(min=torch.finfo(heads.dtype).tiny)
        return heads * weight


class ReweightMatrix(Merge):
    """Each head times the norm of its whole output matrix, which depends on all tokens and on their number."""

    is_causal = False

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        valid = heads.masked_fill(~span.valid[:, None, :, None], 0) if span.has_padding else heads
        norm: Tensor = torch.linalg.vector_norm(valid, dim=(-2, -1), keepdim=True)
        return heads * norm


MERGES: dict[str, type[Merge]] = {
    "concatenate": Merge,
    "shuffle": Shuffle,
    "shift": Shift,
    "reweight": Reweight,
    "reweight-matrix": ReweightMatrix,
}
QK_NORMS = {"none": "none", **NORM_KINDS}
COMBINES = {"context": "the context vector", "query": "context plus query: a residual connection inside the head"}


@dataclass(frozen=True, kw_only=True)
class MultiHeadSpec(MixerSpec, HeadOptions):
    """Base class of the specs of mixers that compute attention scores."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "heads": 4,
        "bias": True,
        "score": "scaled-dot",
        "normalize": "softmax",
        "merge": "concatenate",
        "combine": "context",
    }

    dropout: float = 0.0
    """Dropout probability of the attention weights."""
    norm_eps: float = 1e-5
    """Added to the variance in the norm of queries and keys."""

    def __post_init__(self) -> None:
        super().__post_init__()
        heads = require(self.heads)
        check_heads(heads, self.width if self.head_width is None else heads)
        check_at_least(1, head_width=self.head_width)
        if self.kv_heads is not None:
            check_divides("kv_heads", self.kv_heads, "heads", heads)
        check_probability(dropout=self.dropout)
        look_up(QK_NORMS, self.qk_norm or "none", "norm of queries and keys")
        look_up(SCORES, require(self.score), "score")
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise ConfigError(f"softcap={self.softcap:g}: it must be a number above 0")
        look_up({**NORMALIZERS, **LEARNED_NORMALIZERS}, require(self.normalize), "normalizer")
        look_up(MERGES, require(self.merge), "merge").check(self.merge_evaluation)
        look_up(COMBINES, require(self.combine), "combination")

    @property
    def sizes(self) -> Sizes:
        heads = require(self.heads)
        width = self.head_width or self.width // heads
        return Sizes(self.width, heads, width, max_positions=self.limit or 0, kv_heads=self.kv_heads)

    @property
    def noncausal_reason(self) -> str | None:
        if MERGES[require(self.merge)].is_causal:
            return None
        return f"merge {self.merge!r} weights every token by all tokens, later ones included; 'reweight' does not"


@dataclass(frozen=True)
class Visibility:
    """Which keys each query attends to: all, those up to its own, or the allowed ones. The first two need no mask."""

    allowed: Tensor | None = None  # [B or 1, 1, T or 1, S]; None: see `is_causal`
    is_causal: bool = False  # query t attends to keys 0 … t, of as many keys as queries
    has_fully_masked_rows: bool = True  # whether a query may have no key to attend to
    additive: dict[torch.dtype, Tensor] = field(default_factory=dict, compare=False, repr=False)  # by `to_additive`

    def to_mask(self, q: Tensor, k: Tensor) -> Tensor:
        """True where a query attends to a key."""
        if self.allowed is not None:
            return self.allowed
        ones = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
        return ones.tril() if self.is_causal else ones

    def to_additive(self, dtype: torch.dtype) -> Tensor:
        """`allowed` as numbers that are added to scores. The fused kernel would convert it in every layer; layers that
        share this object share the result."""
        assert self.allowed is not None, "there is a mask"
        if dtype not in self.additive:
            zeros = torch.zeros_like(self.allowed, dtype=dtype)
            self.additive[dtype] = zeros.masked_fill_(~self.allowed, -torch.inf)
        return self.additive[dtype]


def build_qk_norm(spec: MultiHeadSpec) -> Norm | None:
    """The norm of queries or keys, one for all heads; None where there is none."""
    kind = spec.qk_norm or "none"
    return None if kind == "none" else NORM_KINDS[kind](spec.sizes.head_width, spec.norm_eps)


class MultiHead(Mixer):
    """Base class of self-attention, cross-attention and low-rank attention."""

    spec: MultiHeadSpec
    follows_init_scheme = True

    def __init__(self, spec: MultiHeadSpec) -> None:
        super().__init__(spec)
        sizes = spec.sizes
        self.heads, self.head_width = sizes.heads, sizes.head_width
        self.kv_heads = sizes.kv_heads or sizes.heads
        self.inner_width = sizes.heads * sizes.head_width
        self.kv_width = self.kv_heads * sizes.head_width
        self.q_norm, self.k_norm = build_qk_norm(spec), build_qk_norm(spec)
        score = SCORES[require(spec.score)](sizes)
        self.score: Score = score if spec.softcap is None else SoftCapped(score, spec.softcap)
        self.normalize = build_normalizer(require(spec.normalize), sizes)
        self.merge = MERGES[require(spec.merge)](spec.merge_evaluation)
        self.weights = Tap()
        bias = require(spec.bias) if spec.out_bias is None else spec.out_bias
        self.out = Linear(self.inner_width, spec.out, bias=bias)

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        return (self.kv_heads, None, self.head_width)

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, T, H·K] -> [B, H, T, K], for queries, keys or values."""
        return x.view(*x.shape[:2], x.shape[-1] // self.head_width, self.head_width).transpose(1, 2)

    def norm_queries(self, q: Tensor) -> Tensor:
        """[B, H, T, K] -> [B, H, T, K]"""
        return q if self.q_norm is None else self.q_norm(q).to(q.dtype)

    def norm_keys(self, k: Tensor) -> Tensor:
        """[B, G, T, K] -> [B, G, T, K]"""
        return k if self.k_norm is None else self.k_norm(k).to(k.dtype)

    def for_each_query_head(self, keys_or_values: Tensor) -> Tensor:
        """Each head of keys or values as often as there are queries in its group. [B, G, S, K] -> [B, H, S, K]"""
        if self.kv_heads == self.heads:
            return keys_or_values
        rows, groups, keys, width = keys_or_values.shape
        group = keys_or_values[:, :, None].expand(-1, -1, self.heads // groups, -1, -1)
        return group.reshape(rows, self.heads, keys, width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: Tensor | None = None) -> Tensor:
        """Context of each query; G is the number of heads of keys and values.
        [B, H, T, K], [B, G, S, K], [B, G, S, K] -> [B, H, T, K]"""
        factors = None
        if not self.weights.is_recorded and self.spec.normalize == "softmax":
            factors = self.score.factors(q, k)
        if factors is None:
            return self._attend_explicitly(q, k, v, visibility, bias)
        return self._attend_fused(factors, v, visibility, bias)

    def project_out(self, context: Tensor, q: Tensor, span: Span) -> Tensor:
        """Combine, merge and project the heads. [B, H, T, K], [B, H, T, K] -> [B, T, D]"""
        heads = context + q if self.spec.combine == "query" else context
        y: Tensor = self.out(self.merge(heads, span))
        return y

    def apply_weights(self, w: Tensor, v: Tensor) -> Tensor:
        """[B, H, T, S], [B, G, S, K] -> [B, H, T, K]"""
        return F.dropout(self.weights(w), self.spec.dropout, self.training) @ self.for_each_query_head(v)

    def _attend_explicitly(
        self, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: Tensor | None
    ) -> Tensor:
        s = self.score(q, self.for_each_query_head(k))  # [B, H, T, S]
        if bias is not None:
            s = s + bias
        return self.apply_weights(self.normalize(s, visibility.to_mask(q, k)), v)

    def _attend_fused(
        self, factors: tuple[Tensor, Tensor, float], v: Tensor, visibility: Visibility, bias: Tensor | None
    ) -> Tensor:
        a, b, _ = factors
        if visibility.allowed is None and (bias is None or not visibility.is_causal):
            return self._run_kernel(factors, v, bias, is_causal=visibility.is_causal)
        mask = allowed = visibility.to_mask(a, b)
        masked_rows = ~allowed.any(-1, keepdim=True) if visibility.has_fully_masked_rows else None  # [B, 1, T, 1]
        if masked_rows is not None:
            mask = allowed | masked_rows  # a softmax over nothing would be NaN
        if bias is not None:
            mask = bias.masked_fill(~mask, -torch.inf)
        elif masked_rows is None:
            mask = visibility.to_additive(a.dtype)
        context = self._run_kernel(factors, v, mask)
        return context if masked_rows is None else context.masked_fill(masked_rows, 0)

    def _run_kernel(
        self, factors: tuple[Tensor, Tensor, float], v: Tensor, mask: Tensor | None, *, is_causal: bool = False
    ) -> Tensor:
        """Torch's fused attention. `mask` is added to the scores, or has True where a query attends to a key."""
        a, b, scale = factors
        if mask is not None and a.is_cuda:  # there the kernel that takes a mask wants as many keys as queries
            b, v = self.for_each_query_head(b), self.for_each_query_head(v)
        dropout = self.spec.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(
            a, b, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scale,
            enable_gqa=b.shape[1] < a.shape[1],
        )  # fmt: skip
