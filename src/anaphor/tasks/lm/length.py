"""Length generalization: one model scored on segments of many lengths, and by position within the segment.

A model that starts each segment without a state has no context at the first position and more at each further one. The
score of a length is the mean of that curve up to the length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from anaphor.draw import COLORS, curves, figure_paths
from anaphor.errors import ConfigError
from anaphor.metrics.losses import LossMeter, LossResult, LossTotal
from anaphor.models.language_model import LanguageModel
from anaphor.precision import to_double, widest_dtype
from anaphor.tasks.lm.answers import AnswersExperiment
from anaphor.tasks.lm.experiment import LanguageModelExperiment, StreamExperiment
from anaphor.tasks.lm.protocol import Protocol, choose_carry
from anaphor.tasks.lm.recall_tokens import RecallMeter

FIGURE_NAMES = {"train": "training", "valid": "validation"}
"""Splits as axes call them, where that is not their own name."""


@dataclass(frozen=True)
class LengthScore:
    """The score of one segment length, or the reason why the model has none."""

    length: int
    """Tokens of a segment."""
    carry: bool
    """Whether the state is carried from one segment to the next."""
    score: LossResult | None = None
    positions: tuple[LossTotal, ...] = ()
    """Totals of the first token of all segments, of the second, and so on, as far as any segment reaches."""
    refused: str | None = None

    @property
    def state(self) -> str:
        """What happens to the state between segments: carried or restarted."""
        return "carried" if self.carry else "restarted"

    def to_plain(self) -> dict[str, Any]:
        """As JSON. Positions are counted from 1."""
        values = ("loss", "perplexity", "bits_per_byte", "recall_perplexity")
        empty = dict.fromkeys((*values, "tokens", "recall_tokens", "signature"))
        return {
            "bptt": self.length,
            "state": self.state,
            **(empty if self.score is None else self.score.to_plain()),
            "refused": self.refused,
            "positions": [
                {"position": position, "loss": total.loss, "tokens": total.tokens}
                for position, total in enumerate(self.positions, start=1)
            ],
        }


@dataclass(frozen=True)
class Bin:
    """Adjacent positions together, counted from 1: a single one has few tokens, and so is noisy."""

    first: int
    last: int
    total: LossTotal

    @property
    def name(self) -> str:
        """Its positions, such as '9-16'."""
        return f"{self.first}-{self.last}" if self.last > self.first else str(self.first)


def losses_by_length(
    experiment: LanguageModelExperiment,
    split: str,
    lengths: Sequence[int],
    carries: Sequence[bool],
    protocol: Protocol | None = None,
) -> list[LengthScore]:
    """The scores of a split at several segment lengths.

    Args:
        experiment: A run.
        split: The split that is scored.
        lengths: Segment lengths in tokens.
        carries: Whether state is carried: once with, once without, or both.
        protocol: All else of how the split is scored; as in the run if None.

    Returns:
        A score for each choice of carrying and each length.
    """
    if not isinstance(experiment, StreamExperiment):
        raise ConfigError("a run with padded batching reads separate examples: it has no segments")
    base = experiment.protocol if protocol is None else protocol
    return [
        score_at_length(experiment, split, replace(base, bptt=length, carry=carry))
        for carry in carries
        for length in lengths
    ]


def evaluate_longer(
    experiment: StreamExperiment | AnswersExperiment, split: str, factor: int
) -> LossResult | None:  # fmt: skip
    """The result on segments so many times as long as in training, with the state as in training, or on sequences of a
    synthetic task. None where the model has no positions for them."""
    if isinstance(experiment, AnswersExperiment):
        return experiment.evaluate_longer(split, factor)
    protocol = experiment.protocol
    return score_at_length(experiment, split, replace(protocol, bptt=factor * protocol.bptt)).score


def score_at_length(experiment: StreamExperiment, split: str, protocol: Protocol) -> LengthScore:
    """The score under a protocol, and the loss by position within its segments."""
    reason = refusal_reason(experiment.model, protocol)
    if reason is not None:
        return LengthScore(protocol.bptt, protocol.carry, refused=reason)
    meter = LossMeter(causal=experiment.model.causal)
    sums, counts = torch.zeros(0), torch.zeros(0)
    recall = RecallMeter(causal=experiment.model.causal)
    for batch, losses in experiment.listen(recall, split, protocol):
        meter.add(to_double(losses).sum(), batch.count)
        if not len(sums):  # the first segment is the longest
            sums = losses.new_zeros(losses.shape[1], dtype=widest_dtype(losses.device))
            counts = torch.zeros_like(sums, dtype=torch.long)
        sums[: losses.shape[1]] += to_double(losses).sum(0)
        counts[: losses.shape[1]] += batch.input_mask.sum(0)
    positions = tuple(
        LossTotal(total, count, causal=experiment.model.causal)
        for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    )
    score = recall.add_to(experiment.result_of_meter(split, protocol, meter))
    return LengthScore(protocol.bptt, protocol.carry, score, positions)


def refusal_reason(model: LanguageModel, protocol: Protocol) -> str | None:
    """Why a model cannot be scored under a protocol; None where it can."""
    try:
        choose_carry(model, protocol.carry, protocol.bptt)
    except ConfigError as error:
        return str(error)
    return None


def bin_positions(positions: Sequence[LossTotal]) -> list[Bin]:
    """Positions 1, 2, 3-4, 5-8 and so on: each bin is twice as wide as the one before, the last as wide as remains."""
    bins, first, last = [], 1, 1
    while first <= len(positions):
        last = min(last, len(positions))
        total = sum(positions[first:last], start=positions[first - 1])
        bins.append(Bin(first, last, total))
        first, last = last + 1, 2 * last
    return bins


def draw_lengths(scores: Sequence[LengthScore], folder: Path, trained: int, split: str) -> list[Path]:
    """Perplexity of a split by length, where there are several, and loss by position for each choice of carrying."""
    name = FIGURE_NAMES.get(split, split)
    scored = sorted((one for one in scores if one.score is not None), key=lambda one: one.length)
    by_state = {
        state: [one for one in scored if one.state == state] for state in dict.fromkeys(one.state for one in scored)
    }
    titles = {state: f"state {state}, trained on segments of {trained}" for state in by_state}
    drawn = []
    if len({one.length for one in scored}) > 1:
        causal = all(total.causal for one in scored for total in one.positions)
        # Where the rows of a text are shorter than a segment, they end it.
        lines = {
            f"state {state}": ([len(one.positions) for one in group], list(map(_height, group)))
            for state, group in by_state.items()
        }
        drawn += _draw(
            lines,
            folder / "perplexity-by-length",
            x_label="segment length (tokens)",
            y_label=f"{name} perplexity" if causal else f"{name} loss (nats per token), later tokens visible",
            title=f"trained on segments of {trained}" if len(by_state) > 1 else titles[scored[0].state],
        )
    for state, group in by_state.items():
        drawn += _draw(
            {f"length {one.length}": _curve(one) for one in _choose(group)},
            folder / f"loss-by-position-{state}",
            x_label="position within the segment",
            y_label=f"{name} loss (nats per token)",
            title=titles[state],
            integer_x=True,  # points are in the middle of their bins, and so between positions
        )
    return drawn


def _height(one: LengthScore) -> float:
    assert one.score is not None, "only scored lengths are drawn"
    total = one.score.total
    value = total.loss if total.perplexity is None else total.perplexity
    return value if math.isfinite(value) else math.nan  # a gap in the line


def _curve(one: LengthScore) -> tuple[list[float], list[float]]:
    bins = bin_positions(one.positions)
    return [(part.first + part.last) / 2 for part in bins], [part.total.loss for part in bins]


def _draw(series: dict[str, Any], path: Path, **options: Any) -> list[Path]:
    """A figure in all its files, with logarithmic axes where values span more than a factor of ten."""
    heights = [height for _, y in series.values() for height in y if math.isfinite(height)]
    options |= {"log_x": _is_wide([place for x, _ in series.values() for place in x]), "log_y": _is_wide(heights)}
    paths = figure_paths(path)
    curves(series, *paths, **options)
    return paths


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and 0 < 10 * min(values) < max(values)


def _choose(scores: Sequence[LengthScore]) -> list[LengthScore]:
    """As many as there are distinguishable lines, from the shortest to the longest."""
    most = len(COLORS)
    if len(scores) <= most:
        return list(scores)
    return [scores[round(index * (len(scores) - 1) / (most - 1))] for index in range(most)]
