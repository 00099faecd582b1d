"""Text encoder: embedder, backbone, pooling and, where there are classes, a head. With attention layers it has the form
of BERT (Devlin et al., 2019)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.base import DROPOUTS, Span
from anaphor.models.backbone import Backbone, Block
from anaphor.models.embedder import TextEmbedder
from anaphor.models.head import Head
from anaphor.models.initialize import INIT_SCHEMES
from anaphor.models.text_spec import TextEncoderSpec

POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}


class TextEncoder(nn.Module):
    """Tokens in, logits of classes out: `model(tokens, lengths)`, [B, T] -> [B, classes]. Without classes it gives the
    pooled hidden states [B, D]."""

    def __init__(self, spec: TextEncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedder = TextEmbedder(spec)
        self.layers = Backbone(spec.blocks(), spec.width_in, norm=spec.norm == "before")
        width = self.layers.width_out
        self.pooler = None if spec.pooler == "none" else nn.Linear(width, width)
        self.head = None if spec.classes is None else Head(width, spec.classes, spec.head_bias, tied_to=None)
        self.dropout, self.drop = spec.output_dropout, DROPOUTS[spec.dropout_kind]
        limits = [limit for limit in (self.embedder.max_positions, self.layers.max_positions) if limit is not None]
        self.max_positions = min(limits, default=None)
        """Maximum number of positions; None means unbounded."""
        INIT_SCHEMES[spec.init_scheme](self)

    @property
    def blocks(self) -> list[Block]:
        """The layers, from the first to the last."""
        return self.layers.blocks

    @property
    def device(self) -> torch.device:
        """Device of its weights."""
        return self.embedder.embedding.weight.device

    def count_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def compute_hidden_states(
        self, tokens: Tensor, lengths: Tensor | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """Hidden states of the last layer, one vector for each token. [B, T] -> [B, T, D]"""
        return self._compute_hidden_states(tokens, token_types, self._span(tokens, lengths))

    def pool_hidden_states(
        self, tokens: Tensor, lengths: Tensor | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """Hidden states of whole texts, which the head reads. [B, T] -> [B, D]"""
        span = self._span(tokens, lengths)
        if self.spec.pooling == "cls":  # the others are not read
            x = self.layers.forward_first(self.embedder(tokens, span, token_types), 1, span)
        else:
            x = self._compute_hidden_states(tokens, token_types, span)
        pooled = pool(x, self.spec.pooling, span)
        return pooled if self.pooler is None else POOLER_ACTIVATIONS[self.spec.pooler](self.pooler(pooled))

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, token_types: Tensor | None = None) -> Tensor:
        """`lengths` [B] are those of rows with padding, `token_types` [B, T] all of the first type if not given."""
        x = self.pool_hidden_states(tokens, lengths, token_types)
        if self.head is None:
            return x
        if self.training and self.dropout:
            x = self.drop(x, self.dropout)
        logits: Tensor = self.head(x)
        return logits

    def _span(self, tokens: Tensor, lengths: Tensor | None) -> Span:
        self.embedder.check_tokens(tokens)
        if not tokens.shape[1]:
            raise ConfigError("there are no tokens: a text has at least one")
        span = Span.whole(tokens, lengths)
        self.embedder.check_positions(span, fresh=True)
        return span

    def _compute_hidden_states(self, tokens: Tensor, token_types: Tensor | None, span: Span) -> Tensor:
        x: Tensor = self.layers(self.embedder(tokens, span, token_types), None, span)[0]
        return x


def pool(x: Tensor, pooling: str, span: Span) -> Tensor:
    """One vector for each row, zero for a row without tokens. [B, T, D] -> [B, D]"""
    if pooling == "mean":
        if not span.has_padding:
            return x.mean(1)
        return span.zero_padding(x).sum(1) / span.lengths.clamp(min=1)[:, None].to(x.dtype)
    if pooling == "last" and span.has_padding:
        index = (span.lengths - 1).clamp(min=0)
        row = x.gather(1, index[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
    else:
        row = x[:, 0 if pooling == "cls" else -1]
    return row.masked_fill((span.lengths == 0)[:, None], 0) if span.has_padding else row
