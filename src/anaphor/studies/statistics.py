"""How far a number can be trusted: over seeds, over text, or over both at once.

A difference between two models has two sources of chance. Another seed would have given other weights, and another text
other losses, which hang together along the text. `interval` and `paired_difference` allow for seeds, on the text as it
is; `paired_blocks` allows for text, and for seeds too as soon as there are several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from anaphor.errors import ConfigError, DataError
from anaphor.studies.groups import Group

Floats = NDArray[np.float64]

ENOUGH = 3  # seeds: two have a spread that is itself hardly known
BLOCKS = (8, 16)  # few and long: their means are nearly independent, and Student's t knows that they are few
NUMBERS = 1_000_000  # that a simulation draws, in at least 2,000 and at most 20,000 studies
LONG = 15  # so many times as long as the correlation is a block, where the text is long enough for eight of them


@dataclass(frozen=True)
class Interval:
    """A mean and where it would lie with other seeds; a single seed does not tell."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def half(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def __str__(self) -> str:
        return with_half(self.mean, self.half)


@dataclass(frozen=True)
class Difference(Interval):
    """First minus second, and how likely one so large would be if there were none."""

    p: float | None


@dataclass(frozen=True)
class TextDifference:
    """Two models on the same tokens: first minus second, once in nats a token and once in perplexity."""

    loss: Difference
    perplexity: Difference
    over: str
    """What the intervals allow for: `text`, or `seeds and text`."""
    blocks: int
    """Into how many stretches the text was cut."""
    correlated: float
    """How many neighbouring lines tell as little as one line by itself."""


def with_half(mean: float, half: float | None) -> str:
    """`98.1 ± 1.2`: no more digits than the interval supports."""
    places = decimals(mean, half)
    return f"{mean:.{places}f}" if half is None else f"{mean:.{places}f} ± {half:.{places}f}"


def decimals(mean: float, half: float | None) -> int:
    """Two digits of the half-width; without one, four of the number itself."""
    size, digits = (abs(mean), 3) if not half else (half, 1)
    return min(max(digits - math.floor(math.log10(size)), 0), 6) if size and math.isfinite(size) else 2


def alike(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether numbers agree, one by one, to the digits that are shown of them: what is left is rounding."""
    return len(first) == len(second) and all(
        with_half(one, None) == with_half(other, None) or 2 * abs(one - other) < 10.0 ** -decimals(one, None)
        for one, other in zip(first, second, strict=True)
    )


def warn_of_few(seeds: int) -> str:
    """A sentence where seeds are too few to judge by; else nothing."""
    if seeds >= ENOUGH:
        return ""
    if seeds < 2:
        return "One seed only: differences cannot be judged, for another seed might have turned them round."
    return (
        f"Only {seeds} seeds: the spread between them is hardly known, so no p-values over seeds are given; "
        f"use {ENOUGH} or more."
    )


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean and Student's interval for it. It allows for other seeds, not for another text."""
    if len(values) == 0:
        raise ConfigError("an interval needs at least one value")
    found = _over_seeds(np.asarray(values, dtype=np.float64), level)
    return Interval(found.mean, found.low, found.high, found.seeds)


def paired_difference(a: Group, b: Group, level: float = 0.95) -> Difference:
    """First minus second over the seeds that both have; fewer than two of them give neither interval nor p."""
    second = dict(zip(b.seeds, b.values, strict=True))
    pairs = [value - second[seed] for seed, value in zip(a.seeds, a.values, strict=True) if seed in second]
    if not pairs:
        raise ConfigError(f"{a} and {b} have no seed in common: {list(a.seeds)} and {list(b.seeds)}")
    return _over_seeds(np.asarray(pairs, dtype=np.float64), level)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: as many chances to be wrong by accident as there are comparisons, all held to one."""
    ordered = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, most = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(ordered):
        most = max(most, min((len(p_values) - rank) * p_values[place], 1.0))
        corrected[place] = most
    return corrected


def selected(p_values: Sequence[float], seeds: int) -> list[float]:
    """A correction for comparing the best with each of the others, where the same numbers chose the best.

    Step by step as in Holm's method, from the smallest p on. Each step asks how likely the best of so many settings
    that are alike would differ as much from one of the others.
    """
    ordered = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, most = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(ordered):
        most = max(most, _by_selection(p_values[place], len(p_values) - rank + 1, seeds))
        corrected[place] = most
    return corrected


def _by_selection(p: float, settings: int, seeds: int) -> float:
    """The chance that the best of so many alike has a p as small as this one. Any pair may become that one, no more."""
    if settings == 2:
        return p  # whichever is the better one, it is the same comparison
    largest = _largest(settings if settings <= 20 else -(-settings // 10) * 10, seeds)  # rather too many than too few
    beyond = len(largest) - int(np.searchsorted(largest, stdtrit(seeds - 1, 1 - p / 2)))
    return max(p, min(settings * (settings - 1) / 2 * p, (beyond + 1) / (len(largest) + 1)))


@lru_cache(maxsize=256)
def _largest(settings: int, seeds: int) -> Floats:
    """Student's t between the best and whichever differs most from it, in simulated studies of settings that are alike.

    What seeds have in common is the same for all settings and cancels in differences, so that they are independent.
    """
    draws = int(np.clip(NUMBERS // (settings * seeds), 2_000, 20_000))
    values = np.random.default_rng(0).standard_normal((draws, seeds, settings))
    best = values.mean(1).argmin(1)[:, None]
    pairs = values - np.take_along_axis(values, best[:, None], axis=2)
    error = pairs.std(1, ddof=1) / math.sqrt(seeds)
    np.put_along_axis(error, best, math.inf, axis=1)
    found: Floats = np.sort((pairs.mean(1) / error).max(1))
    return found


def paired_blocks(
    first: ArrayLike, second: ArrayLike, lines: ArrayLike, *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> TextDifference:
    """Compare two models by their losses on the same tokens, a row for each seed or one row in all.

    A bootstrap draws blocks of consecutive lines anew and asks both models about the same ones. `lines` has the number
    of each token's line, in the order of the text. With one row the answer is about these two trained models on text
    of this kind; with several it is about models trained like this, and allows for other seeds too.
    """
    a, b = (np.atleast_2d(np.asarray(losses, dtype=np.float64)) for losses in (first, second))
    line = np.asarray(lines)
    if a.shape != b.shape or a.ndim != 2 or line.shape != a.shape[1:] or not line.size:
        raise ConfigError(
            f"losses {a.shape} and {b.shape}, lines {line.shape}: give the same tokens, one line for each"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise DataError("a loss is not a finite number, so that the mean of all is none either")
    if (np.diff(line) < 0).any():
        raise ConfigError("the numbers of lines go down: give the tokens in the order of the text")
    starts = np.flatnonzero(np.diff(line, prepend=line[0] - 1))
    tokens = np.diff(starts, append=line.size)  # of each line
    both = np.add.reduceat(np.stack([a, b]), starts, axis=-1)  # [2, seeds, lines]
    mean = (both[0] - both[1]).mean(0)
    correlated = correlation_length(mean - mean.sum() / line.size * tokens)
    starts = _cut(tokens, int(np.clip(len(tokens) / (LONG * correlated), *BLOCKS)))
    blocks = len(starts)
    if blocks < BLOCKS[0] // 2:
        raise DataError(
            f"{len(tokens)} lines make {blocks} blocks: a bootstrap needs {BLOCKS[0] // 2}, and better more"
        )
    size, both = np.add.reduceat(tokens, starts), np.add.reduceat(both, starts, axis=-1)
    times = _drawn(blocks, draws, seed)
    # The losses as they are and in each draw: [2, seeds] and [2, seeds, draws].
    seen, again = both.sum(-1) / line.size, both @ times / (size @ times)
    (first_seen, second_seen), (first_again, second_again) = np.exp(seen), np.exp(again)
    return TextDifference(
        loss=_crossed(seen[0] - seen[1], again[0] - again[1], blocks, level),
        perplexity=_crossed(first_seen - second_seen, first_again - second_again, blocks, level),
        over="text" if len(a) == 1 else "seeds and text",
        blocks=blocks,
        correlated=correlated,
    )


def correlation_length(series: ArrayLike) -> float:
    """How many neighbours tell as little as one value by itself: 1 + 2 × the sum of their correlations.

    The sum ends where it is a third of the lags it has, for what comes later is noise (Sokal, 1989).
    """
    numbers = np.asarray(series, dtype=np.float64)
    count = len(numbers)
    power = np.abs(np.fft.rfft(numbers - numbers.mean(), 2 * count)) ** 2
    products = np.fft.irfft(power)[: max(count // 3, 1)]
    if products[0] <= 0:
        return 1.0  # all are the same
    lengths = 2 * np.cumsum(products / products[0]) - 1
    ends = np.flatnonzero(np.arange(len(lengths)) >= 3 * lengths)
    return max(float(lengths[ends[0] if len(ends) else -1]), 1.0)


def _cut(tokens: NDArray[np.int64], blocks: int) -> NDArray[np.int64]:
    """The first line of each block; blocks have about as many tokens each, and whole lines."""
    middles = np.cumsum(tokens) - tokens / 2
    return np.flatnonzero(np.diff((middles / tokens.sum() * blocks).astype(int), prepend=-1))


@lru_cache(maxsize=16)
def _drawn(blocks: int, draws: int, seed: int) -> Floats:
    """How often each block is in each draw: [blocks, draws]."""
    chosen = np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=draws)
    return np.ascontiguousarray(chosen.T, dtype=np.float64)


def _crossed(seen: Floats, again: Floats, blocks: int, level: float) -> Difference:
    """Seeds and text both at random: [seeds] as they were, [seeds, draws] on other text.

    The variance over seeds and the one over text add up. What is peculiar to one seed on one text is in both of them,
    and is taken out once.
    """
    count, mean = len(seen), float(seen.mean())
    spread = np.atleast_2d(np.cov(again)) * blocks / (blocks - 1)
    text = float(spread.mean())
    if count == 1:
        return _student(mean, text, blocks - 1, count, level)
    seeds = float(seen.var(ddof=1)) / count
    shared = (float(np.trace(spread)) / count - text) / (count - 1)
    variance = max(seeds + text - shared, seeds, text)
    freedom = _freedom(seeds / (seeds + text), count - 1, blocks - 1) if variance else 1.0
    return _student(mean, variance, freedom, count, level)


def _freedom(share: float, first: int, second: int) -> float:
    """Degrees of freedom of a sum of two variances, the first of which has this share.

    Satterthwaite's formula takes squares of both shares. They are estimates, though, and where they are made from three
    seeds its intervals are too narrow, so that the shares themselves are taken there; for many seeds it is his formula.
    """
    unsure = min(2 / min(first, second), 1.0) * share * (1 - share)
    return 1 / ((share**2 + unsure) / first + ((1 - share) ** 2 + unsure) / second)


def _over_seeds(values: Floats, level: float) -> Difference:
    mean, count = float(values.mean()), len(values)
    if count < 2 or not np.isfinite(values).all():
        return Difference(mean, None, None, count, None)
    return _student(mean, float(values.var(ddof=1)) / count, count - 1, count, level)


def _student(mean: float, variance: float, freedom: float, seeds: int, level: float) -> Difference:
    """An interval, and p that the mean is zero, by Student's t."""
    error = math.sqrt(variance)
    if not error:
        return Difference(mean, mean, mean, seeds, 1.0 if mean == 0 else 0.0)
    half = float(stdtrit(freedom, (1 + level) / 2)) * error
    return Difference(mean, mean - half, mean + half, seeds, 2 * float(stdtr(freedom, -abs(mean) / error)))
