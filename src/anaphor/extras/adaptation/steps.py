"""Scoring segment by segment: with neural caches, with weights that follow the text, or both.

A segment is one step: on a GPU it is a CUDA graph that is replayed (`cuda_graphs`), because a segment of one row is
hundreds of short kernels. Scores are in full precision, as everywhere.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from anaphor.cuda_graphs import CUDAGraphs, allows_capture
from anaphor.data.batches import Batch
from anaphor.errors import ConfigError
from anaphor.evaluation import eval_mode
from anaphor.extras.adaptation.dynamic_evaluation import FLOOR, Dynamic, Rates, compute_gradients, trainable_weights
from anaphor.extras.adaptation.neural_cache import Cache, Memory, mix_losses
from anaphor.models.decoding import has_hooks
from anaphor.models.language_model import LanguageModel, ModelState
from anaphor.progress_listener import report_progress

Carry = tuple[ModelState | None, Memory | None]


class AdaptiveStep:
    """Scores segments one after the other: with caches, with weights that are trained on each segment after it is
    scored, or both. What one value of a learning rate needs is used for the next."""

    def __init__(
        self,
        model: LanguageModel,
        carry: bool,
        caches: Sequence[Cache] = (),
        scales: Sequence[Tensor] | None = None,
        *,
        cuda_graph: bool = True,
    ) -> None:
        self.model, self.carry, self.caches = model, carry, tuple(caches)
        self.scales = None if scales is None else list(scales)
        self.window = max((cache.window for cache in caches), default=0)
        self.weights = trainable_weights(model)
        self.initial: list[Tensor] = []
        self.divisors = None if scales is None else [scale + FLOOR for scale in scales]
        can_capture = cuda_graph and model.device.type == "cuda" and allows_capture(model) and not has_hooks(model)
        self.graphs = CUDAGraphs() if can_capture else None

    def losses(self, batches: Sequence[Batch], dynamic: Dynamic | None = None) -> Generator[tuple[Batch, Tensor]]:
        """Each batch with the losses of its targets without a cache and with each cache [1 + caches, B, T].

        When the iterator is exhausted or closed the model has its own weights again, bit for bit.
        """
        if dynamic is None:
            return self._losses(batches, [])
        if (dynamic.rule == "rms") != (self.scales is not None):
            raise ConfigError(f"rule {dynamic.rule!r} of dynamic evaluation: gradient scales belong to 'rms'")
        return self._dynamic_losses(batches, dynamic)

    def _dynamic_losses(self, batches: Sequence[Batch], dynamic: Dynamic) -> Generator[tuple[Batch, Tensor]]:
        if not self.initial:
            self.initial = [weight.detach().clone() for weight in self.weights]
        try:
            yield from self._losses(batches, [Rates.of(dynamic, self.initial[0])])
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.initial)

    def _losses(self, batches: Sequence[Batch], rates: list[Rates]) -> Generator[tuple[Batch, Tensor]]:
        carry: Carry = None, None
        for number, batch in enumerate(batches, 1):
            # Lengths are read on the host, which a graph cannot do; only the last batch has them.
            if self.graphs is None or batch.lengths is not None:
                losses, carry = self.run([batch, *rates], carry)
            else:
                losses, carry = self.graphs.call(self.run, [batch, *rates], carry)
                losses = losses.clone()  # the next replay writes over it
            report_progress("scoring", number, len(batches))
            yield batch, losses

    @torch.no_grad()
    def run(self, group: Sequence[Any], carry: Carry) -> tuple[Tensor, Carry]:
        """The losses of a segment [1 + caches, B, T], and state and memory after it. `group` is a batch, and the rates
        where weights are trained. Reads nothing on the host."""
        (batch, *rates), (state, memory) = group, carry
        state = state if self.carry and not batch.restarts else None
        if rates:
            x, losses, state, gradients = compute_gradients(self.model, self.weights, batch, state, rates[0].lr)
            self._update(gradients, rates[0])
        else:
            with eval_mode(self.model):
                x, state = self.model.compute_hidden_states(batch.input_ids, state, batch.lengths)
                losses = self.model.token_losses(x, batch.targets, state)
        found = losses[None]
        if self.caches:
            if memory is None or batch.restarts:
                memory = Memory.empty(x, self.window)
            memory, mixed = mix_losses(memory, x, batch.targets, losses, self.caches)
            found = torch.cat((found, mixed))
        return found, (state if self.carry else None, memory)

    def _update(self, gradients: list[Tensor], rates: Rates) -> None:
        """One step of all weights. `gradients` are times the learning rate."""
        if rates.decay is not None:
            shares = [rates.decay] * len(self.weights)
            if self.scales is not None:
                # A share above one would overshoot.
                shares = list(torch._foreach_clamp_max(torch._foreach_mul(self.scales, rates.decay), 1.0))
            torch._foreach_lerp_(self.weights, self.initial, shares)
        if self.divisors is None:
            torch._foreach_sub_(self.weights, gradients)
        else:
            torch._foreach_addcdiv_(self.weights, gradients, self.divisors, value=-1.0)


def cached_losses(
    model: LanguageModel, batches: Sequence[Batch], carry: bool, caches: Sequence[Cache], *, cuda_graph: bool = True
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with the losses of its targets under every cache [caches, B, T], zero where there is no target.

    The model runs once for all caches. A row's cache continues across segments even where the state does not.
    """
    if not caches:
        raise ConfigError("there is no cache to score with: give at least one")
    step = AdaptiveStep(model, carry, caches, cuda_graph=cuda_graph)
    return ((batch, losses[1:]) for batch, losses in step.losses(batches))


def dynamic_losses(
    model: LanguageModel,
    batches: Sequence[Batch],
    carry: bool,
    dynamic: Dynamic,
    scales: Sequence[Tensor] | None = None,
    *,
    cuda_graph: bool = True,
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with the losses of its targets [B, T], each under the weights trained on those before it.

    When the iterator is exhausted or closed the model has its own weights again, bit for bit. The rule rms needs
    `gradient_scales`.
    """
    step = AdaptiveStep(model, carry, scales=scales, cuda_graph=cuda_graph)
    return _first_losses(step.losses(batches, dynamic))


def _first_losses(found: Generator[tuple[Batch, Tensor]]) -> Iterator[tuple[Batch, Tensor]]:
    # Closed with the iterator that is given out, not when it is collected as garbage: weights are restored then.
    with closing(found):
        for batch, losses in found:
            yield batch, losses[0]
