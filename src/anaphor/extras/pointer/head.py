"""Pointer beside the head: copies words of the recent past (pointer sentinel mixture model, Merity et al., 2017).

Attention over the hidden states of earlier tokens gives its weights to the tokens that followed them. A sentinel takes
part in the softmax; its weight is the share of the softmax over the vocabulary. Nothing is trained while a text is
scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.errors import ConfigError
from anaphor.extras.pointer import PointerSettings
from anaphor.mixers.base import KVBuffer, Span
from anaphor.models.cross_entropy import IGNORE_INDEX, cross_entropy, token_losses, widen
from anaphor.models.head import Head
from anaphor.models.head_wrapper import HeadWrapper
from anaphor.models.language_model import LanguageModel
from anaphor.models.language_model_spec import LanguageModelSpec

EMPTY = -1
MASKED = -1e9  # a score, not minus infinity: where nothing is visible, a gradient must still be a number


class Past(NamedTuple):
    """State of the pointer: earlier tokens and then those of the newest call."""

    kept_features: KVBuffer
    """[B, S, D]: hidden state of each token, before output dropout. Checkpoints have this name."""
    kept_tokens: KVBuffer
    """[B, S]: EMPTY where there is none."""
    has_padding: bool
    """Whether rows may end with empty entries."""

    @staticmethod
    def of(hidden_states: Tensor, tokens: Tensor, has_padding: bool = False) -> Past:
        return Past(KVBuffer(hidden_states, 1), KVBuffer(tokens, 1), has_padding)

    @property
    def hidden_states(self) -> Tensor:
        return self.kept_features.data

    @property
    def tokens(self) -> Tensor:
        return self.kept_tokens.data


class PointerLogProbs(NamedTuple):
    """The two ways to predict each target."""

    vocabulary: Tensor
    """[B, T]: log of the share of the softmax over the vocabulary."""
    target: Tensor
    """[B, T]: log-probability that the pointer gives to the target."""

    def mix(self, losses: Tensor) -> Tensor:
        """From losses of the vocabulary alone to those of both. [B, T] -> [B, T]"""
        return -torch.logaddexp(self.vocabulary - losses, self.target)


class Pointer(HeadWrapper):
    """Scores are products of projected hidden states, plus a bias for each power of two of the distance."""

    lr_factor = 0.1
    """Factor of the learning rate of its weights: as other attention, it needs a lower one than recurrent layers."""

    def __init__(self, width: int, memory: int, eval_memory: int | None = None, eval_bias: float = 0.0) -> None:
        """`memory` tokens back is how far it looks in training, and in evaluation unless `eval_memory` is given;
        `eval_bias` is added to all scores but the sentinel's in evaluation."""
        super().__init__()
        self.train_memory, self.eval_memory, self.eval_bias = memory, eval_memory or memory, eval_bias
        inner = min(width, 256)
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(width, inner, bias=False)
        self.sentinel = nn.Linear(width, 1)
        self.distance_bias = nn.Parameter(torch.zeros(1 + math.ceil(math.log2(memory))))
        nn.init.normal_(self.query.weight, std=width**-0.5)
        with torch.no_grad():
            self.key.weight.copy_(self.query.weight)  # similar contexts match from the first step on
            self.sentinel.weight.zero_()
            # The sum over all of an untrained memory leaves most of the probability to the vocabulary.
            self.sentinel.bias.fill_(math.log(memory) + 3)

    @property
    def memory(self) -> int:
        """Number of past tokens that it sees."""
        return self.train_memory if self.training else self.eval_memory

    def metadata(self) -> dict[str, Any]:
        """Memory and bias in evaluation."""
        return {"pointer": f"{self.eval_memory}" + (f",{self.eval_bias:+g}" if self.eval_bias else "")}

    def initial_state(self, rows: int) -> Past:
        """Of full size from the first token on, so that all segments have one shape and share a CUDA graph."""
        weight = self.query.weight
        tokens = torch.full((rows, self.memory), EMPTY, device=weight.device)
        return Past.of(weight.new_zeros(rows, self.memory, weight.shape[1]), tokens)

    def extend(self, state: Past, hidden_states: Tensor, tokens: Tensor, span: Span) -> Past:
        """The past with the new tokens at its end, and no entries older than `memory`; with padding one more, for rows
        without a new token, whose last one still sees as far."""
        past = _right_aligned(state) if state.has_padding else state
        if span.has_padding:
            tokens = tokens.masked_fill(~span.valid, EMPTY)
        kept = self.memory + span.has_padding
        older, read = past.hidden_states[:, -kept:].to(hidden_states.dtype), past.tokens[:, -kept:]
        hidden_states = torch.cat((older, hidden_states), 1)
        return Past.of(hidden_states, torch.cat((read, tokens), 1), has_padding=span.has_padding)

    def predict(self, logits: Tensor, state: Past) -> Tensor:
        """Log-probabilities of the mixture."""
        scores, sentinel, total = self._scores(state, logits.shape[1])
        weights = torch.exp(scores - total[..., None])
        following = state.tokens[:, None, 1:].clamp(min=0).expand(scores.shape)
        pointed = torch.zeros_like(logits, dtype=weights.dtype).scatter_add(-1, following, weights)
        kept = torch.log_softmax(widen(logits), -1) + (sentinel - total)[..., None]
        return torch.logaddexp(kept, pointed.clamp(min=torch.finfo(pointed.dtype).tiny).log())

    def predict_next(self, logits: Tensor, state: Past) -> Tensor:
        return self.predict(logits[:, None], _right_aligned(state) if state.has_padding else state)[:, 0]

    def cross_entropy(self, hidden_states: Tensor, head: Head, targets: Tensor, state: Past) -> Tensor:
        """Sum of the losses of the mixture, and its gradient for the pointer. The logits get the gradient of a model
        without a pointer: else they would not learn words that the pointer finds, which is ahead early in training."""
        total, _ = self.cross_entropy_by_token(hidden_states, head, targets, state)
        return total

    def cross_entropy_by_token(
        self, hidden_states: Tensor, head: Head, targets: Tensor, state: Past
    ) -> tuple[Tensor, Tensor]:
        losses = widen(hidden_states.new_empty(targets.numel()))
        plain = cross_entropy(hidden_states, head, targets, token_losses=losses)
        mixed = self.mix_losses(losses.view(targets.shape), targets, state)
        return mixed.sum() + (plain - plain.detach()), mixed.detach()

    def token_losses(self, hidden_states: Tensor, head: Head, targets: Tensor, state: Past) -> Tensor:
        return self.mix_losses(token_losses(hidden_states, head, targets), targets, state).detach()

    def mix_losses(self, losses: Tensor, targets: Tensor, past: Past) -> Tensor:
        """Losses of the mixture from those of the head, zero where there is no target. [B, T] -> [B, T]"""
        return self.log_probs(past, targets).mix(losses).masked_fill(targets == IGNORE_INDEX, 0)

    def log_probs(self, past: Past, targets: Tensor) -> PointerLogProbs:
        """For the newest tokens of a past and what follows each [B, T]."""
        scores, sentinel, total = self._scores(past, targets.shape[1])
        matches = past.tokens[:, None, 1:] == targets[:, :, None]
        found = torch.logsumexp(scores.masked_fill(~matches, MASKED), -1)
        return PointerLogProbs(sentinel - total, found - total)

    def _scores(self, past: Past, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of every entry but the last for each of the newest `count` [B, T, S - 1], of the sentinel [B, T], and the log
        of the sum of all exponentials [B, T]."""
        entries = past.tokens.shape[1]
        newest = past.hidden_states[:, entries - count :]
        places = torch.arange(entries, device=newest.device)
        distance = places[entries - count :, None] - places[None, :-1]  # 1: the token that follows is the one just read
        bucket = distance.clamp(1, self.train_memory).float().log2().round().long()
        bias = F.embedding(bucket, self.distance_bias[:, None]).squeeze(-1)
        scores = widen(self.query(newest) @ self.key(past.hidden_states[:, :-1]).mT) + bias
        is_real = past.tokens != EMPTY
        visible = (distance >= 1) & (distance <= self.memory) & (is_real[:, :-1] & is_real[:, 1:])[:, None]
        if not self.training:
            scores = scores + self.eval_bias
        scores = scores.masked_fill(~visible, MASKED)
        sentinel = widen(self.sentinel(newest)).squeeze(-1)
        return scores, sentinel, torch.logaddexp(torch.logsumexp(scores, -1), sentinel)


def make_pointer(settings: PointerSettings, spec: LanguageModelSpec) -> Pointer | None:
    """The pointer of a model; None where it has none."""
    if settings.pointer_memory is None:
        return None
    if not spec.causal:
        raise ConfigError("a pointer copies from the past: pointer_memory needs causal=True")
    return Pointer(spec.width_out, settings.pointer_memory, settings.pointer_eval_memory, settings.pointer_eval_bias)


@contextmanager
def use_pointer(model: LanguageModel, memory: int | None = None, bias: float | None = None) -> Iterator[None]:
    """Inside the block the pointer of a model has this memory and this bias in evaluation, where they are not None;
    memory 0 is the model without its pointer."""
    pointer = model.head_wrapper
    assert isinstance(pointer, Pointer), "the model has a pointer"
    before = pointer.eval_memory, pointer.eval_bias
    pointer.eval_memory, pointer.eval_bias = memory or before[0], before[1] if bias is None else bias
    try:
        with model.without_head_wrapper() if memory == 0 else nullcontext():
            yield
    finally:
        pointer.eval_memory, pointer.eval_bias = before


def _right_aligned(past: Past) -> Past:
    """Every row moved so that it ends with its last real token."""
    entries = past.tokens.shape[1]
    places = torch.arange(entries, device=past.tokens.device)
    last = torch.where(past.tokens != EMPTY, places, -1).amax(1, keepdim=True)  # [B, 1]
    source = places - (entries - 1 - last)
    tokens = past.tokens.gather(1, source.clamp(min=0)).masked_fill(source < 0, EMPTY)
    hidden_states = past.hidden_states.gather(1, source.clamp(min=0)[..., None].expand(past.hidden_states.shape))
    return Past.of(hidden_states, tokens)
