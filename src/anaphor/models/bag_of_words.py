"""Bag of words: a linear classifier over counts of words and bigrams, which knows nothing else of their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.base import Span

HELD = 1 << 22
"""Bigrams that are in memory before those that occur again are left out."""


class BagOfWords(nn.Module):
    """Tokens in, logits of classes out: `model(tokens, lengths)`, [B, T] -> [B, classes]. Only bigrams of the training
    data have a weight."""

    max_positions: None = None
    spec: None = None

    keys: Tensor

    def __init__(self, vocabulary: int, classes: int, keys: NDArray[np.int64]) -> None:
        """`keys` are the bigrams that have a weight, as `bigram_keys` gives them."""
        super().__init__()
        self.words = nn.Embedding(vocabulary, classes)
        self.bigrams = nn.Embedding(len(keys) + 1, classes)  # the last one stands for all others, and stays zero
        self.bias = nn.Parameter(torch.zeros(classes))
        self.register_buffer("keys", torch.tensor(keys))
        for table in (self.words, self.bigrams):
            nn.init.zeros_(table.weight)

    @property
    def blocks(self) -> list[Any]:
        return []

    @property
    def device(self) -> torch.device:
        return self.bias.device

    def count_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.bias + self.contributions(tokens, lengths).sum(1)

    def contributions(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What each token adds to the logits: its weight, and half of that of each of its two bigrams.
        [B, T] -> [B, T, classes]"""
        span = Span.whole(tokens, lengths)
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        real = (steps < span.lengths[:, None])[..., None]
        by_word = self.words(tokens) * real
        by_pair = self._lookup(tokens[:, :-1], tokens[:, 1:]) * real[:, 1:] / 2
        total: Tensor = by_word + F.pad(by_pair, (0, 0, 0, 1)) + F.pad(by_pair, (0, 0, 1, 0))
        return total

    def _lookup(self, first: Tensor, second: Tensor) -> Tensor:
        count = len(self.keys)
        if not count:
            return self.bias.new_zeros(*first.shape, len(self.bias))
        keys = first * self.words.num_embeddings + second
        index = torch.searchsorted(self.keys, keys).clamp(max=count - 1)
        exists = self.keys[index] == keys
        weights: Tensor = self.bigrams(index.where(exists, count)) * exists[..., None]
        return weights


def bigram_keys(texts: Iterable[NDArray[Any]], vocabulary: int) -> NDArray[np.int64]:
    """All bigrams of some texts as sorted numbers. The texts need not be in memory at once."""
    pairs = [np.empty(0, np.int64)]
    count = 0
    for text in texts:
        pairs.append(text[:-1].astype(np.int64) * vocabulary + text[1:])
        count += len(text)
        if count >= HELD:
            pairs, count = [np.unique(np.concatenate(pairs))], 0
    return np.unique(np.concatenate(pairs))
