"""Where two runs differ most on the same split: passages ranked by the difference of their losses, and tables by group.

A difference is always that of the second run minus that of the first: negative where the second is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.errors import ConfigError, DataError
from anaphor.inspect.split_losses import Groups, SplitLosses
from anaphor.metrics.statistics import block_bootstrap

Floats = NDArray[np.float64]
NamedGroups = tuple[str, str | None, Groups]
"""Key of a table, the run that the groups are of where both have their own, and the groups."""
SIMILAR = 0.5
"""Least share of common trigrams of two passages that count as nearly the same."""
TRIES = 10
"""Candidates for each passage that is shown; more near-duplicates than that are not looked through."""


def compare_losses(
    scored: Mapping[str, SplitLosses],
    experiment_of: Callable[[str], Any],
    *,
    length: int = 64,
    count: int = 40,
    at: int | None = None,
    titles: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All that the page shows of two runs on a split, by their names. `at` asks for the passage at this item alone;
    `titles` are what messages call the runs."""
    (one, first), (two, second) = scored.items()
    called = titles or {name: name for name in scored}
    if type(first) is not type(second):
        raise ConfigError(f"{called[one]} and {called[two]} were trained for different tasks and cannot be compared")
    first, second = bring_together(first, second, (called[one], called[two]))
    scored = {one: first, two: second}
    for name, losses_of in scored.items():
        if not np.isfinite(losses_of.losses).all():
            raise DataError(f"the losses of {called[name]} are not finite: its training diverged")
    losses = np.stack([first.losses, second.losses]).astype(np.float64)  # [2, N]
    items = losses.shape[1]
    if at is not None and at >= items:
        raise ConfigError(f"at={at}: the split has the {first.unit} 0 to {items - 1:,}")
    length = min(length, items) if first.is_text else 1
    difference = losses[1] - losses[0]
    found: list[dict[str, Any]] = []
    if at is None:
        for better, sign in ((one, 1), (two, -1)):
            ranked = rank_windows(sign * difference, length, count // 2, first if first.is_text else None)
            found += [
                {"rank": rank, "better": better, "start": start, "similar": similar}
                for rank, (start, similar) in enumerate(ranked, 1)
            ]
    else:
        better = two if difference[at : at + length].mean() < 0 else one
        found = [{"rank": None, "better": better, "start": at, "similar": 0}]
    for passage in found:
        start, stop = passage["start"], min(passage["start"] + length, items)
        passage["losses"] = {one: losses[0, start:stop].tolist(), two: losses[1, start:stop].tolist()}
        passage["places"] = {name: [own.place(start), own.place(stop)] for name, own in scored.items()}
        passage["difference"] = float(difference[start:stop].mean())
        passage.update(first.show(start, stop) if first.is_text else {"example": first.show(start, stop)})
    if not first.is_text:
        _add_predictions(found, scored, experiment_of)
    named = _name_groups(scored)
    for key, _, groups in named:
        rows = _number_rows(groups)
        for passage in found:
            start = passage["start"]
            passage.setdefault("rows", {})[key] = rows[start : start + length].tolist()
    return {
        "kind": "passages" if first.is_text else "examples",
        "counted": first.unit,
        "joined": first.is_joined,
        "items": items,
        "length": length,
        "passages": found,
        "totals": {name: dict(losses.result) for name, losses in scored.items()},
        "signature": {name: losses.result["signature"] for name, losses in scored.items()},
        "notes": list(dict.fromkeys(note for losses in scored.values() for note in losses.notes)),
        **({} if at is not None else _tables(losses, first.lines, named, tuple(scored))),
    }


def bring_together(first: SplitLosses, second: SplitLosses, names: tuple[str, str]) -> tuple[SplitLosses, SplitLosses]:
    """Both with common items. What has none is refused, by the names of the two runs."""
    reason = first.mismatch(second, names)
    aligned = first.align(second) if reason else (first, second)
    if aligned is None:
        raise DataError(reason)
    return aligned


def rank_windows(gain: Floats, length: int, count: int, text: SplitLosses | None) -> list[tuple[int, int]]:
    """Starts of the windows with the largest positive mean, largest first, and how many more are nearly the same text.

    No two windows share an item. `text` shows the tokens of a window; without it nothing is compared.
    """
    total = np.concatenate(([0.0], np.cumsum(gain)))
    means = (total[length:] - total[:-length]) / length
    chosen: list[int] = []
    similar: list[int] = []
    prints: list[set[Any]] = []
    for _ in range(TRIES * count):
        start = int(means.argmax())
        if len(chosen) == count or not means[start] > 0:
            break
        means[max(start - length + 1, 0) : start + length] = -np.inf
        own = set() if text is None else _trigrams(text.show(start, start + length)["tokens"])
        twin = next((number for number, other in enumerate(prints) if _is_similar(own, other)), None)
        if twin is not None:
            similar[twin] += 1
            continue
        chosen.append(start)
        similar.append(0)
        prints.append(own)
    return list(zip(chosen, similar, strict=True))


def _trigrams(tokens: Sequence[str]) -> set[Any]:
    return {*zip(tokens, tokens[1:], tokens[2:], strict=False)}


def _is_similar(one: set[Any], other: set[Any]) -> bool:
    return bool(one and other) and len(one & other) >= SIMILAR * min(len(one), len(other))


def _add_predictions(
    passages: Sequence[dict[str, Any]], scored: Mapping[str, SplitLosses], experiment_of: Callable[[str], Any]
) -> None:
    """What each run makes of each example: `{"predicted": {first run: …, second run: …}}`."""
    for name, losses in scored.items():
        predictions = losses.predictions([passage["start"] for passage in passages], experiment_of(name))
        for passage, values in zip(passages, predictions, strict=True):
            for key, value in values.items():
                passage["example"].setdefault(key, {})[name] = value


def _tables(
    losses: Floats, lines: NDArray[Any], named: Sequence[NamedGroups], names: tuple[str, ...]
) -> dict[str, Any]:
    """The difference of all items and of each group of them."""
    everything = Groups("", ("all",), np.zeros(losses.shape[1], np.int16))
    (overall,) = _table(losses, lines, everything, names)
    interval = {name: overall[name] for name in ("difference", "low", "high")}
    return {
        "overall": {**interval, "better": float((losses[1] < losses[0]).mean())},
        "tables": [{"key": key, "title": groups.title, "of": of} for key, of, groups in named],
        **{key: _table(losses, lines, groups, names) for key, _, groups in named},
    }


def _name_groups(scored: Mapping[str, SplitLosses]) -> list[NamedGroups]:
    """Each kind of groups once; where they differ, such as frequencies in other training texts, once per run."""
    names, (first, second), named = tuple(scored), scored.values(), []
    for name in dict.fromkeys((*first.groups, *second.groups)):
        own = [groups.groups.get(name) for groups in (first, second)]
        for number, groups in enumerate(own):
            if groups is None or (number and groups == own[0]):
                continue
            of = None if own[0] == own[1] else names[number]
            named.append((f"by_{name}{'_second' if number and own[0] is not None else ''}", of, groups))
    return named


def _number_rows(groups: Groups) -> NDArray[Any]:
    """The row of each item in the table of these groups, which has no empty ones. [N]"""
    is_used = np.isin(np.arange(len(groups.labels)), groups.codes)
    numbers: NDArray[Any] = (np.cumsum(is_used) - 1)[groups.codes]
    return numbers


def _table(losses: Floats, lines: NDArray[Any], groups: Groups, names: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for code, label in enumerate(groups.labels):
        where = np.flatnonzero(groups.codes == code)
        if not len(where):
            continue
        one, two = losses[:, where]
        low = high = None
        try:
            interval = block_bootstrap(two, one, lines[where]).mean
            low, high = interval.low, interval.high
        except DataError:  # too few lines for an interval
            pass
        means = dict(zip(names, (float(one.mean()), float(two.mean())), strict=True))
        rows.append({"label": label, "tokens": len(where), **means, "difference": float((two - one).mean()),
                     "low": low, "high": high})  # fmt: skip
    return rows
