"""Attention of low rank: through a projection along time (Linformer), and through a truncated SVD.

Both read the whole sequence: a projection along time mixes later tokens into every key. They stand in encoders and
classifiers, and are refused in causal models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.attention.heads import Headed, HeadedSpec, Visible
from anaphor.mixers.base import Span
from anaphor.mixers.spec import check_at_least, required


@dataclass(frozen=True, kw_only=True)
class WholeHeadedSpec(HeadedSpec):
    """Attention with heads over whole sequences."""

    rank: int = 32
    """How many directions in time are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, rank=self.rank)

    @property
    def noncausal_reason(self) -> str | None:
        return "it mixes all tokens, later ones too, into every key"


class WholeHeaded(Headed):
    """Queries, keys and values of a whole sequence."""

    def __init__(self, spec: WholeHeadedSpec) -> None:
        super().__init__(spec)
        self.project = nn.Linear(spec.width, 3 * self.inner, bias=required(spec.bias))

    def initial_state(self, like: Tensor) -> tuple[()]:
        return ()

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self.split(part) for part in self.project(x).chunk(3, dim=-1))
        return q, k, v


@dataclass(frozen=True, kw_only=True)
class LowRankSpec(WholeHeadedSpec):
    """Keys and values are projected along time to `rank` of them (Wang et al., 2020): cost linear in the length."""

    tokens: int = 1024
    """The longest sequence that the projection covers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, tokens=self.tokens)

    @property
    def limit(self) -> int | None:
        return self.tokens

    def build(self) -> LowRank:
        return LowRank(self)


class LowRank(WholeHeaded):
    spec: LowRankSpec

    def __init__(self, spec: LowRankSpec) -> None:
        super().__init__(spec)
        self.along_time = nn.Parameter(torch.randn(spec.rank, spec.tokens) / spec.tokens**0.5)

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, tuple[()]]:
        tokens = x.shape[1]
        if tokens > self.spec.tokens:
            raise ConfigError(f"{tokens} tokens are more than the projection along time covers ({self.spec.tokens})")
        q, k, v = self.heads_of(x)
        projection = self.along_time[:, :tokens]
        if not span.full:
            projection = projection * span.valid[:, None, None, :]  # [B, 1, R, T]; padding is mixed into nothing
        visible = Visible()
        if not span.full:
            visible = Visible(span.valid[:, None, :, None].expand(-1, -1, -1, self.spec.rank))
        context = self.attend(q, projection @ k, projection @ v, visible)
        return self.join(context, q, span), ()


@dataclass(frozen=True, kw_only=True)
class SVDSpec(WholeHeadedSpec):
    """Full attention whose matrix of weights is then cut to its `rank` largest singular values."""

    def build(self) -> SVD:
        return SVD(self)


class SVD(WholeHeaded):
    """The best approximation of rank r to each matrix of weights: a yardstick for what low rank can do, not a saving.

    The directions kept are treated as constants in the backward pass: the derivative of singular vectors has no limit
    where two singular values meet, and those of padding all meet at zero.
    """

    spec: SVDSpec

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, tuple[()]]:
        q, k, v = self.heads_of(x)
        allowed = (span.valid[:, :, None] & span.valid[:, None, :])[:, None]  # [B, 1, T, T]
        weights = self.normalize(self.score(q, k), allowed)
        wide = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))  # there is no narrower one
        left = torch.linalg.svd(wide, full_matrices=False).U[..., : self.spec.rank].to(weights.dtype)  # [B, H, T, R]
        context = self.weigh(left @ (left.transpose(-1, -2) @ weights), v)
        return self.join(context, q, span), ()
