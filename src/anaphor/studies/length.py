"""Length generalization: one model scored on segments of many lengths, and by position within the segment.

A model that starts afresh at every segment knows nothing at its first position and more at each further one, as far as
it can use what it has read. The score of a length is the mean of that curve up to the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anaphor.data.batches import Batch
from anaphor.draw import COLORS, curves
from anaphor.errors import ConfigError
from anaphor.metrics.perplexity import LossTotal, Score
from anaphor.models import LanguageModel
from anaphor.tasks.language_modelling import LanguageModelling, Protocol, resolve_carry
from anaphor.training.language import PreparedLanguage


@dataclass(frozen=True)
class LengthScore:
    """The score of one length, or why the model has none."""

    length: int
    """Tokens of a segment."""
    carry: bool
    """Whether the state goes on from one segment to the next."""
    score: Score | None = None
    positions: tuple[LossTotal, ...] = ()
    """What was lost on the first token of all segments, on the second, and so on, as far as any segment reaches."""
    refused: str | None = None

    @property
    def state(self) -> str:
        return "carried" if self.carry else "restarted"

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it. Positions are counted from 1."""
        empty = dict.fromkeys(("loss", "perplexity", "bits_per_byte", "tokens", "signature"))
        return {
            "bptt": self.length,
            "state": self.state,
            **(empty if self.score is None else self.score.to_plain()),
            "refused": self.refused,
            "positions": [
                {"position": place, "loss": total.loss, "tokens": total.tokens}
                for place, total in enumerate(self.positions, start=1)
            ],
        }


@dataclass(frozen=True)
class Bin:
    """Neighbouring positions together, counted from 1: a single one holds few tokens, and so is noisy."""

    first: int
    last: int
    total: LossTotal

    @property
    def name(self) -> str:
        return f"{self.first}-{self.last}" if self.last > self.first else str(self.first)


def losses_by_length(
    made: PreparedLanguage,
    split: str,
    lengths: Sequence[int],
    carries: Sequence[bool],
    protocol: Protocol | None = None,
) -> list[LengthScore]:
    """A row for each way of carrying and each length. All else is as in `protocol`; None means as in the run itself."""
    task = stream_of(made)
    base = task.protocol if protocol is None else protocol
    return [
        score_at_length(task, made.model, split, replace(base, bptt=length, carry=carry))
        for carry in carries
        for length in lengths
    ]


def stream_of(made: PreparedLanguage) -> LanguageModelling:
    """The task of a run that reads segments; one that reads separate examples is refused."""
    if not isinstance(made.task, LanguageModelling):
        raise ConfigError("a run with padded batching reads separate examples, each by itself: it has no segments")
    return made.task


def score_at_length(task: LanguageModelling, model: LanguageModel, split: str, protocol: Protocol) -> LengthScore:
    """The score under a protocol, and the loss by position within its segments."""
    why = refusal(model, protocol)
    if why is not None:
        return LengthScore(protocol.bptt, protocol.carry, refused=why)
    found = list(task.segment_losses(model, split, protocol))
    score = task.score_of(model, split, protocol, found)
    return LengthScore(protocol.bptt, protocol.carry, score, by_position(found, model.causal))


def refusal(model: LanguageModel, protocol: Protocol) -> str | None:
    """Why a model cannot be scored so; None where it can."""
    try:
        resolve_carry(model, protocol.carry, protocol.bptt)
    except ConfigError as error:
        return str(error)
    return None


def by_position(found: Iterable[tuple[Batch, Tensor]], causal: bool = True) -> tuple[LossTotal, ...]:
    """Totals of all segments at each position. They add up to the total of the text."""
    sums, counts = torch.zeros(0), torch.zeros(0)
    for batch, losses in found:
        if not len(sums):  # the first segment is as long as any
            sums = losses.new_zeros(losses.shape[1], dtype=torch.float64)
            counts = torch.zeros_like(sums, dtype=torch.long)
        sums[: losses.shape[1]] += losses.double().sum(0)
        counts[: losses.shape[1]] += batch.input_mask.sum(0)
    return tuple(
        LossTotal(total, count, causal=causal) for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    )


def binned(positions: Sequence[LossTotal]) -> list[Bin]:
    """Positions 1, 2, 3-4, 5-8 and so on, each bin twice as wide as the one before; the last as wide as there is."""
    bins, first, last = [], 1, 1
    while first <= len(positions):
        last = min(last, len(positions))
        total = sum(positions[first:last], start=positions[first - 1])
        bins.append(Bin(first, last, total))
        first, last = last + 1, 2 * last
    return bins


def draw_lengths(found: Sequence[LengthScore], folder: Path, trained: int) -> list[Path]:
    """Perplexity against length, where there are several, and for each way of carrying loss against position."""
    scored = sorted((one for one in found if one.score is not None), key=lambda one: one.length)
    ways = {
        state: [one for one in scored if one.state == state] for state in dict.fromkeys(one.state for one in scored)
    }
    titles = {state: f"state {state}, trained on segments of {trained}" for state in ways}
    drawn = []
    if len({one.length for one in scored}) > 1:
        causal = all(total.causal for one in scored for total in one.positions)
        # Where the rows of a text end sooner, so do its segments.
        lines = {
            f"state {state}": ([len(one.positions) for one in way], list(map(_height, way)))
            for state, way in ways.items()
        }
        drawn += _draw(
            lines,
            folder / "perplexity-by-length",
            x_label="length of the segments",
            y_label="perplexity" if causal else "loss (nats per token), later tokens seen",
            title=f"trained on segments of {trained}" if len(ways) > 1 else titles[scored[0].state],
        )
    for state, way in ways.items():
        drawn += _draw(
            {f"length {one.length}": _curve(one) for one in _spread(way)},
            folder / f"loss-by-position-{state}",
            x_label="position within the segment",
            y_label="loss (nats per token)",
            title=titles[state],
            integer_x=True,  # points stand in the middle of their bins, and so between positions
        )
    return drawn


def _height(one: LengthScore) -> float:
    assert one.score is not None, "what has no score is not drawn"
    total = one.score.total
    value = total.loss if total.perplexity is None else total.perplexity
    return value if math.isfinite(value) else math.nan  # a gap in the line


def _curve(one: LengthScore) -> tuple[list[float], list[float]]:
    bins = binned(one.positions)
    return [(part.first + part.last) / 2 for part in bins], [part.total.loss for part in bins]


def _draw(series: dict[str, Any], path: Path, **names: Any) -> list[Path]:
    """The same figure as PNG and as SVG; on logarithmic scales where the lowest values would else be lost."""
    heights = [height for _, y in series.values() for height in y if math.isfinite(height)]
    names |= {"log_x": _wide([place for x, _ in series.values() for place in x]), "log_y": _wide(heights)}
    return [curves(series, path.with_suffix(ending), **names) for ending in (".png", ".svg")]


def _wide(values: Sequence[float]) -> bool:
    return bool(values) and 0 < 10 * min(values) < max(values)


def _spread(scores: Sequence[LengthScore]) -> list[LengthScore]:
    """As many as there are lines that look different, from the shortest to the longest."""
    most = len(COLORS)
    if len(scores) <= most:
        return list(scores)
    return [scores[round(place * (len(scores) - 1) / (most - 1))] for place in range(most)]
