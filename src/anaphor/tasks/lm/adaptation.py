"""Models that adapt to the text they are scored on: a neural cache, dynamic evaluation, and both together.

Their scores are reported beside the plain score, never in its place, and their signatures name the adaptation. Its
hyperparameters are chosen on validation text.

A segment is one step: on a GPU it is a CUDA graph that is replayed (`cuda_graphs`), because a segment of one
row is hundreds of short kernels. Scores are in full precision, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anaphor.config import look_up
from anaphor.cuda_graphs import CUDAGraphs
from anaphor.data.batches import Batch
from anaphor.errors import ConfigError, Diverged
from anaphor.evaluation import eval_mode, report_progress
from anaphor.metrics.result import LossResult, Tally
from anaphor.mixers.base import detach
from anaphor.models.head import IGNORE_INDEX
from anaphor.models.language_model import LanguageModel, ModelState, has_hooks
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.tasks.lm.protocol import Protocol

SIMILARITIES_PER_CHUNK = 8_000_000
RULES = {"sgd": "plain gradient steps", "rms": "steps scaled by the size of the gradients in training"}
# Added to a gradient scale, which is one on average, before a step is divided by it: weights that had hardly any
# gradient in training must not make large steps.
FLOOR = 0.3


@dataclass(frozen=True)
class Cache:
    """The continuous cache of Grave et al. (2016). It keeps the features of past tokens, each with the token that
    followed. A new feature weights them by exp(flatness · similarity), and a part of the probability goes to the tokens
    that followed. Nothing is trained, and the model does not change."""

    window: int
    """Number of past tokens of a row that are kept."""
    weight: float = 0.1
    """Share of the probability that goes to the cache."""
    flatness: float = 0.3
    """Factor of the similarity; with 0 all tokens of the window count alike."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"a cache of {self.window} tokens: it must have at least 1")
        if not 0 <= self.weight < 1:
            raise ConfigError(f"cache weight {self.weight} is not a share: it must be at least 0 and below 1")
        if not 0 <= self.flatness < math.inf:
            raise ConfigError(f"cache flatness {self.flatness}: it must be a number of at least 0")

    def __str__(self) -> str:
        return f"cache({self.window},{self.weight},{self.flatness})"


def score_with_caches(
    experiment: StreamExperiment, split: str, protocol: Protocol, caches: Sequence[Cache], *, cuda_graph: bool = True
) -> list[LossResult]:
    """The result with each cache. A row has a cache of its own."""
    model, batches = experiment.model, experiment.eval_batches(split, protocol)
    names = [str(cache) for cache in caches]
    losses = cached_losses(model, batches, protocol.carry, caches, cuda_graph=cuda_graph)
    results = _results(experiment, split, protocol, names, losses)
    for cache, result in zip(caches, results, strict=True):
        if not math.isfinite(result.total.total):
            raise Diverged(f"{cache} led to a loss that is not a finite number: use a smaller flatness")
    return results


def _results(
    experiment: StreamExperiment,
    split: str,
    protocol: Protocol,
    adaptations: Sequence[str],
    losses: Iterator[tuple[Batch, Tensor]],
) -> list[LossResult]:
    """A result for each adaptation, from the losses under all of them [adaptations, B, T]."""
    tallies = [Tally(causal=experiment.model.causal) for _ in adaptations]
    for batch, values in losses:
        for tally, total in zip(tallies, values.double().sum((1, 2)), strict=True):
            tally.add(total, batch.count)
    return [
        experiment.result_of_tally(split, protocol, tally, adaptation=adaptation)
        for tally, adaptation in zip(tallies, adaptations, strict=True)
    ]


class Memory(NamedTuple):
    """Contents of the cache of each row, oldest first. The number of slots is fixed; the first ones may be empty."""

    features: Tensor
    """[B, N, D]"""
    next_tokens: Tensor
    """[B, N]: the token that followed; IGNORE_INDEX in an empty slot."""

    @classmethod
    def empty(cls, features: Tensor, window: int) -> Memory:
        """Empty slots for features of this kind [B, T, D]."""
        rows, _, width = features.shape
        next_tokens = torch.full((rows, window), IGNORE_INDEX, device=features.device)
        return cls(features.new_zeros(rows, window, width), next_tokens)

    def extend(self, features: Tensor, next_tokens: Tensor) -> Memory:
        """With newer tokens appended, and nothing removed yet."""
        return Memory(torch.cat((self.features, features), 1), torch.cat((self.next_tokens, next_tokens), 1))

    def newest(self, count: int) -> Memory:
        return Memory(self.features[:, -count:], self.next_tokens[:, -count:])


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


def mix_losses(
    memory: Memory,
    x: Tensor,
    targets: Tensor,
    losses: Tensor,
    caches: Sequence[Cache],
    chunk: int = SIMILARITIES_PER_CHUNK,
) -> tuple[Memory, Tensor]:
    """The memory after a segment, and the segment's losses under each cache [caches, B, T].

    `memory` has as many slots as the largest cache. A token of the segment is in the caches of those after it.
    """
    rows, window = memory.next_tokens.shape
    both = memory.extend(x, targets)
    # A chunk of C tokens is compared with C + window slots; this size keeps within `chunk` similarities.
    size = max(1, int((math.sqrt(window**2 + 4 * chunk / max(1, rows)) - window) / 2))
    mixed = []
    for start in range(0, x.shape[1], size):
        end = min(start + size, x.shape[1])
        before = Memory(*(part[:, start : end - 1 + window] for part in both))
        mixed.append(_mix_chunk(before, x[:, start:end], targets[:, start:end], losses[:, start:end], caches))
    return both.newest(window), torch.cat(mixed, -1)


def _mix_chunk(before: Memory, x: Tensor, targets: Tensor, losses: Tensor, caches: Sequence[Cache]) -> Tensor:
    """`before` holds the whole window of the first token of the chunk, and what lies between for the others."""
    slots, steps = before.next_tokens.shape[1], x.shape[1]
    window = slots - steps + 1
    positions = torch.arange(slots, device=x.device)
    ages = window + torch.arange(steps, device=x.device)[:, None] - positions  # [C, S]; 1 is the token just before
    past = (ages >= 1) & (before.next_tokens != IGNORE_INDEX)[:, None]  # [B, C, S]
    same = before.next_tokens[:, None] == targets[:, :, None]  # [B, C, S]
    similarity = (x @ before.features.mT).to(losses.dtype)  # [B, C, S]
    log_shares: dict[tuple[int, float], Tensor] = {}  # caches that differ only in their weight share them
    mixed = []
    for cache in caches:
        key = (cache.window, cache.flatness)
        if key not in log_shares:
            visible = past & (ages <= cache.window)
            scores = (cache.flatness * similarity).masked_fill_(~visible, -math.inf)
            peak = scores.amax(-1, keepdim=True)
            votes = scores.sub_(peak).exp_()  # one exponential for both sums
            share = ((votes * same).sum(-1) / votes.sum(-1)).log()
            # With an empty cache the model's own probability counts.
            log_shares[key] = torch.where(peak.squeeze(-1) > -math.inf, share, -losses)
        model_part, cache_part = math.log1p(-cache.weight), math.log(cache.weight) if cache.weight else -math.inf
        mixed.append(-torch.logaddexp(model_part - losses, cache_part + log_shares[key]))
    return torch.stack(mixed).masked_fill(targets == IGNORE_INDEX, 0.0)


@dataclass(frozen=True)
class Dynamic:
    """Dynamic evaluation (Krause et al. 2018): after a segment is scored, the weights are trained on it.

    The text is one row: weights are common to all rows, so a row would see later text through another.
    """

    lr: float
    """Learning rate of the gradient step on a segment's mean loss."""
    decay: float = 0.0
    """Share of the way back to the trained weights that each step takes."""
    rule: str = "sgd"
    """Size of a step: sgd (the same for all weights) or rms (smaller where gradients were large in training)."""

    def __post_init__(self) -> None:
        look_up(RULES, self.rule, "rule of dynamic evaluation")
        if not 0 <= self.lr < math.inf:
            raise ConfigError(f"dynamic evaluation with learning rate {self.lr}: it must be a number of at least 0")
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"dynamic decay {self.decay} is not a share: it must be from 0 to 1")

    def __str__(self) -> str:
        settings = f"{self.lr}" if not self.decay else f"{self.lr},{self.decay}"
        return f"dynamic({settings})" if self.rule == "sgd" else f"dynamic-{self.rule}({settings})"


def score_dynamically(
    experiment: StreamExperiment,
    split: str,
    protocol: Protocol,
    dynamics: Sequence[Dynamic],
    scales: Sequence[Tensor] | None = None,
    *,
    caches: Sequence[Cache] = (),
    cuda_graph: bool = True,
) -> Iterator[LossResult]:
    """The result with weights that follow the text, in one row: of each dynamic evaluation alone, and then of the same
    weights with each cache. The rule rms needs `gradient_scales`."""
    protocol = replace(protocol, rows=1)
    batches = experiment.eval_batches(split, protocol)
    step = AdaptiveStep(experiment.model, protocol.carry, caches, scales, cuda_graph=cuda_graph)
    for dynamic in dynamics:
        names = [str(dynamic), *(f"{dynamic}+{cache}" for cache in caches)]
        for result in _results(experiment, split, protocol, names, step.losses(batches, dynamic)):
            if not math.isfinite(result.total.total):
                raise Diverged(f"{dynamic} led to a loss that is not a finite number: use a smaller learning rate")
            yield result


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


@dataclass(frozen=True)
class Rates:
    """Settings of dynamic evaluation as inputs of a step [], so that all values share one CUDA graph."""

    lr: Tensor
    decay: Tensor | None  # None for no decay

    @classmethod
    def of(cls, dynamic: Dynamic, like: Tensor) -> Rates:
        lr, decay = (torch.tensor(value, dtype=like.dtype, device=like.device) for value in (dynamic.lr, dynamic.decay))
        return cls(lr, decay if dynamic.decay else None)


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
        self.weights = _trainable(model)
        self.initial: list[Tensor] = []
        self.divisors = None if scales is None else [scale + FLOOR for scale in scales]
        can_capture = cuda_graph and model.device.type == "cuda" and not has_hooks(model)
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
            x, losses, state, gradients = _compute_gradients(self.model, self.weights, batch, state, rates[0].lr)
            self._update(gradients, rates[0])
        else:
            with eval_mode(self.model):
                x, state = self.model.features(batch.input_ids, state, batch.lengths)
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


def gradient_scales(model: LanguageModel, batches: Sequence[Batch], carry: bool) -> list[Tensor]:
    """Root mean square of each weight's gradient over batches, scaled to one on average.

    The average is that of the matrices' means: else the embeddings of rare words, which are most of all weights, would
    dominate it.
    """
    state = None
    weights = _trainable(model)
    squares = [torch.zeros_like(weight) for weight in weights]
    for batch in batches:
        state = state if carry and not batch.restarts else None
        _, _, state, gradients = _compute_gradients(model, weights, batch, state)
        torch._foreach_addcmul_(squares, gradients, gradients)
    roots = [square.sqrt() for square in squares]
    mean = torch.stack([root.mean() for root in roots]).mean()
    return [root / mean for root in roots]


def _trainable(model: LanguageModel) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _compute_gradients(
    model: LanguageModel,
    weights: Sequence[Tensor],
    batch: Batch,
    state: ModelState | None,
    factor: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor, ModelState, list[Tensor]]:
    """Features and losses of a segment, the next state, and the gradient of `factor` times the mean loss by each
    weight. The factor is applied to the loss, where it costs nothing."""
    with eval_mode(model), torch.enable_grad(), model.share_embeddings():
        x, state = model.features(batch.input_ids, state, batch.lengths)
        total, losses = model.cross_entropy_by_token(x, batch.targets, state)
        # Not `backward`, which would add to gradients that the caller may have.
        gradients = torch.autograd.grad(total * (factor / batch.amount), list(weights), materialize_grads=True)
    return x.detach(), losses, detach(state), list(gradients)
