"""Leaderboard: runs of students scored again from their weights, with intervals; runs that cannot be told apart are
tied.

The runs of one exercise are compared with each other. Where two were scored on the same items, their losses are
compared item by item, by a bootstrap over blocks of the text; on texts of their own the two intervals are compared.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.errors import DataError
from anaphor.metrics.statistics import Difference, block_bootstrap

FILE = "leaderboard.json"
"""What the live page shows, where it lies in its folder."""
FORMAT = 1
LARGER_IS_BETTER = ("accuracy", "bleu", "chrf", "f1")

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Entry:
    """A run on the board."""

    name: str
    """Of the student, or of the run's folder."""
    value: float | None
    """Of the metric; None where the run could not be scored."""
    low: float | None = None
    high: float | None = None
    rank: int | None = None
    """One more than the number of runs that are better."""
    tied: tuple[str, ...] = ()
    """Runs that cannot be told apart from this one."""
    comment: str = ""


@dataclass(frozen=True)
class Board:
    """The runs of an exercise."""

    title: str
    metric: str
    goal: str
    """'min' or 'max'."""
    same_items: bool
    """Whether all were scored on the same items."""
    entries: tuple[Entry, ...]

    def to_plain(self) -> dict[str, Any]:
        return {**asdict(self), "entries": [{**asdict(one), "tied": [*one.tied]} for one in self.entries]}


@dataclass(frozen=True)
class Scored:
    """A run with what scoring it again gave."""

    name: str
    answer: Mapping[str, Any]


@dataclass(frozen=True)
class Items:
    """Losses of the items of a split."""

    same: str
    losses: Floats
    lines: NDArray[np.int32]


def make_board(title: str, metric: str, runs: Sequence[Scored]) -> Board:
    """Rank runs by a metric."""
    goal = "max" if any(part in metric for part in LARGER_IS_BETTER) else "min"
    items = [_read_items(run.answer.get("items")) for run in runs]
    entries = [_make_entry(run, metric, own) for run, own in zip(runs, items, strict=True)]
    worse = 1 if goal == "min" else -1
    order = sorted(range(len(runs)), key=lambda at: (entries[at].value is None, worse * (entries[at].value or 0)))
    scored = [at for at in order if entries[at].value is not None]
    tied: dict[int, list[int]] = {at: [] for at in scored}
    better: dict[int, int] = dict.fromkeys(scored, 0)
    for place, first in enumerate(scored):
        for second in scored[place + 1 :]:
            if _are_tied(entries[first], entries[second], items[first], items[second]):
                tied[first].append(second)
                tied[second].append(first)
            else:
                better[second] += 1
    ranked = [
        replace(entries[at], rank=better[at] + 1, tied=tuple(entries[other].name for other in tied[at]))
        if at in better
        else entries[at]
        for at in order
    ]
    kinds = {own.same if own is not None else "" for at in scored for own in (items[at],)}
    ranked = [_mention_same_weights(one, runs) for one in ranked]
    return Board(title, metric, goal, len(kinds) == 1 and "" not in kinds, tuple(ranked))


def _mention_same_weights(entry: Entry, runs: Sequence[Scored]) -> Entry:
    """The entry with a comment where somebody else's run has the same weights: a tie that is no chance."""
    own = next(one.answer.get("weights") for one in runs if one.name == entry.name)
    others = [one.name for one in runs if one.name != entry.name and own and one.answer.get("weights") == own]
    if not others:
        return entry
    return replace(entry, comment="; ".join(filter(None, [entry.comment, f"the same weights as {', '.join(others)}"])))


def _read_items(value: Any) -> Items | None:
    """The losses that the sandbox has sent; None where there are none that can be compared."""
    if not isinstance(value, dict):
        return None
    losses = np.frombuffer(base64.b64decode(value["losses"]), dtype=np.float32)
    lines = np.frombuffer(base64.b64decode(value["lines"]), dtype=np.int32)
    is_sound = len(losses) == len(lines) and len(losses) > 0 and np.isfinite(losses).all()
    return Items(str(value["same"]), losses, lines) if is_sound else None


def _make_entry(run: Scored, metric: str, items: Items | None) -> Entry:
    value = run.answer.get("metrics", {}).get(metric)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return Entry(run.name, None, comment=str(run.answer.get("problem", f"it has no {metric}")))
    changed = run.answer.get("changed") or []
    if any(not name.startswith("data of") for name in changed):  # other tokens are easier or harder to predict
        return Entry(run.name, None, comment=f"its {', '.join(changed)} is not that of the sheet's data")
    low, high = _interval(metric, value, items)
    notes = [f"not trained on the data of the sheet: {', '.join(changed)}"] if changed else []
    for is_decisive, name, found, wanted in run.answer.get("differences", []):
        notes += [f"{name} is {found}, the sheet has {wanted}"] if is_decisive else []
    return Entry(run.name, value, low, high, comment="; ".join(notes))


def _interval(metric: str, value: float, items: Items | None) -> tuple[float | None, float | None]:
    """The 95 % interval of a metric that is a function of the mean loss; None for others."""
    if items is None or metric not in ("loss", "perplexity", "bits_per_byte"):
        return None, None
    mean = _compare(items.losses, np.zeros_like(items.losses), items.lines)
    if mean is None or mean.low is None or mean.high is None or not mean.mean:
        return None, None
    if metric == "perplexity":
        return math.exp(min(mean.low, 700)), math.exp(min(mean.high, 700))
    return mean.low * value / mean.mean, mean.high * value / mean.mean


def _compare(first: Floats, second: Floats, lines: NDArray[np.int32]) -> Difference | None:
    """The difference of mean losses; None where the text is too short."""
    try:
        return block_bootstrap(first, second, lines).mean
    except DataError:
        return None


def _are_tied(first: Entry, second: Entry, one: Items | None, two: Items | None) -> bool:
    """Whether two runs cannot be told apart."""
    if one is not None and two is not None and one.same == two.same and np.array_equal(one.lines, two.lines):
        found = _compare(one.losses, two.losses, one.lines)
        if found is not None and found.low is not None and found.high is not None:
            return found.low <= 0 <= found.high
    if first.value is None or second.value is None:
        return False
    widths = [(one.high - one.low) / 2 for one in (first, second) if one.low is not None and one.high is not None]
    if len(widths) < 2:
        return first.value == second.value
    return abs(first.value - second.value) <= math.hypot(*widths)
