"""Embedder: from token ids to the vectors that enter a backbone."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.attention.position import POSITIONS, check_limit
from anaphor.mixers.base import DROPOUTS, Span
from anaphor.mixers.spec import Sizes
from anaphor.models.ngram_embedding import NgramEmbedding
from anaphor.models.spec import LanguageModelSpec


class TokenEmbedder(nn.Module):
    """Embeddings, scaled, with position encoding, word dropout and dropout. [B, T] -> [B, T, D]"""

    def __init__(self, spec: LanguageModelSpec, shared: nn.Embedding | None = None) -> None:
        """`shared` are the embeddings of another model, to be used here too."""
        super().__init__()
        self.spec = spec
        width = spec.width_in
        self.embedding: nn.Embedding
        if shared is None:
            self.embedding = build_embedding(spec)
        else:
            self.__dict__["embedding"] = shared  # not registered: it exists once, in every copy, file and device
        self.dropped_word = nn.Embedding(1, width) if spec.word_dropout else None
        scheme = POSITIONS[spec.position if spec.adds_position else "none"]
        self.position = scheme(Sizes(width, heads=1, head_width=width, max_positions=spec.max_positions))
        # A fixed encoding has values of size 1; embeddings are initialized small and scaled up to that.
        self.scale = math.sqrt(width) if self.position.scales_embedding else 1.0
        self.limit = spec.max_positions if self.position.has_limit else None
        """Maximum number of positions; None means unbounded."""

    @property
    def owns_embedding(self) -> bool:
        """Whether the embeddings are its own parameters."""
        return "embedding" in self._modules

    def forward(self, tokens: Tensor, span: Span) -> Tensor:
        x: Tensor = self.embedding(tokens)
        if self.training and self.dropped_word is not None:
            x = drop_words(x, tokens, self.spec.word_dropout, self.spec.vocabulary, self.dropped_word.weight[0])
        x = self.scale * x
        encoding = self.position.embed(span.positions)
        if encoding is not None:
            x = x + encoding.to(x.dtype)
        p = self.spec.embedding_dropout
        return DROPOUTS[self.spec.dropout_kind](x, p) if self.training and p else x

    def check_tokens(self, tokens: Tensor) -> None:
        """Raise an error for what are no token ids of the vocabulary."""
        if not isinstance(tokens, Tensor) or tokens.ndim != 2:
            given = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ConfigError(f"tokens must be a tensor [rows, tokens], but they are {given}")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ConfigError(f"tokens must be int64 or int32, but they are {tokens.dtype}")
        # Reading values would synchronize a device: there the embedding itself raises an error.
        if tokens.device.type != "cpu" or not tokens.numel() or torch.compiler.is_compiling():
            return
        least, largest = (int(end) for end in tokens.aminmax())
        if least < 0 or largest >= self.spec.vocabulary:
            wrong = least if least < 0 else largest
            raise ConfigError(f"token {wrong} is outside the vocabulary of {self.spec.vocabulary:,}")

    def check_positions(self, span: Span, fresh: bool) -> None:
        """Raise an error for tokens after the last position. Padding has the position of the last real token."""
        if self.limit is None:  # layers with limits check them
            return
        if fresh and not span.has_padding:
            check_limit(span.count, self.limit)
        elif span.seen.device.type == "cpu" and len(span.seen) and not torch.compiler.is_compiling():
            check_limit(int((span.seen + span.lengths).max()), self.limit)


def build_embedding(spec: LanguageModelSpec) -> nn.Embedding:
    """A table for all tokens, with n-grams where wanted."""
    if not spec.ngram_embedding:
        return nn.Embedding(spec.vocabulary, spec.width_in)
    if spec.words is None:
        raise ConfigError("ngram_embedding needs the words of the vocabulary: give words=tokenizer.tokens")
    return NgramEmbedding(spec.words, spec.width_in)


def drop_words(x: Tensor, tokens: Tensor, p: float, vocabulary: int, replacement: Tensor) -> Tensor:
    """Replace whole words, each at all its places in the batch, by a vector [D]. Not by zero: where a row begins with a
    dropped word all layers would see zero, and the gradient of a norm is unbounded there.
    [B, T, D], [B, T] -> [B, T, D]"""
    dropped = torch.rand(vocabulary, device=x.device) < p
    return torch.where(dropped[tokens][..., None], replacement.to(x.dtype), x)
