"""Heads: from hidden states to the logits of a vocabulary or of classes. Their losses are in `cross_entropy.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.models.embedding import Embedding


class Head(nn.Module):
    """From hidden states to logits, with a matrix of its own or tied to the embeddings.

    A tied matrix is looked up at every call rather than shared: so it exists once, in every copy, file and device.
    """

    def __init__(self, width: int, vocabulary: int, bias: bool, tied_to: Embedding | None) -> None:
        super().__init__()
        self.out_features = vocabulary
        self.own = nn.Parameter(torch.empty(vocabulary, width)) if tied_to is None else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        self.tie(tied_to)

    def tie(self, embedding: Embedding | None) -> None:
        """Use these embeddings as the matrix."""
        self._tied_to = (embedding,)  # in a tuple, so that it is not registered a second time

    @property
    def tied_to(self) -> Embedding | None:
        """The embeddings that are its matrix; None if it has one of its own."""
        return self._tied_to[0]

    @property
    def weight(self) -> Tensor:
        """[V, D]"""
        if self.own is not None:
            return self.own
        embedding = self.tied_to
        assert embedding is not None, "a head without a matrix of its own is tied"
        return embedding.table()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ClassHead(Head):
    """Pooled hidden states, norm and logits of classes. [B, T, D] -> [B, C]"""

    def __init__(self, width: int, classes: int, pooling: str, extra_tokens: int, norm: nn.Module | None) -> None:
        """The first `extra_tokens` are no patches; with pooling "class" the first of all is read."""
        super().__init__(width, classes, bias=True, tied_to=None)
        self.pooling, self.extra_tokens = pooling, extra_tokens
        self.norm = norm

    def pool(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, D]"""
        return x[:, 0] if self.pooling == "class" else x[:, self.extra_tokens :].mean(1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(x)
        return super().forward(pooled if self.norm is None else self.norm(pooled))
