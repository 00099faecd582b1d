"""Rows of `evaluate` with a neural cache, with dynamic evaluation, and with both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from anaphor.data.batches import Batch
from anaphor.errors import Diverged
from anaphor.extras.adaptation import AdaptationSettings
from anaphor.extras.adaptation.dynamic_evaluation import Dynamic, gradient_scales
from anaphor.extras.adaptation.neural_cache import Cache
from anaphor.extras.adaptation.steps import AdaptiveStep, cached_losses
from anaphor.metrics.losses import LossMeter, LossResult
from anaphor.metrics.result import Result
from anaphor.precision import to_double
from anaphor.tasks.evaluations import Evaluation
from anaphor.tasks.lm.evaluate import refuse_examples
from anaphor.tasks.lm.experiment import LanguageModelExperiment, StreamExperiment
from anaphor.tasks.lm.protocol import Protocol


class Adaptation(Evaluation):
    """Scores of a stream of text with each cache, with each dynamic evaluation and, if wanted, with each pair."""

    columns = ("adaptation",)

    def __init__(self, settings: AdaptationSettings, experiment: LanguageModelExperiment, run: Path) -> None:
        self.settings, self.experiment = settings, experiment
        self.caches = [
            Cache(window, weight, flatness)
            for window, flatness, weight in product(
                settings.cache, settings.cache_flatness or (0.3,), settings.cache_weight or (0.1,)
            )
        ]
        self.dynamics = [
            Dynamic(lr, decay, settings.dynamic_rule)
            for lr, decay in product(settings.dynamic, settings.dynamic_decay or (0.0,))
        ]
        if not isinstance(experiment, StreamExperiment):
            refuse_examples(experiment, settings, ("cache", "dynamic"), run)
        self.trained_on: Sequence[Batch] = ()
        if self.dynamics and settings.dynamic_rule == "rms":
            self.trained_on = experiment.batches(0)  # of the run's own text, whatever is scored

    def choices(self) -> dict[str, Sequence[Any]]:
        names = ("cache", "cache_weight", "cache_flatness", "dynamic", "dynamic_decay")
        return {name: getattr(self.settings, name) for name in names}

    def score(self, split: str, protocols: Sequence[Protocol] = ()) -> Iterator[LossResult]:
        """For each protocol the results with each cache, and then those with each dynamic evaluation."""
        experiment, scales = self.experiment, None
        if not isinstance(experiment, StreamExperiment):
            return
        captured = experiment.spec.cuda_graph if self.settings.cuda_graph is None else self.settings.cuda_graph
        if self.trained_on:
            scales = gradient_scales(experiment.model, self.trained_on, experiment.carry)
        together = self.caches if self.settings.both else ()
        for protocol in protocols:
            if self.caches:
                yield from score_with_caches(experiment, split, protocol, self.caches, cuda_graph=captured)
            yield from score_dynamically(
                experiment, split, protocol, self.dynamics, scales, caches=together, cuda_graph=captured
            )

    def describe(self, result: Result) -> str:
        return f"adapted by {result.metadata['adaptation']}"


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
    meters = [LossMeter(causal=experiment.model.causal) for _ in adaptations]
    for batch, values in losses:
        for meter, total in zip(meters, to_double(values).sum((1, 2)), strict=True):
            meter.add(total, batch.count)
    return [
        experiment.result_of_meter(split, protocol, meter, adaptation=adaptation)
        for meter, adaptation in zip(meters, adaptations, strict=True)
    ]


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
