"""Embeddings of tokens: a table of vectors, which a subclass may compute from other weights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Self

from torch import Tensor, nn


class Embedding(nn.Embedding):
    """A vector for each token. The embedder looks tokens up in the table, and a tied head multiplies by it."""

    def table(self) -> Tensor:
        """The vectors of all tokens. [V, D]"""
        return self.weight

    def share_table(self) -> AbstractContextManager[None]:
        """Inside the block the table is computed once, for embedder and head. Weights must not change inside."""
        return nullcontext()

    def fold(self) -> Embedding | Self:
        """Embeddings with the same vectors and nothing to compute, for a model that is not trained further."""
        return self
