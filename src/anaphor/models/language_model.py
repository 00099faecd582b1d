"""Language model: embedder, backbone, head. Tokens and a state in, logits and a state out, for any number of tokens."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.base import DROPOUTS, Span
from anaphor.models.backbone import Backbone, Block
from anaphor.models.embedder import TokenEmbedder
from anaphor.models.head import Head, cross_entropy, token_losses
from anaphor.models.initialize import INIT_SCHEMES
from anaphor.models.ngram_embedding import NgramEmbedding
from anaphor.models.spec import LanguageModelSpec

if TYPE_CHECKING:
    from anaphor.models.pointer import Pointer


class ModelState(NamedTuple):
    """All that a model remembers of each row."""

    seen: Tensor
    """[B]: number of tokens so far."""
    layers: tuple[Any, ...]
    """The private state of each block."""
    past: Any = ()
    """State of the pointer; () without one."""


class TokenModel(nn.Module):
    """Embedder and backbone: tokens and a state in, features and a state out. Subclasses initialize the weights."""

    def __init__(self, spec: LanguageModelSpec, shared_embedding: nn.Embedding | None = None) -> None:
        super().__init__()
        self.spec = spec
        blocks = spec.blocks()
        self.embedder = TokenEmbedder(spec, shared_embedding)
        # Named `layers`, so that a layer is `layers.0` wherever modules and taps have names.
        self.layers = Backbone(
            blocks,
            spec.width_in,
            norm=spec.norm == "before",
            width_out=spec.width_in if spec.tied else None,
        )
        self.dropout, self.drop = spec.output_dropout, DROPOUTS[spec.dropout_kind]
        self.pointer: Pointer | None = None
        limits = [limit for limit in (self.embedder.limit, self.layers.limit) if limit is not None]
        self.limit = min(limits, default=None)
        """Maximum number of positions; None means unbounded."""

    @property
    def embed(self) -> nn.Embedding:
        """The embeddings of tokens."""
        return self.embedder.embedding

    @property
    def blocks(self) -> list[Block]:
        """The layers, from the first to the last."""
        return self.layers.blocks

    @property
    def device(self) -> torch.device:
        """Device of its weights."""
        return self.embed.weight.device

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        return self.layers.causal

    @property
    def state_grows(self) -> bool:
        """Whether the state grows with every token, without bound."""
        # Of new specs, not of the layers: checking a relative position encoding draws random numbers, and the losses of
        # a seed depend on how many were drawn before training.
        return any(block.mixer.grows for block in self.spec.blocks())

    def state_bytes(self, tokens: int, source_tokens: int = 0) -> int:
        """Bytes of one row's state after so many tokens, with a source of so many."""
        own = torch.long.itemsize if self.pointer is None else torch.long.itemsize + self.pointer.state_bytes()
        return own + self.layers.state_bytes(tokens, source_tokens)

    def count_parameters(self) -> int:
        """Number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def initial_state(
        self, rows: int, source: Tensor | None = None, source_lengths: Tensor | None = None
    ) -> ModelState:
        """State before the first token. `source` [B, S, D] is for layers that attend to one."""
        like = self.embed.weight.new_zeros(rows, 0, self.embed.embedding_dim)
        layers = self.layers.initial_state(like, source, source_lengths)
        past = () if self.pointer is None else self.pointer.initial_state(rows)
        return ModelState(torch.zeros(rows, dtype=torch.long, device=like.device), layers, past)

    def features(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """The head's input, one vector for each token. [B, T] -> [B, T, D]"""
        self.embedder.check_tokens(tokens)
        if state is not None and not isinstance(state, ModelState):
            raise ConfigError(f"the state of a model is a ModelState, but {type(state).__name__} was given")
        if state is not None and len(state.seen) != len(tokens):
            raise ConfigError(f"state has {len(state.seen)} rows, but there are {len(tokens)} rows of tokens")
        fresh = state is None
        if state is None:
            state = self.initial_state(len(tokens))
        span = Span.after(state.seen, tokens.shape[1], lengths)
        self.embedder.check_positions(span, fresh)
        x, layers = self.layers(self.embedder(tokens, span), state.layers, span)
        past = () if self.pointer is None else self.pointer.extend(state.past, x, tokens, span)
        if self.training and self.dropout:
            x = self.drop(x, self.dropout)
        return x, ModelState(state.seen + span.lengths, layers, past)


class LanguageModel(TokenModel):
    """Predicts the next token. `model(tokens, state)` continues from the state; no state means a fresh start."""

    def __init__(self, spec: LanguageModelSpec) -> None:
        super().__init__(spec)
        width = spec.widths_by_layer[-1]
        self.head = Head(width, spec.vocabulary, spec.head_bias, self.embed if spec.tied else None)
        INIT_SCHEMES[spec.init_scheme](self)
        if spec.pointer_memory is not None:  # after the others, whose random numbers are those of a model without it
            self.pointer = build_pointer(spec)

    def predict(self, x: Tensor, state: ModelState) -> Tensor:
        """Logits of the next token from the features of the newest tokens and the state after them; with a pointer
        log-probabilities. [B, T, D] -> [B, T, V]"""
        logits: Tensor = self.head(x)
        return logits if self.pointer is None else self.pointer.mix(logits, state.past)

    def predict_next(self, x: Tensor, state: ModelState) -> Tensor:
        """The same after the last token only. [B, D] -> [B, V]"""
        logits: Tensor = self.head(x)
        return logits if self.pointer is None else self.pointer.mix(logits[:, None], state.past)[:, -1]

    def cross_entropy(self, x: Tensor, targets: Tensor, state: ModelState) -> Tensor:
        """Sum of the losses of the newest tokens, from their features and the state after them."""
        if self.pointer is None:
            return cross_entropy(x, self.head, targets)
        return self.pointer.cross_entropy(x, self.head, targets, state.past)

    def token_losses(self, x: Tensor, targets: Tensor, state: ModelState) -> Tensor:
        """The loss of each of the newest tokens, zero where there is no target. [B, T, D], [B, T] -> [B, T]"""
        losses = token_losses(x, self.head, targets)
        return losses if self.pointer is None else self.pointer.mix_losses(losses, targets, state.past).detach()

    def share_embeddings(self) -> AbstractContextManager[None]:
        """Inside the block embeddings with n-grams are computed once, for embedder and head."""
        return self.embed.share_table() if isinstance(self.embed, NgramEmbedding) else nullcontext()

    def fold_ngrams(self) -> None:
        """Replace the embeddings of words and n-grams by their sum, which is faster without training."""
        if isinstance(self.embed, NgramEmbedding):
            self.embedder.embedding = self.embed.fold()
            if self.spec.tied:
                self.head.tie(self.embed)

    def forward(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """[B, T] -> logits of the next token [B, T, V]. `lengths` [B] are those of rows with padding."""
        x, state = self.features(tokens, state, lengths)
        return self.predict(x, state), state


def build_pointer(spec: LanguageModelSpec) -> Pointer:
    from anaphor.models.pointer import Pointer

    width = spec.width_in if spec.tied else spec.widths_by_layer[-1]
    assert spec.pointer_memory is not None, "there is a pointer"
    return Pointer(width, spec.pointer_memory, spec.pointer_eval_memory, spec.pointer_eval_bias)


@dataclass(frozen=True)
class Summary:
    """The size of a model and of its state."""

    layers: tuple[str, ...]
    """The mixer of every layer."""
    width: int
    """Width of the last layer."""
    parameters: int
    """Number of parameters."""
    state_bytes: int
    """Bytes of one row's state after `tokens` tokens."""
    tokens: int
    state_grows: bool
    """Whether the state grows with every token, without bound."""
    limit: int | None
    """Maximum number of positions; None means unbounded."""


def summarize(spec: LanguageModelSpec, tokens: int = 1024) -> Summary:
    """The summary of a spec's model, built without memory for its weights."""
    with torch.device("meta"):
        model = spec.build()
    return Summary(
        layers=spec.mixers_by_layer,
        width=spec.widths_by_layer[-1],
        parameters=model.count_parameters(),
        state_bytes=model.state_bytes(tokens),
        tokens=tokens,
        state_grows=model.state_grows,
        limit=model.limit,
    )
