"""Language model: embedder, backbone, head. Tokens and a state in, logits and a state out, for any number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.attention.layer import Attention, KVCache
from anaphor.mixers.base import DROPOUTS, FixedBuffer, Span, tensors_of
from anaphor.mixers.linear import QRNN, Linear
from anaphor.mixers.recurrent import Recurrent
from anaphor.models.backbone import Backbone, Block
from anaphor.models.embedder import TokenEmbedder
from anaphor.models.embedding import Embedding
from anaphor.models.head import Head
from anaphor.models.head_wrapper import PLAIN_HEAD, HeadWrapper
from anaphor.models.initialize import INIT_SCHEMES, without_weights
from anaphor.models.language_model_spec import LanguageModelSpec
from anaphor.registry import HEADS

WARM_UP = 2
"""Plain steps before one is captured: libraries initialize in the first."""
BLOCK = 64
"""Sizes of the memory for keys and values are multiples of this; kernels want aligned masks."""


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


class Decoding:
    """Steps of one token each, after a state, which must not be used elsewhere afterwards."""

    def __init__(self, model: LanguageModel, state: ModelState) -> None:
        self.model, self.state = model, state

    @property
    def lag(self) -> int:
        """Number of greedy steps that may be started, in the same stream, before the tokens of the one before are
        read."""
        return 0

    def __call__(self, tokens: Tensor) -> Tensor:
        """Process one token of each row; logits of the next one. [B] -> [B, V]"""
        x, self.state = self.model.compute_hidden_states(tokens[:, None], self.state)
        return self.model.predict_next(x[:, -1], self.state)

    def greedy(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The same; the most likely next token and its logit, which is finite unless the model is damaged. The next
        step may overwrite both. [B] -> [B], [B]"""
        maxima, chosen = self(tokens).max(-1)
        return chosen, maxima


class FixedDecoding(Decoding):
    """The same with a state whose shapes and addresses do not change from step to step: keys and values have memory of
    a fixed size, in which unused entries are masked, and the new state is copied to where the old one was."""

    def __init__(self, model: LanguageModel, state: ModelState, steps: int) -> None:
        super().__init__(model, state)
        self.used = max((len(cache.keys_values) for cache in state.layers if isinstance(cache, KVCache)), default=0)
        size = self.used + steps
        # Twice what is there, so that a token is copied a constant number of times however long the text becomes.
        # A model without keys and values needs no memory for tokens, and never more.
        self.allocate(min(size, 2 * max(self.used, 4 * BLOCK)) if self.used else size)

    def allocate(self, size: int) -> None:
        """Memory for at least so many keys and values, with those of the state."""
        self.size = -(-size // BLOCK) * BLOCK
        past_length = self.state.past_length.clone()
        index = torch.tensor([self.used], device=past_length.device)
        caches = [layer for layer in self.state.layers if isinstance(layer, KVCache)]
        # All layers have seen the same tokens: one buffer of positions, and one mask made from it, serve them all.
        positions = caches[0].fixed_positions(self.used, self.size, past_length, index) if caches else None
        self.index = index
        self.state = ModelState(past_length, tuple(_fix(layer, self.used, positions) for layer in self.state.layers))
        self.tokens = torch.zeros_like(past_length)
        self.maxima = torch.empty(0)

    def __call__(self, tokens: Tensor) -> Tensor:
        if self.used == self.size:
            self.allocate(2 * self.size)
        self.used += 1
        if tokens is not self.tokens:
            self.tokens.copy_(tokens)
        return self.step()

    def greedy(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read one token for each row. Returns the most likely next token of each, and its logit. [B], [B]"""
        self(tokens)
        return self.tokens, self.maxima

    def step(self) -> Tensor:
        """Read `self.tokens`. Returns the logits of the next token, [B, V]; state and tokens are updated in place."""
        x, after = self.model.compute_hidden_states(self.tokens[:, None], self.state)
        for old, new in zip(tensors_of(self.state), tensors_of(after), strict=True):
            if old is not new:  # keys, values and their positions were written in place
                old.copy_(new)
        self.index += 1
        logits = self.model.predict_next(x[:, -1], after)
        self.maxima = logits.new_empty(len(logits))
        torch.max(logits, -1, out=(self.maxima, self.tokens))  # a greedy step finds its input in place
        return logits


class CUDAGraphDecoding(FixedDecoding):
    """The same as a CUDA graph: launching the kernels of a step from Python takes many times longer than running them.
    `Decoding` is the slow twin."""

    def __init__(self, model: LanguageModel, state: ModelState, steps: int) -> None:
        super().__init__(model, state, steps)
        self.setup()

    def setup(self) -> None:
        self.stream = torch.cuda.Stream()

    def allocate(self, size: int) -> None:
        super().allocate(size)
        self.plain_steps = 0  # kernels of the new shape may have to be loaded, which cannot be recorded
        self.replay: Callable[[], None] | None = None
        self.logits = torch.empty(0)

    @property
    def lag(self) -> int:
        # Before the memory is enlarged the graph must have finished, for it is given up.
        return 1 if self.replay is not None and self.used < self.size else 0

    def step(self) -> Tensor:
        if self.plain_steps < WARM_UP:
            self.plain_steps += 1
            return self.warm_up()
        if self.replay is None:
            self.replay, self.logits = self.record()
        self.replay()
        return self.logits

    def warm_up(self) -> Tensor:
        """A plain step on the stream that will record: what libraries set up there must not be recorded."""
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            logits = super().step()
        here.wait_stream(self.stream)
        return logits

    def record(self) -> tuple[Callable[[], None], Tensor]:
        """A function that does the work of a step, which is not done yet, and the logits that it writes."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            logits = super().step()
        return graph.replay, logits


def _fix(state: Any, used: int, positions: FixedBuffer | None) -> Any:
    """The state of a layer at fixed addresses."""
    if isinstance(state, KVCache):
        assert positions is not None, "keys have positions"
        return state.with_positions(used, positions)
    if isinstance(state, Tensor):
        return state.clone()
    parts = [_fix(part, used, positions) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def can_capture(model: LanguageModel) -> bool:
    """Whether a step has fixed shapes and nothing watches it: in a replay hooks are not called."""
    if model.head_wrapper is not PLAIN_HEAD or any(block.needs_source for block in model.blocks):
        return False
    for mixer in model.layers.mixers:
        # A bounded memory drops entries, a number of them that the device knows only.
        is_fixed = isinstance(mixer, Recurrent | QRNN | Linear) or (
            type(mixer) is Attention and mixer.spec.memory is None
        )
        if not is_fixed:
            return False
    return not has_hooks(model)


def has_hooks(model: nn.Module) -> bool:
    """Whether something watches its modules. A CUDA graph would not call it."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


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
    with without_weights():
        model = spec.build()
    return Summary(
        layers=spec.mixers_by_layer,
        width=spec.widths_by_layer[-1],
        parameters=model.count_parameters(),
        state_bytes=model.state_bytes(tokens),
        tokens=tokens,
        state_grows=model.state_grows,
        limit=model.max_positions,
    )
