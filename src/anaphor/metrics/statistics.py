"""Confidence intervals and tests: over seeds, over data, or over both.

A difference between two models has two sources of variance: another seed gives other weights, and other data other
losses, which are correlated along a text. `confidence_interval` and `paired_difference` account for seeds, on the given
data; `block_bootstrap` accounts for the data, and for seeds as soon as there are several.

SciPy has neither Holm's correction nor a bootstrap of blocks. Student's t comes from `scipy.special`: `scipy.stats`
gives the same numbers (a test compares them), but its import takes 0.5 s, twice the rest of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from anaphor.errors import ConfigError, DataError

Floats = NDArray[np.float64]

MIN_SEEDS = 3  # for p-values: the variance of two seeds is too uncertain
BLOCKS = (8, 16)  # few and long: their means are nearly independent, and Student's t accounts for their small number
SIMULATED_VALUES = 1_000_000  # of a simulation, in at least 2,000 and at most 20,000 studies
BLOCK_LENGTH = 15  # in correlation lengths, where the text is long enough for eight such blocks


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval; one seed has no interval."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def __str__(self) -> str:
        return format_interval(self.mean, self.half_width)


@dataclass(frozen=True)
class Difference(Interval):
    """First minus second, with the p-value for no difference."""

    p: float | None


@dataclass(frozen=True)
class BlockDifference:
    """Difference of two models on the same items (first minus second)."""

    mean: Difference
    """Of the mean losses."""
    exp_mean: Difference
    """Of the exponentials of the mean losses."""
    variance_from: str
    """Sources of variance in the intervals: `text`, or `seeds and text`."""
    blocks: int
    """Number of blocks the text was cut into."""
    correlation_length: float
    """Of the differences, in lines."""


def format_interval(mean: float, half_width: float | None) -> str:
    """`98.1 ± 1.2`, with the digits that the interval supports."""
    digits = choose_decimals(mean, half_width)
    return f"{mean:.{digits}f}" if half_width is None else f"{mean:.{digits}f} ± {half_width:.{digits}f}"


def choose_decimals(mean: float, half_width: float | None) -> int:
    """Two significant digits of the half-width; without one, four of the mean."""
    size, digits = (abs(mean), 3) if not half_width else (half_width, 1)
    return min(max(digits - math.floor(math.log10(size)), 0), 6) if size and math.isfinite(size) else 2


def are_equal_as_shown(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether all pairs agree to the digits shown: smaller differences are rounding errors."""
    return len(first) == len(second) and all(
        format_interval(a, None) == format_interval(b, None) or 2 * abs(a - b) < 10.0 ** -choose_decimals(a, None)
        for a, b in zip(first, second, strict=True)
    )


def few_seeds_warning(seeds: int) -> str:
    """A warning for fewer than `MIN_SEEDS` seeds; empty for more."""
    if seeds >= MIN_SEEDS:
        return ""
    if seeds < 2:
        return "One seed only: differences cannot be judged, because another seed could reverse them."
    return f"Only {seeds} seeds: too few to estimate their variance, so no p-values are given; use {MIN_SEEDS} or more."


def confidence_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean and Student's t interval over seeds."""
    if len(values) == 0:
        raise ConfigError("a confidence interval needs at least one value")
    found = t_test(values, level)
    return Interval(found.mean, found.low, found.high, found.seeds)


def t_test(values: Sequence[float], level: float = 0.95) -> Difference:
    """Mean, interval and p-value for mean zero (one-sample t-test); fewer than two values have neither."""
    array = np.asarray(values, dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if count < 2 or not np.isfinite(array).all():
        return Difference(mean, None, None, count, None)
    return _student(mean, float(array.var(ddof=1)) / count, count - 1, count, level)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for multiple comparisons by Holm's method."""
    return _step_down(p_values, lambda p, left: min(left * p, 1.0))


def selection_correction(p_values: Sequence[float], seeds: int) -> list[float]:
    """p-values of the best setting against each other one, corrected for its selection by the same values.

    A step-down method like Holm's. Each step computes the probability that the best of that many equal settings differs
    as much from one of the others.
    """
    return _step_down(p_values, lambda p, left: _selection_p(p, left + 1, seeds))


def _step_down(p_values: Sequence[float], correct: Callable[[float, int], float]) -> list[float]:
    """Correct from the smallest p-value on; `correct` gets a p-value and how many are left, and none decreases."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, correct(p_values[index], len(p_values) - rank))
        corrected[index] = largest
    return corrected


def _selection_p(p: float, settings: int, seeds: int) -> float:
    """Probability that the best of equal settings has a p-value this small; at most that of any pair (Bonferroni)."""
    if settings == 2:
        return p  # the same comparison, whichever of the two is better
    largest = _largest_t(settings if settings <= 20 else -(-settings // 10) * 10, seeds)  # rounded up: conservative
    beyond = len(largest) - int(np.searchsorted(largest, stdtrit(seeds - 1, 1 - p / 2)))
    return max(p, min(settings * (settings - 1) / 2 * p, (beyond + 1) / (len(largest) + 1)))


@lru_cache(maxsize=256)
def _largest_t(settings: int, seeds: int) -> Floats:
    """Largest t between the best setting and another one, sorted, in simulated studies of equal settings.

    Effects that a seed has on all settings cancel in differences, so that values are drawn independently.
    """
    draws = int(np.clip(SIMULATED_VALUES // (settings * seeds), 2_000, 20_000))
    values = np.random.default_rng(0).standard_normal((draws, seeds, settings))
    best = values.mean(1).argmin(1)[:, None]
    pairs = values - np.take_along_axis(values, best[:, None], axis=2)
    error = pairs.std(1, ddof=1) / math.sqrt(seeds)
    np.put_along_axis(error, best, math.inf, axis=1)
    found: Floats = np.sort((pairs.mean(1) / error).max(1))
    return found


def block_bootstrap(
    first: ArrayLike, second: ArrayLike, lines: ArrayLike, *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> BlockDifference:
    """Compare two models by their losses on the same items.

    The bootstrap draws blocks of consecutive lines, the same ones for both models. With one row of losses the result is
    about these two trained models on other text of this kind; with several rows it is about models trained like these,
    and includes the variance over seeds.

    Args:
        first: Losses of one model, one row of items, or a row for each seed.
        second: Those of the other model.
        lines: The line number of each item, in the order of the text.
        level: Probability with which the interval covers the difference.
        draws: Number of resamples.
        seed: Seed of the resamples.
    """
    a, b = (np.atleast_2d(np.asarray(losses, dtype=np.float64)) for losses in (first, second))
    line = np.asarray(lines)
    if a.shape != b.shape or a.ndim != 2 or line.shape != a.shape[1:] or not line.size:
        raise ConfigError(
            f"losses {a.shape} and {b.shape}, lines {line.shape}: give the same items, one line number for each"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise DataError("a loss is not finite, so their mean is not finite either")
    if (np.diff(line) < 0).any():
        raise ConfigError("line numbers decrease: give the items in the order of the text")
    starts = np.flatnonzero(np.diff(line, prepend=line[0] - 1))
    counts = np.diff(starts, append=line.size)  # items of each line
    sums = np.add.reduceat(np.stack([a, b]), starts, axis=-1)  # [2, seeds, lines]
    difference = (sums[0] - sums[1]).mean(0)
    correlation = correlation_length(difference - difference.sum() / line.size * counts)
    starts = _block_starts(counts, int(np.clip(len(counts) / (BLOCK_LENGTH * correlation), *BLOCKS)))
    blocks = len(starts)
    if blocks < BLOCKS[0] // 2:
        raise DataError(f"{len(counts)} lines give {blocks} blocks: a bootstrap needs at least {BLOCKS[0] // 2}")
    sizes, sums = np.add.reduceat(counts, starts), np.add.reduceat(sums, starts, axis=-1)
    weights = _draw_blocks(blocks, draws, seed)
    # Mean losses as measured [2, seeds] and in each draw [2, seeds, draws].
    measured, drawn = sums.sum(-1) / line.size, sums @ weights / (sizes @ weights)
    exp_measured, exp_drawn = np.exp(measured), np.exp(drawn)
    return BlockDifference(
        mean=_combine(measured[0] - measured[1], drawn[0] - drawn[1], blocks, level),
        exp_mean=_combine(exp_measured[0] - exp_measured[1], exp_drawn[0] - exp_drawn[1], blocks, level),
        variance_from="text" if len(a) == 1 else "seeds and text",
        blocks=blocks,
        correlation_length=correlation,
    )


def correlation_length(series: ArrayLike) -> float:
    """Integrated autocorrelation time: 1 + 2 × the sum of the autocorrelations.

    The sum stops where the number of lags is three times its value, because later terms are noise (Sokal, 1989).
    """
    values = np.asarray(series, dtype=np.float64)
    count = len(values)
    power = np.abs(np.fft.rfft(values - values.mean(), 2 * count)) ** 2
    products = np.fft.irfft(power)[: max(count // 3, 1)]
    if products[0] <= 0:
        return 1.0  # constant
    lengths = 2 * np.cumsum(products / products[0]) - 1
    stops = np.flatnonzero(np.arange(len(lengths)) >= 3 * lengths)
    return max(float(lengths[stops[0] if len(stops) else -1]), 1.0)


def _block_starts(counts: NDArray[np.int64], blocks: int) -> NDArray[np.int64]:
    """First line of each block; blocks consist of whole lines and have about the same number of items."""
    middles = np.cumsum(counts) - counts / 2
    return np.flatnonzero(np.diff((middles / counts.sum() * blocks).astype(int), prepend=-1))


@lru_cache(maxsize=16)
def _draw_blocks(blocks: int, draws: int, seed: int) -> Floats:
    """How often each block occurs in each draw: [blocks, draws]."""
    chosen = np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=draws)
    return np.ascontiguousarray(chosen.T, dtype=np.float64)


def _combine(measured: Floats, drawn: Floats, blocks: int, level: float) -> Difference:
    """Difference with the variance over seeds and text: [seeds] as measured, [seeds, draws] on other text.

    The two variances add up. The interaction of seed and text is contained in both, so that it is subtracted once.
    """
    count, mean = len(measured), float(measured.mean())
    covariance = np.atleast_2d(np.cov(drawn)) * blocks / (blocks - 1)
    text = float(covariance.mean())
    if count == 1:
        return _student(mean, text, blocks - 1, count, level)
    seeds = float(measured.var(ddof=1)) / count
    interaction = (float(np.trace(covariance)) / count - text) / (count - 1)
    variance = max(seeds + text - interaction, seeds, text)
    freedom = _degrees_of_freedom(seeds / (seeds + text), count - 1, blocks - 1) if variance else 1.0
    return _student(mean, variance, freedom, count, level)


def _degrees_of_freedom(share: float, first: int, second: int) -> float:
    """Degrees of freedom of a sum of two variances, the first of which has this share.

    Satterthwaite's formula uses the squares of the shares. Shares estimated from three seeds are uncertain, and its
    intervals are too narrow there (92 % instead of 95 %); the correction vanishes for many seeds.
    """
    correction = min(2 / min(first, second), 1.0) * share * (1 - share)
    return 1 / ((share**2 + correction) / first + ((1 - share) ** 2 + correction) / second)


def _student(mean: float, variance: float, freedom: float, seeds: int, level: float) -> Difference:
    """Interval and p-value for mean zero by Student's t."""
    error = math.sqrt(variance)
    if not error:
        return Difference(mean, mean, mean, seeds, 1.0 if mean == 0 else 0.0)
    half_width = float(stdtrit(freedom, (1 + level) / 2)) * error
    return Difference(mean, mean - half_width, mean + half_width, seeds, 2 * float(stdtr(freedom, -abs(mean) / error)))
