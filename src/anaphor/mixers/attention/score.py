"""Score: how well a key answers a query.

All but one of the scores are a dot product of something made from the query with something made from the key. Those say
so through `factors`, which is what lets a fused kernel compute them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.spec import Sizes


class Score(nn.Module):
    """[B, H, T, K], [B, H, S, K] -> [B, H, T, S]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float] | None:
        """(a, b, c) such that the score is c · a bᵀ, or None when it is no dot product."""
        raise NotImplementedError(f"{type(self).__name__} has no factors")

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        factors = self.factors(q, k)
        assert factors is not None, "a score that is no dot product writes its own forward"
        a, b, scale = factors
        return scale * (a @ b.transpose(-1, -2))


class Dot(Score):
    """q · k"""

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return q, k, 1.0


class ScaledDot(Score):
    """q · k / √K, which keeps the variance of the scores at one however wide a head is."""

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return q, k, 1 / math.sqrt(q.shape[-1])


class Bilinear(Score):
    """qᵀ W k, with one W for each head; starts as the plain dot product."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(torch.eye(sizes.head_width).repeat(sizes.heads, 1, 1))  # [H, K, K]

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return q @ self.weight, k, 1.0


class Cosine(Score):
    """The cosine of the angle between q and k, times a learned sharpness for each head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        # A cosine is at most one; softmax over such scores alone could never single out a key.
        self.sharpness = nn.Parameter(torch.full((sizes.heads, 1, 1), 10.0))

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        return self.sharpness * F.normalize(q, dim=-1), F.normalize(k, dim=-1), 1.0


class Additive(Score):
    """v · tanh(W q + U k): a small network instead of a product, so no fused kernel can compute it."""

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


SCORES: dict[str, type[Score]] = {
    "scaled-dot": ScaledDot,
    "dot": Dot,
    "bilinear": Bilinear,
    "additive": Additive,
    "cosine": Cosine,
}
