"""Language model: embedder, backbone, head. Tokens and a state in, logits and a state out, for any number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.base import DROPOUTS, Span
from anaphor.models.backbone import Backbone, Block
from anaphor.models.embedder import TokenEmbedder
from anaphor.models.embedding import Embedding
from anaphor.models.head import Head
from anaphor.models.head_wrapper import PLAIN_HEAD, HeadWrapper
from anaphor.models.initialize import INIT_SCHEMES, without_weights
from anaphor.models.language_model_spec import LanguageModelSpec
from anaphor.registry import HEADS


class ModelState(NamedTuple):
    """All that a model remembers of each row."""

    past_length: Tensor
    """[B]: number of tokens so far."""
    layers: tuple[Any, ...]
    """The private state of each block."""
    past: Any = ()
    """What the extra of the head remembers of the past; () without one."""


class TokenModel(nn.Module):
    """Embedder and backbone: tokens and a state in, hidden states and a state out. Subclasses initialize weights."""

    def __init__(self, spec: LanguageModelSpec, shared_embedding: Embedding | None = None) -> None:
        super().__init__()
        self.spec = spec
        blocks = spec.blocks()
        self.embedder = TokenEmbedder(spec, shared_embedding)
        # Named `layers`, so that a layer is `layers.0` wherever modules and taps have names.
        width_out = spec.width_in if spec.tied else None
        self.layers = Backbone(blocks, spec.width_in, norm=spec.norm == "before", width_out=width_out)
        self.dropout, self.drop = spec.output_dropout, DROPOUTS[spec.dropout_kind]
        self.head_extra: str | None = None
        """Name of the extra of the head, which is a part of the model with that name; None without one."""
        limits = [limit for limit in (self.embedder.max_positions, self.layers.max_positions) if limit is not None]
        self.max_positions = min(limits, default=None)
        """Maximum number of positions; None means unbounded."""

    @property
    def embed(self) -> Embedding:
        """The embeddings of tokens."""
        return self.embedder.embedding

    @property
    def head_wrapper(self) -> HeadWrapper:
        """What stands between the head and the predictions."""
        wrapper: HeadWrapper | None = None if self.head_extra is None else getattr(self, self.head_extra)
        return PLAIN_HEAD if wrapper is None else wrapper

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
        return self.layers.state_grows

    def state_bytes(self, tokens: int, source_tokens: int = 0) -> int:
        """Bytes of one row's state after so many tokens, with a source of so many."""
        own = torch.long.itemsize + self.head_wrapper.state_bytes()
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
        past = self.head_wrapper.initial_state(rows)
        return ModelState(torch.zeros(rows, dtype=torch.long, device=like.device), layers, past)

    def compute_hidden_states(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """The head's input, one vector for each token. [B, T] -> [B, T, D]"""
        self.embedder.check_tokens(tokens)
        if state is not None and not isinstance(state, ModelState):
            raise ConfigError(f"the state of a model is a ModelState, but {type(state).__name__} was given")
        if state is not None and len(state.past_length) != len(tokens):
            raise ConfigError(f"state has {len(state.past_length)} rows, but there are {len(tokens)} rows of tokens")
        fresh = state is None
        if state is None:
            state = self.initial_state(len(tokens))
        span = Span.after(state.past_length, tokens.shape[1], lengths)
        self.embedder.check_positions(span, fresh)
        x, layers = self.layers(self.embedder(tokens, span), state.layers, span)
        past = self.head_wrapper.extend(state.past, x, tokens, span)
        if self.training and self.dropout:
            x = self.drop(x, self.dropout)
        return x, ModelState(span.following, layers, past)


class LanguageModel(TokenModel):
    """Predicts the next token. `model(tokens, state)` continues from the state; no state means a fresh start."""

    def __init__(self, spec: LanguageModelSpec) -> None:
        super().__init__(spec)
        width = spec.widths_by_layer[-1]
        self.head = Head(width, spec.vocabulary, spec.head_bias, self.embed if spec.tied else None)
        INIT_SCHEMES[spec.init_scheme](self)
        # After the others, whose random numbers are those of a model without it.
        if (extra := spec.make_extra(HEADS)) is not None:
            self.wrap_head(*extra)

    def wrap_head(self, name: str, wrapper: HeadWrapper) -> None:
        """Put an extra between the head and the predictions; it becomes a part of the model with this name."""
        part = name.replace("-", "_")
        if not isinstance(wrapper, HeadWrapper):
            raise ConfigError(f"head {name!r} is a {type(wrapper).__name__}, not an anaphor.models.HeadWrapper")
        if hasattr(self, part) or not part.isidentifier():
            raise ConfigError(f"head {name!r}: a part of a model cannot have this name, choose another")
        self.add_module(part, wrapper)
        self.head_extra = part

    @contextmanager
    def without_head_wrapper(self) -> Iterator[None]:
        """Inside the block the model is as without the extra of its head, and does not have its weights."""
        wrapper, name = self.head_wrapper, self.head_extra
        assert name is not None, "the head has an extra"
        self.add_module(name, None)
        try:
            yield
        finally:
            self.add_module(name, wrapper)

    def head_metadata(self) -> dict[str, Any]:
        """What the signature of a score says of the extra of the head: "off" where it is not used."""
        if self.head_extra is not None and self.head_wrapper is PLAIN_HEAD:
            return {self.head_extra: "off"}
        return self.head_wrapper.metadata()

    def predict(self, x: Tensor, state: ModelState) -> Tensor:
        """Logits of the next token from the hidden states of the newest tokens and the state after them; an extra of
        the head may give log-probabilities. [B, T, D] -> [B, T, V]"""
        return self.head_wrapper.predict(self.head(x), state.past)

    def predict_next(self, x: Tensor, state: ModelState) -> Tensor:
        """The same after the last token only. [B, D] -> [B, V]"""
        return self.head_wrapper.predict_next(self.head(x), state.past)

    def cross_entropy(self, x: Tensor, targets: Tensor, state: ModelState) -> Tensor:
        """Sum of the losses of the newest tokens, from their hidden states and the state after them."""
        return self.head_wrapper.cross_entropy(x, self.head, targets, state.past)

    def cross_entropy_by_token(self, x: Tensor, targets: Tensor, state: ModelState) -> tuple[Tensor, Tensor]:
        """The same sum, and the loss of each token without gradient, zero where there is no target [B, T]: the logits
        are computed once for both."""
        return self.head_wrapper.cross_entropy_by_token(x, self.head, targets, state.past)

    def token_losses(self, x: Tensor, targets: Tensor, state: ModelState) -> Tensor:
        """The loss of each of the newest tokens, zero where there is no target. [B, T, D], [B, T] -> [B, T]"""
        return self.head_wrapper.token_losses(x, self.head, targets, state.past)

    def share_embeddings(self) -> AbstractContextManager[None]:
        """Inside the block embeddings that are computed from other weights are computed once, for embedder and head."""
        return self.embed.share_table()

    def fold_embeddings(self) -> None:
        """Replace embeddings that are computed from other weights by their values, which is faster without training."""
        self.embedder.embedding = self.embed.fold()
        if self.spec.tied:
            self.head.tie(self.embed)

    def forward(
        self, tokens: Tensor, state: ModelState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """[B, T] -> logits of the next token [B, T, V]. `lengths` [B] are those of rows with padding."""
        x, state = self.compute_hidden_states(tokens, state, lengths)
        return self.predict(x, state), state


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
    max_positions: int | None
    """Maximum number of positions; None means unbounded."""


def summarize(spec: LanguageModelSpec, tokens: int = 1024) -> Summary:
    """The summary of a spec's model, built without memory for its weights."""
    with without_weights():
        model = spec.build()
    return Summary(
        layers=spec.mixers_by_layer,
        width=spec.widths_by_layer[-1],
        parameters=model.count_parameters(),
        state_bytes=model.state_bytes(tokens),
        tokens=tokens,
        state_grows=model.state_grows,
        max_positions=model.max_positions,
    )
