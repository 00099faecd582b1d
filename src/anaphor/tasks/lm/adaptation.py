"""Models that adapt to the text they are scored on: a neural cache, and dynamic evaluation.

Their scores are reported beside the plain score, never in its place, and their signatures name the adaptation. Its
hyperparameters are chosen on validation text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anaphor.config import look_up
from anaphor.data.batches import Batch
from anaphor.errors import ConfigError, Diverged
from anaphor.evaluation import eval_mode
from anaphor.metrics.result import LossResult, Tally
from anaphor.mixers.base import detach
from anaphor.models.head import IGNORE_INDEX
from anaphor.models.language_model import LanguageModel, ModelState
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.tasks.lm.protocol import Protocol

SIMILARITIES_PER_CHUNK = 8_000_000
RULES = {"sgd": "plain gradient steps", "rms": "steps scaled by the size of the gradients in training"}
# Added to a gradient scale, which is one on average, before a step is divided by it: weights that had hardly any
# gradient in training must not make large steps.
FLOOR = 0.3


# ---- Neural cache


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
    experiment: StreamExperiment, split: str, protocol: Protocol, caches: Sequence[Cache]
) -> list[LossResult]:
    """The result with each cache. A row has a cache of its own."""
    model, batches = experiment.model, experiment.eval_batches(split, protocol)
    tallies = [Tally(causal=model.causal) for _ in caches]
    for batch, losses in cached_losses(model, batches, protocol.carry, caches):
        for tally, total in zip(tallies, losses.double().sum((1, 2)), strict=True):
            tally.add(total, batch.count)
    return [
        experiment.result_of_tally(split, protocol, tally, adaptation=str(cache))
        for tally, cache in zip(tallies, caches, strict=True)
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
    model: LanguageModel, batches: Sequence[Batch], carry: bool, caches: Sequence[Cache]
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with the losses of its targets under every cache [caches, B, T], zero where there is no target.

    The model runs once for all caches. A row's cache continues across segments even where the state does not.
    """
    if not caches:
        raise ConfigError("there is no cache to score with: give at least one")
    return _cached_losses(model, batches, carry, caches)


def _cached_losses(
    model: LanguageModel, batches: Sequence[Batch], carry: bool, caches: Sequence[Cache]
) -> Iterator[tuple[Batch, Tensor]]:
    window = max(cache.window for cache in caches)
    state, memory = None, None
    for batch in batches:
        with eval_mode(model), torch.inference_mode():
            state = state if carry and not batch.restarts else None
            x, state = model.features(batch.input_ids, state, batch.lengths)
            if memory is None or batch.restarts:
                memory = Memory.empty(x, window)
            losses = model.token_losses(x, batch.targets, state)
            memory, mixed = mix_losses(memory, x, batch.targets, losses, caches)
        yield batch, mixed


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
            scores = (cache.flatness * similarity).masked_fill(~visible, -math.inf)
            share = scores.masked_fill(~same, -math.inf).logsumexp(-1) - scores.logsumexp(-1)
            # With an empty cache the model's own probability counts.
            log_shares[key] = torch.where(visible.any(-1), share, -losses)
        model_part, cache_part = math.log1p(-cache.weight), math.log(cache.weight) if cache.weight else -math.inf
        mixed.append(-torch.logaddexp(model_part - losses, cache_part + log_shares[key]))
    return torch.stack(mixed).masked_fill(targets == IGNORE_INDEX, 0.0)


# ---- Dynamic evaluation


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
    dynamic: Dynamic,
    scales: Sequence[Tensor] | None = None,
) -> LossResult:
    """The result with weights that follow the text, in one row. The rule rms needs `training_gradient_scales`."""
    protocol = replace(protocol, rows=1)
    model, batches = experiment.model, experiment.eval_batches(split, protocol)
    tally = Tally(causal=model.causal)
    for batch, losses in dynamic_losses(model, batches, protocol.carry, dynamic, scales):
        tally.add(losses.double().sum(), batch.count)
    result = experiment.result_of_tally(split, protocol, tally, adaptation=str(dynamic))
    if not math.isfinite(result.total.total):
        raise Diverged(f"{dynamic} led to a loss that is not a finite number: use a smaller learning rate")
    return result


def training_gradient_scales(experiment: StreamExperiment) -> list[Tensor]:
    """`gradient_scales` on the training text, read as in training."""
    return gradient_scales(experiment.model, experiment.batches(0), experiment.carry)


def dynamic_losses(
    model: LanguageModel,
    batches: Sequence[Batch],
    carry: bool,
    dynamic: Dynamic,
    scales: Sequence[Tensor] | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch with the losses of its targets [B, T], each under the weights trained on those before it.

    When the iterator is exhausted or closed the model has its own weights again, bit for bit. The rule rms needs
    `gradient_scales`.
    """
    if (dynamic.rule == "rms") != (scales is not None):
        raise ConfigError(f"rule {dynamic.rule!r} of dynamic evaluation: gradient scales belong to 'rms'")
    return _dynamic_losses(model, batches, carry, dynamic, scales)


def _dynamic_losses(
    model: LanguageModel, batches: Sequence[Batch], carry: bool, dynamic: Dynamic, scales: Sequence[Tensor] | None
) -> Iterator[tuple[Batch, Tensor]]:
    state = None
    weights = _trainable(model)
    initial = [weight.detach().clone() for weight in weights]
    steps = [dynamic.lr] * len(weights) if scales is None else [dynamic.lr / (scale + FLOOR) for scale in scales]
    # A share above one would overshoot.
    decays = float(dynamic.decay) if scales is None else [(dynamic.decay * scale).clamp(max=1) for scale in scales]
    try:
        for batch in batches:
            state = state if carry and not batch.restarts else None
            losses, gradients, state = _losses_and_gradients(model, weights, batch, state)
            with torch.no_grad():
                for index, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                    if dynamic.decay:
                        weight.lerp_(initial[index], decays if isinstance(decays, float) else decays[index])
                    weight.sub_(steps[index] * gradient)
            yield batch, losses
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, initial, strict=True):
                weight.copy_(value)


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
        _, gradients, state = _losses_and_gradients(model, weights, batch, state)
        for total, gradient in zip(squares, gradients, strict=True):
            total.addcmul_(gradient, gradient)
    roots = [square.sqrt() for square in squares]
    mean = torch.stack([root.mean() for root in roots]).mean()
    return [root / mean for root in roots]


def _trainable(model: LanguageModel) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _losses_and_gradients(
    model: LanguageModel, weights: Sequence[nn.Parameter], batch: Batch, state: ModelState | None
) -> tuple[Tensor, list[Tensor], ModelState]:
    """The losses of a segment [B, T], the gradient of their mean by each weight, and the next state."""
    with _without_dropout(model), torch.enable_grad():
        x, state = model.features(batch.input_ids, state, batch.lengths)
        mean = model.cross_entropy(x, batch.targets, state) / batch.count
        # Not `backward`, which would add to gradients that the caller may have.
        gradients = torch.autograd.grad(mean, list(weights), materialize_grads=True)
        return model.token_losses(x, batch.targets, state).detach(), list(gradients), detach(state)


@contextmanager
def _without_dropout(model: LanguageModel) -> Iterator[None]:
    # cuDNN's recurrent kernels have a backward in training mode only, where mixers apply dropout; others have one.
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = enabled and model.device.type != "cuda"
    try:
        with eval_mode(model):
            yield
    finally:
        torch.backends.cudnn.enabled = enabled
