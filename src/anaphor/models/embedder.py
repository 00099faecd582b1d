"""Embedders: from token ids, or from images, to the vectors that enter a backbone."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.errors import ConfigError
from anaphor.mixers.attention.position import POSITIONS, check_max_positions, inverse_frequencies, sinusoids
from anaphor.mixers.base import DROPOUTS, Span
from anaphor.mixers.layers import NORM_KINDS
from anaphor.mixers.spec import Sizes
from anaphor.models.embedding import Embedding
from anaphor.models.image_spec import ImageModelSpec, check_divides
from anaphor.models.language_model_spec import LanguageModelSpec
from anaphor.models.text_spec import TextEncoderSpec
from anaphor.precision import widest_dtype
from anaphor.registry import EMBEDDERS
from anaphor.row_draws import random_rows


class TokenEmbedder(nn.Module):
    """Embeddings, scaled, with position encoding, word dropout and dropout. [B, T] -> [B, T, D]"""

    def __init__(self, spec: LanguageModelSpec | TextEncoderSpec, shared: Embedding | None = None) -> None:
        """`shared` are the embeddings of another model, to be used here too."""
        super().__init__()
        self.spec = spec
        width = spec.width_in
        self.embedding: Embedding
        if shared is None:
            self.embedding = build_embedding(spec)
        else:
            self.__dict__["embedding"] = shared  # not registered: it exists once, in every copy, file and device
        self.dropped_word = nn.Embedding(1, width) if spec.word_dropout else None
        scheme = POSITIONS[spec.embedder_position]
        rows = spec.max_positions + spec.position_offset
        self.position = scheme(Sizes(width, heads=1, head_width=width, max_positions=rows))
        # A fixed encoding has values of size 1; embeddings are initialized small and scaled up to that.
        self.scale = math.sqrt(width) if self.position.scales_embedding else 1.0
        self.max_positions = spec.max_positions if self.position.has_limit else None
        """Maximum number of positions; None means unbounded."""

    @property
    def owns_embedding(self) -> bool:
        """Whether the embeddings are its own parameters."""
        return "embedding" in self._modules

    def forward(self, tokens: Tensor, span: Span) -> Tensor:
        return self.drop(self.embed(tokens, span))

    def embed(self, tokens: Tensor, span: Span) -> Tensor:
        """Embeddings with position encoding and word dropout. [B, T] -> [B, T, D]"""
        x: Tensor = self.embedding(tokens)
        if self.training and self.dropped_word is not None:
            x = drop_words(x, tokens, self.spec.word_dropout, self.spec.vocabulary, self.dropped_word.weight[0])
        # Operations that change nothing would be a part of each step of generation.
        x = x if self.scale == 1 else self.scale * x
        offset = self.spec.position_offset
        encoding = self.position.embed(span.positions + offset if offset else span.positions)
        return x if encoding is None else x + encoding.to(x.dtype)

    def drop(self, x: Tensor) -> Tensor:
        """Dropout of the embeddings, in training."""
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
        if self.max_positions is None:  # layers with limits check them
            return
        if fresh and not span.has_padding:
            check_max_positions(span.count, self.max_positions)
        elif span.past_length.device.type == "cpu" and len(span.past_length) and not torch.compiler.is_compiling():
            check_max_positions(int(span.following.max()), self.max_positions)


class TextEmbedder(TokenEmbedder):
    """The same with token types and a norm where wanted. [B, T] -> [B, T, D]"""

    spec: TextEncoderSpec

    def __init__(self, spec: TextEncoderSpec) -> None:
        super().__init__(spec)
        width = spec.width_in
        self.token_types = nn.Embedding(spec.token_types, width) if spec.token_types else None
        self.norm = NORM_KINDS[spec.norm_kind](width, spec.norm_eps) if spec.embedding_norm else None

    def forward(self, tokens: Tensor, span: Span, token_types: Tensor | None = None) -> Tensor:
        """`token_types` [B, T]; None means that all are of the first type."""
        x = self.embed(tokens, span)
        if self.token_types is not None:
            x = x + (self.token_types.weight[0] if token_types is None else self.token_types(token_types))
        elif token_types is not None:
            raise ConfigError("the model has no token types: do not give any, or set the option token_types")
        return self.drop(x if self.norm is None else self.norm(x))


class PatchEmbedder(nn.Module):
    """Patches of an image, each by the same linear map, with position encoding, class token, registers and dropout.
    [B, C, H, W] -> [B, T, D]"""

    def __init__(self, spec: ImageModelSpec) -> None:
        super().__init__()
        self.spec = spec
        width, patch = spec.width_in, spec.patch
        self.patches = nn.Conv2d(spec.channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width)) if spec.pooled == "class" else None
        self.registers = nn.Parameter(torch.zeros(1, spec.registers, width)) if spec.registers else None
        for token in (self.class_token, self.registers):
            if token is not None:
                nn.init.normal_(token, std=0.02)
        # As in ViT the class token has a position of its own, the first one.
        learned = spec.embedder_position == "learned"
        self.position = nn.Embedding(spec.grid**2 + (self.class_token is not None), width) if learned else None

    def forward(self, images: Tensor) -> Tensor:
        self.check_images(images)
        x = self.patches(images)  # [B, D, rows, columns]
        rows, columns = x.shape[-2:]
        x = x.flatten(2).mT
        first: Tensor | None = self.class_token
        if self.position is not None:
            if first is not None:
                first = first + self.position.weight[0]
            x = x + self.learned_positions(rows, columns).to(x.dtype)
        elif self.spec.embedder_position == "sinusoidal":
            x = x + self.sinusoidal_positions(rows, columns).to(x.dtype)
        extra = [token.to(x.dtype).expand(len(x), -1, -1) for token in (first, self.registers) if token is not None]
        x = torch.cat([*extra, x], dim=1) if extra else x
        p = self.spec.dropout
        return DROPOUTS[self.spec.dropout_kind](x, p) if self.training and p else x

    def learned_positions(self, rows: int, columns: int) -> Tensor:
        """Those of the patches, interpolated (bicubic) for another grid than that of training. [rows · columns, D]"""
        assert self.position is not None, "positions are learned"
        grid, table = self.spec.grid, self.position.weight[-(self.spec.grid**2) :]
        if (rows, columns) == (grid, grid):
            return table
        picture = table.mT.view(1, -1, grid, grid)
        return F.interpolate(picture, (rows, columns), mode="bicubic", align_corners=False).flatten(2)[0].mT

    def sinusoidal_positions(self, rows: int, columns: int) -> Tensor:
        """Half of the features encode the row and half the column, in units of the grid of training.
        [rows · columns, D]"""
        half, device = self.spec.width_in // 2, self.patches.weight.device
        inv_freq = inverse_frequencies(torch.arange(half, device=device, dtype=widest_dtype(device)) // 2 * 2 / half)
        along = [
            sinusoids(
                (torch.arange(count, device=device, dtype=widest_dtype(device)) + 0.5) * self.spec.grid / count,
                inv_freq,
            )
            for count in (rows, columns)
        ]
        by_row, by_column = along[0][:, None].expand(-1, columns, -1), along[1][None].expand(rows, -1, -1)
        return torch.cat((by_row, by_column), dim=-1).flatten(0, 1)

    def check_images(self, images: Tensor) -> None:
        """Raise an error for what are no images that the patches tile."""
        spec = self.spec
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != spec.channels:
            given = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise ConfigError(f"images must be a tensor [rows, {spec.channels}, height, width], but they are {given}")
        if not images.is_floating_point():
            raise ConfigError(f"images must be floating point, normalized as in training, but they are {images.dtype}")
        for side in images.shape[2:]:
            check_divides(spec.patch, side)


def build_embedding(spec: LanguageModelSpec | TextEncoderSpec) -> Embedding:
    """A table for all tokens: that of an extra, where the model has one."""
    found = spec.make_extra(EMBEDDERS) if isinstance(spec, LanguageModelSpec) else None
    if found is None:
        return Embedding(spec.vocabulary, spec.width_in)
    name, embedding = found
    if not isinstance(embedding, Embedding):
        raise ConfigError(f"embedder {name!r} returns a {type(embedding).__name__}, not an anaphor.models.Embedding")
    given, wanted = (embedding.num_embeddings, embedding.embedding_dim), (spec.vocabulary, spec.width_in)
    if given != wanted:
        raise ConfigError(f"embedder {name!r} has {given} tokens and dimensions, and the model needs {wanted}")
    return embedding


def drop_words(x: Tensor, tokens: Tensor, p: float, vocabulary: int, replacement: Tensor) -> Tensor:
    """Replace whole words, each at all its places in the batch, by a vector [D]. Not by zero: where a row begins with a
    dropped word all layers would see zero, and the gradient of a norm is unbounded there.
    [B, T, D], [B, T] -> [B, T, D]"""
    with random_rows(None):
        dropped = torch.rand(vocabulary, device=x.device) < p
    return torch.where(dropped[tokens][..., None], replacement.to(x.dtype), x)
