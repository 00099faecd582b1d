"""Merge: how the heads' outputs become one vector; and combine: what of the query goes into a head's output.

The experiments on heads (shuffle, shift, re-weight) are merges. Each says what it does in training, and the choice
`evaluation` says whether it does the same afterwards or falls back to plain concatenation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from anaphor.config import look_up
from anaphor.mixers.base import Span

EVALUATIONS = {"same": "as in training", "concatenate": "plain concatenation"}


class Merge(nn.Module):
    """Concatenate. [B, H, T, K] -> [B, T, H·K]"""

    causal: ClassVar[bool] = True
    """Whether a token's output depends on no later token."""
    repeatable: ClassVar[bool] = True
    """Whether the same input gives the same output twice."""
    default_evaluation: ClassVar[str] = "same"

    def __init__(self, evaluation: str | None = None) -> None:
        super().__init__()
        self.evaluation = evaluation or self.default_evaluation
        look_up(EVALUATIONS, self.evaluation, "evaluation of a merge")

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        """What is done to the heads before they are put side by side. [B, H, T, K] -> [B, H, T, K]"""
        return heads

    def forward(self, heads: Tensor, span: Span) -> Tensor:
        if self.training or self.evaluation == "same":
            heads = self.rearrange(heads, span)
        return heads.transpose(1, 2).flatten(2)


class Shuffle(Merge):
    """The heads in an order drawn anew at every call. Evaluated in their own order unless told otherwise."""

    repeatable = False
    default_evaluation = "concatenate"

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        return heads[:, torch.randperm(heads.shape[1], device=heads.device)]


class Shift(Merge):
    """Head two in the place of head one, three in the place of two, and the first one last."""

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        return heads.roll(-1, dims=1)


class Reweight(Merge):
    """Each head times its share of length at that position: one for every head when all vectors are equally long."""

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        length = torch.linalg.vector_norm(heads, dim=-1, keepdim=True)  # [B, H, T, 1]
        # The smallest normal number, so that positions where every head is zero stay zero.
        share: Tensor = length / length.mean(1, keepdim=True).clamp(min=torch.finfo(heads.dtype).tiny)
        return heads * share


class ReweightMatrix(Merge):
    """Each head times the norm of its whole output matrix. Every token's output so depends on all later tokens, and
    its size on how many tokens there are."""

    causal = False

    def rearrange(self, heads: Tensor, span: Span) -> Tensor:
        real = heads if span.full else heads.masked_fill(~span.valid[:, None, :, None], 0)
        norm: Tensor = torch.linalg.vector_norm(real, dim=(-2, -1), keepdim=True)
        return heads * norm


MERGES: dict[str, type[Merge]] = {
    "concatenate": Merge,
    "shuffle": Shuffle,
    "shift": Shift,
    "reweight": Reweight,
    "reweight-matrix": ReweightMatrix,
}


Combine = Callable[[Tensor, Tensor], Tensor]  # context and query, both [B, H, T, K]


def context_alone(context: Tensor, query: Tensor) -> Tensor:
    """What was found."""
    return context


def context_plus_query(context: Tensor, query: Tensor) -> Tensor:
    """What was found, added to what was asked for: a residual connection inside the head."""
    return context + query


COMBINES: dict[str, Combine] = {"context": context_alone, "query": context_plus_query}
