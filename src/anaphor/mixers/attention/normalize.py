"""Normalize: from scores to weights. What is not allowed weighs exactly zero; a row that sees nothing is all zeros."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Normalize = Callable[[Tensor, Tensor], Tensor]  # scores and allowed, both [B, H, T, S] or broadcast to it


def softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Positive weights that sum to one."""
    return torch.softmax(_finite(scores, allowed), dim=-1).masked_fill(~allowed, 0)


def sigmoid(scores: Tensor, allowed: Tensor) -> Tensor:
    """Every key is weighed by itself, between zero and one; a row's sum is free."""
    return torch.sigmoid(scores).masked_fill(~allowed, 0)


def sparsemax(scores: Tensor, allowed: Tensor) -> Tensor:
    """The point of the simplex nearest to the scores: sums to one, with exact zeros (Martins and Astudillo, 2016)."""
    given = scores.dtype
    # Ranks and running sums need more digits than half precision has, and small numbers.
    scores = _finite(scores.to(torch.promote_types(given, torch.float32)), allowed)
    scores = scores - scores.amax(-1, keepdim=True).detach()
    ranked = scores.sort(dim=-1, descending=True).values
    rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    # The largest k such that the k best keys all stay above the threshold that makes them sum to one.
    support = (1 + rank * ranked > ranked.cumsum(-1)).sum(-1, keepdim=True).clamp(min=1)
    kept = (rank <= support) * ranked
    threshold = (kept.sum(-1, keepdim=True) - 1) / support
    return (scores - threshold).clamp(min=0).masked_fill(~allowed, 0).to(given)


def _finite(scores: Tensor, allowed: Tensor) -> Tensor:
    """Scores so low where not allowed that they cannot matter, yet finite: a row of -inf would turn into NaN."""
    # A quarter of the range leaves room for the sums and products that follow.
    return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min / 4)


NORMALIZERS: dict[str, Normalize] = {"softmax": softmax, "sigmoid": sigmoid, "sparsemax": sparsemax}
