"""Decoding: steps of one token each, after a state; on a GPU as a CUDA graph, whose state has fixed addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.cuda_graphs import allows_capture
from anaphor.mixers.attention.layer import Attention, KVCache
from anaphor.mixers.base import FixedBuffer, Mixer, map_state, tensors_of
from anaphor.models.backbone import mixer_state, replace_mixer_state
from anaphor.models.head_wrapper import PLAIN_HEAD
from anaphor.models.language_model import LanguageModel, ModelState

WARM_UP = 2
"""Plain steps before one is captured: libraries initialize in the first."""
BLOCK = 64
"""Sizes of the memory for keys and values are multiples of this; kernels want aligned masks."""


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


@dataclass(frozen=True)
class Slots:
    """The slots for keys and values in layers that keep equally many tokens: one buffer of positions, and one mask made
    from it, serve them all."""

    positions: FixedBuffer
    is_ring: bool
    """Whether the next token after the last slot takes the first one, whose token is out of reach by then."""

    def advance(self) -> None:
        """Go to the slot of the next token."""
        self.positions.index.add_(1)
        if self.is_ring:
            self.positions.index.remainder_(len(self.positions))


class FixedDecoding(Decoding):
    """The same with a state whose shapes and addresses do not change from step to step: keys and values have memory of
    a fixed size, in which unused entries are masked, and the new state is copied to where the old one was. Where a
    layer keeps a number of tokens, its memory has room for these and never grows."""

    def __init__(self, model: LanguageModel, state: ModelState, steps: int) -> None:
        super().__init__(model, state)
        self.kept_tokens = [
            mixer.kept_tokens if isinstance(mixer, Attention) else None for mixer in model.layers.mixers
        ]
        caches = zip(map(mixer_state, state.layers), self.kept_tokens, strict=True)
        growing = [len(cache.keys_values) for cache, keep in caches if isinstance(cache, KVCache) and keep is None]
        self.used = max(growing, default=0)
        size = self.used + steps
        # Twice what is there, so that a token is copied a constant number of times however long the text becomes.
        # A model without keys and values needs no memory for tokens, and never more.
        self.allocate(min(size, 2 * max(self.used, 4 * BLOCK)) if growing else size)

    def allocate(self, size: int) -> None:
        """Memory for at least so many keys and values, with those of the state."""
        self.size = _round_up(size)
        self.slots: dict[Any, Slots] = {}
        past_length = self.state.past_length.clone()
        layers = tuple(map(self._fix, self.state.layers, self.kept_tokens))
        self.state = ModelState(past_length, layers)
        self.tokens = torch.zeros_like(past_length)
        self.maxima = torch.empty(0)

    def _fix(self, layer: Any, keep: int | None) -> Any:
        """The state of a layer at fixed addresses."""
        cache = mixer_state(layer)
        if not isinstance(cache, KVCache):
            return _clone(layer)
        if keep is not None and isinstance(cache.positions, FixedBuffer):  # it has all the memory that it needs
            self.slots.setdefault(id(cache.positions), Slots(cache.positions, is_ring=True))
            return layer
        used = len(cache.keys_values) if keep is not None else self.used
        key = (keep, id(cache.positions))
        if key not in self.slots:
            past_length = self.state.past_length
            index = torch.tensor([used], device=past_length.device)
            size = self.size
            if keep is not None:
                # In rows of different lengths the newest tokens may be in the first slots, which are taken again first.
                size = _round_up(keep + (1 if cache.positions is None else used))
            self.slots[key] = Slots(cache.fixed_positions(used, size, past_length, index), is_ring=keep is not None)
        fixed = cache.with_positions(used, self.slots[key].positions)
        return replace_mixer_state(_clone(replace_mixer_state(layer, ())), fixed)

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
        for slots in self.slots.values():
            slots.advance()
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


def _round_up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _clone(state: Any) -> Any:
    """The state of a layer without keys and values, at addresses of its own."""
    return map_state(torch.clone, state)


def can_capture(model: LanguageModel) -> bool:
    """Whether a step has fixed shapes and nothing watches it: in a replay hooks are not called."""
    if model.head_wrapper is not PLAIN_HEAD or any(block.needs_source for block in model.blocks):
        return False
    return all(map(has_fixed_state, model.layers.mixers)) and allows_capture(model) and not has_hooks(model)


def has_fixed_state(mixer: Mixer) -> bool:
    """Whether the shapes of a mixer's state stay as they are, or are those of keys and values in a memory of fixed
    size."""
    if isinstance(mixer, Attention):
        return type(mixer) is Attention
    if not mixer.streams or mixer.spec.grows:
        return False
    weight = next(mixer.parameters(), torch.empty(0))
    return _is_of_tensors(mixer.initial_state(weight.new_zeros(1, 0, mixer.width_in)))


def _is_of_tensors(state: Any) -> bool:
    """Whether a state is a tensor or a tuple of such states, with nothing that grows in it."""
    return isinstance(state, Tensor) or (isinstance(state, tuple) and all(map(_is_of_tensors, state)))


def has_hooks(model: nn.Module) -> bool:
    """Whether something watches its modules. A CUDA graph would not call it."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
