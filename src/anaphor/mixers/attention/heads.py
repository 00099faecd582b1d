"""What every attention over heads shares: the parts, and the way from queries, keys and values to an output.

There are two ways. The fused kernel runs while nobody watches the tap `weights` and the parts allow it; the explicit
path, five lines long, makes the matrix of weights. Tests hold them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import look_up
from anaphor.mixers.attention.merge import COMBINES, MERGES
from anaphor.mixers.attention.normalize import NORMALIZERS
from anaphor.mixers.attention.score import SCORES
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.spec import (
    HeadOptions,
    MixerSpec,
    Sizes,
    check_at_least,
    check_heads,
    check_probability,
    required,
)
from anaphor.taps import Tap


@dataclass(frozen=True, kw_only=True)
class HeadedSpec(MixerSpec, HeadOptions):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        heads = required(self.heads)
        check_heads(heads, self.width if self.head_width is None else heads)
        check_at_least(1, head_width=self.head_width)
        check_probability(dropout=self.dropout)
        look_up(SCORES, required(self.score), "score")
        look_up(NORMALIZERS, required(self.normalize), "normalizer")
        look_up(MERGES, required(self.merge), "merge")(self.merge_evaluation)
        look_up(COMBINES, required(self.combine), "combination")

    @property
    def sizes(self) -> Sizes:
        heads = required(self.heads)
        return Sizes(self.width, heads, self.head_width or self.width // heads, max_positions=self.limit or 0)

    @property
    def noncausal_reason(self) -> str | None:
        if MERGES[required(self.merge)].causal:
            return None
        return f"merge {self.merge!r} weighs every token by all tokens, later ones too; 'reweight' does not"

    @property
    def repeatable(self) -> bool:
        """Whether evaluating the same input twice gives the same output."""
        merge = MERGES[required(self.merge)]
        return merge.repeatable or (self.merge_evaluation or merge.default_evaluation) != "same"


@dataclass(frozen=True)
class Visible:
    """Which keys each query attends to: all of them, the causal half, or the given pairs. Kernels need no mask for the
    first two."""

    pairs: Tensor | None = None  # [B or 1, 1, T, S]; None: `causal` says it all
    causal: bool = False  # query t attends to keys 0 … t, of as many keys as queries
    has_fully_masked_rows: bool = True  # whether a query may have no key to attend to

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        """The pairs, spelled out."""
        if self.pairs is not None:
            return self.pairs
        everything = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
        return everything.tril() if self.causal else everything


class Headed(Mixer):
    """Parts common to self-attention, cross-attention and attention through a projection."""

    spec: HeadedSpec

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        return (self.heads, None, self.head_width)

    def __init__(self, spec: HeadedSpec) -> None:
        super().__init__(spec)
        sizes = spec.sizes
        self.heads, self.head_width = sizes.heads, sizes.head_width
        self.inner = sizes.heads * sizes.head_width
        self.score = SCORES[required(spec.score)](sizes)
        self.normalize = NORMALIZERS[required(spec.normalize)]
        self.merge = MERGES[required(spec.merge)](spec.merge_evaluation)
        self.combine = COMBINES[required(spec.combine)]
        self.weights = Tap()
        self.out = nn.Linear(self.inner, spec.out, bias=required(spec.bias))

    def split(self, x: Tensor) -> Tensor:
        """[B, T, H·K] -> [B, H, T, K]"""
        return x.view(*x.shape[:2], self.heads, self.head_width).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, bias: Tensor | None = None) -> Tensor:
        """What each head finds. [B, H, T, K], [B, H, S, K], [B, H, S, K] -> [B, H, T, K]"""
        factors = None
        if not self.weights.watched and self.spec.normalize == "softmax":
            factors = self.score.factors(q, k)
        if factors is None:
            return self._explicit(q, k, v, visible, bias)
        return self._fused(factors, v, visible, bias)

    def join(self, context: Tensor, q: Tensor, span: Span) -> Tensor:
        """What the heads found, as one vector for each token. [B, H, T, K], [B, H, T, K] -> [B, T, D]"""
        y: Tensor = self.out(self.merge(self.combine(context, q), span))
        return y

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, bias: Tensor | None) -> Tensor:
        s = self.score(q, k)  # [B, H, T, S]
        if bias is not None:
            s = s + bias
        return self.weigh(self.normalize(s, visible.matrix(q, k)), v)

    def weigh(self, w: Tensor, v: Tensor) -> Tensor:
        """[B, H, T, S], [B, H, S, K] -> [B, H, T, K]"""
        return F.dropout(self.weights(w), self.spec.dropout, self.training) @ v

    def _fused(self, factors: tuple[Tensor, Tensor, float], v: Tensor, visible: Visible, bias: Tensor | None) -> Tensor:
        a, b, scale = factors
        dropout = self.spec.dropout if self.training else 0.0
        if visible.pairs is None and (bias is None or not visible.causal):
            return F.scaled_dot_product_attention(
                a, b, v, attn_mask=bias, dropout_p=dropout, scale=scale, is_causal=visible.causal
            )
        mask = allowed = visible.matrix(a, b)
        masked_rows = ~allowed.any(-1, keepdim=True) if visible.has_fully_masked_rows else None  # [B, 1, T, 1]
        if masked_rows is not None:
            mask = allowed | masked_rows  # a softmax over nothing would be NaN
        if bias is not None:
            mask = bias.masked_fill(~mask, -torch.inf)
        context = F.scaled_dot_product_attention(a, b, v, attn_mask=mask, dropout_p=dropout, scale=scale)
        return context if masked_rows is None else context.masked_fill(masked_rows, 0)
