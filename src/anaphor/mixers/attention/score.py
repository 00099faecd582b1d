"""Scores of attention, [B, H, T, K] and [B, H, S, K] -> [B, H, T, S], and their normalization to weights.

All scores but one are a dot product of a function of the query with a function of the key. Those return the two in
`factors`, which is what a fused kernel needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.spec import Sizes


class Score(nn.Module):
    """[B, H, T, K], [B, H, S, K] -> [B, H, T, S]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float] | None:
        """(a, b, c) such that the score is c · a bᵀ, or None if it is not a dot product."""
        raise NotImplementedError(f"{type(self).__name__} does not define factors")

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        factors = self.factors(q, k)
        assert factors is not None, "a score that is not a dot product defines its own forward"
        a, b, scale = factors
        return scale * (a @ b.transpose(-1, -2))


class Dot(Score):
    """q · k"""

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return q, k, 1.0


class ScaledDot(Score):
    """q · k / √K: the variance of the scores does not depend on the width of a head."""

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return q, k, 1 / math.sqrt(q.shape[-1])


class Bilinear(Score):
    """qᵀ W k with one W per head; initialized as the plain dot product."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(torch.eye(sizes.head_width).repeat(sizes.heads, 1, 1))  # [H, K, K]

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return q @ self.weight, k, 1.0


class Cosine(Score):
    """The cosine of the angle between q and k, times a learned scale per head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        # A cosine is at most one; softmax over such scores alone could never select a single key.
        self.logit_scale = nn.Parameter(torch.full((sizes.heads, 1, 1), 10.0))

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return self.logit_scale * F.normalize(q, dim=-1), F.normalize(k, dim=-1), 1.0


class Additive(Score):
    """v · tanh(W q + U k) (Bahdanau et al., 2015). Not a dot product, so no fused kernel computes it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.query = nn.Linear(sizes.head_width, sizes.head_width)
        self.key = nn.Linear(sizes.head_width, sizes.head_width, bias=False)
        self.out = nn.Linear(sizes.head_width, 1, bias=False)

    def factors(self, q: Tensor, k: Tensor) -> None:
        return None

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        pairs = self.query(q)[..., :, None, :] + self.key(k)[..., None, :, :]  # [B, H, T, S, K]
        scores: Tensor = self.out(torch.tanh(pairs)).squeeze(-1)
        return scores


class SoftCapped(Score):
    """Another score, squeezed between -c and c: c · tanh(score / c) (Gemma 2). Not a dot product."""

    def __init__(self, score: Score, cap: float) -> None:
        nn.Module.__init__(self)
        self.score, self.cap = score, cap

    def factors(self, q: Tensor, k: Tensor) -> None:
        return None

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        scores: Tensor = self.score(q, k)
        return self.cap * torch.tanh(scores / self.cap)


SCORES: dict[str, type[Score]] = {
    "scaled-dot": ScaledDot,
    "dot": Dot,
    "bilinear": Bilinear,
    "additive": Additive,
    "cosine": Cosine,
}

Normalizer = Callable[[Tensor, Tensor], Tensor]
"""From scores and allowed pairs, both [B, H, T, S] or broadcast to it, to weights. What is not allowed has weight zero,
a row in which nothing is allowed is all zeros."""


def softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Positive weights that sum to one."""
    return torch.softmax(_mask_scores(scores, allowed), dim=-1).masked_fill(~allowed, 0)


def sigmoid(scores: Tensor, allowed: Tensor) -> Tensor:
    """Independent weights between zero and one; they need not sum to one."""
    return torch.sigmoid(scores).masked_fill(~allowed, 0)


def sparsemax(scores: Tensor, allowed: Tensor) -> Tensor:
    """The Euclidean projection onto the simplex: sums to one, with exact zeros (Martins and Astudillo, 2016)."""
    dtype = scores.dtype
    # Ranks and cumulative sums need more digits than half precision has, and small numbers.
    scores = _mask_scores(scores.to(torch.promote_types(dtype, torch.float32)), allowed)
    scores = scores - scores.amax(-1, keepdim=True).detach()
    ranked = scores.sort(dim=-1, descending=True).values
    rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    # The largest k such that the k best keys all stay above the threshold that makes them sum to one.
    support = (1 + rank * ranked > ranked.cumsum(-1)).sum(-1, keepdim=True).clamp(min=1)
    kept = (rank <= support) * ranked
    threshold = (kept.sum(-1, keepdim=True) - 1) / support
    return (scores - threshold).clamp(min=0).masked_fill(~allowed, 0).to(dtype)


def _mask_scores(scores: Tensor, allowed: Tensor) -> Tensor:
    """Scores so low where not allowed that they do not matter, yet finite: a row of -inf would become NaN."""
    # A quarter of the range leaves room for the sums and products that follow.
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min / 4)


class SinkSoftmax(nn.Module):
    """Softmax with an attention sink: one more score for each head, which is learned and belongs to no token. Weights
    sum to less than one, and a head may attend to nothing (gpt-oss: OpenAI, 2025)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(sizes.heads))

    def forward(self, scores: Tensor, allowed: Tensor) -> Tensor:
        sinks = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        together = torch.cat((_mask_scores(scores, allowed), sinks), dim=-1)
        return torch.softmax(together, dim=-1)[..., :-1].masked_fill(~allowed, 0)


NORMALIZERS: dict[str, Normalizer] = {"softmax": softmax, "sigmoid": sigmoid, "sparsemax": sparsemax}
LEARNED_NORMALIZERS: dict[str, Callable[[Sizes], Normalizer]] = {"softmax-sink": SinkSoftmax}
"""Those with parameters, which are built for the heads of a layer."""


def build_normalizer(name: str, sizes: Sizes) -> Normalizer:
    """The normalizer of that name for heads of these sizes."""
    return LEARNED_NORMALIZERS[name](sizes) if name in LEARNED_NORMALIZERS else NORMALIZERS[name]
