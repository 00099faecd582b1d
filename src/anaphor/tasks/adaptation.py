"""Scores of a model that adapts to the text it is scored on. They stand beside the plain score, never in its place.

What was read of a test text may change what is predicted of the rest, so such a score says so in its signature. The
numbers of an adaptation are chosen on validation text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from anaphor.errors import Diverged
from anaphor.metrics.perplexity import Score, Tally
from anaphor.models import LanguageModel
from anaphor.tasks.dynamic_evaluation import Dynamic, dynamic_losses, gradient_strengths
from anaphor.tasks.language_modelling import LanguageModelling, Protocol
from anaphor.tasks.neural_cache import Cache, cached_losses


def with_caches(
    task: LanguageModelling,
    model: LanguageModel,
    split: str,
    protocol: Protocol,
    caches: Sequence[Cache],
    plain: Score,
    tick: Callable[[], None] = lambda: None,
) -> list[Score]:
    """The score with each cache, a row seeing its own only; `plain` is the one without, under the same protocol."""
    batches = protocol.batches(task.splits(split).tokens, task.tokenizer.boundary)
    tallies = [Tally(causal=model.causal) for _ in caches]
    for batch, losses in cached_losses(model, batches, protocol.carry, caches, tick):
        for tally, total in zip(tallies, losses.double().sum((1, 2)), strict=True):
            tally.add(total, batch.count)
    return [_labelled(tally, plain, protocol, cache) for tally, cache in zip(tallies, caches, strict=True)]


def with_dynamic(
    task: LanguageModelling,
    model: LanguageModel,
    split: str,
    protocol: Protocol,
    dynamic: Dynamic,
    plain: Score,
    strengths: Sequence[Tensor] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Score:
    """The score with weights that follow the text, which is read as one row whatever the protocol says.

    The rule rms needs `strengths_in_training`.
    """
    protocol = replace(protocol, rows=1)
    batches = protocol.batches(task.splits(split).tokens, task.tokenizer.boundary)
    tally = Tally(causal=model.causal)
    for batch, losses in dynamic_losses(model, batches, protocol.carry, dynamic, strengths, tick):
        tally.add(losses.double().sum(), batch.count)
    score = _labelled(tally, plain, protocol, dynamic)
    if not math.isfinite(score.total.total):
        raise Diverged(f"{dynamic} led to a loss that is not a finite number: take a smaller learning rate")
    return score


def strengths_in_training(task: LanguageModelling, model: LanguageModel) -> list[Tensor]:
    """How large the gradient of each weight is on the text that the model was trained on, read as in training."""
    return gradient_strengths(model, task.batches(0), task.carry)


def _labelled(tally: Tally, plain: Score, protocol: Protocol, adaptation: Cache | Dynamic) -> Score:
    total = tally.read(plain.total.bytes)
    return Score(total, {**plain.facts, **protocol.facts(), "tokens": total.tokens, "adaptation": str(adaptation)})
