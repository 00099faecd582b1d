"""Intervals hold as often as they say where the truth is known: other seeds, and text whose lines hang together."""

import math

import numpy as np
import pytest
from scipy import signal, stats

from anaphor.errors import ConfigError, DataError
from anaphor.metrics.statistics import (
    block_bootstrap,
    confidence_interval,
    correlation_length,
    few_seeds_warning,
    holm_correction,
    selection_correction,
)
from anaphor.studies.groups import Group, paired_difference

TRIALS = 1000
TRUTH = 0.05


def text_of(lines):
    """The line of each token; lines are of different lengths."""
    return np.repeat(np.arange(lines), np.resize([1, 2, 1], lines))


LINES = text_of(500)
LONG = np.arange(1500)  # for strong correlation


def along(random, correlation, *shape):
    """Numbers of variance one along the last axis, each with this correlation to the one before."""
    new = random.normal(size=shape) * math.sqrt(1 - correlation**2)
    new[..., 0] /= math.sqrt(1 - correlation**2)
    return signal.lfilter([1], [1, -correlation], new, axis=-1)


def simulated(random, seeds, correlation, line, *, by_seed, by_text=1.0, by_both=0.3):
    """The losses of two models whose true difference is known, [seeds, tokens] each.

    Their difference depends on the seed, on the place in the text, and on both. `by_seed` is in units of what the text
    does to a mean, so that neither of the two can hide the other.
    """
    lines = line[-1] + 1
    text = math.sqrt((1 + correlation) / (1 - correlation) / lines)
    difference = TRUTH + by_seed * text * math.sqrt(seeds) * random.normal(size=(seeds, 1))
    difference = difference + by_text * along(random, correlation, lines)
    difference = difference + by_both * along(random, correlation, seeds, lines)
    second = np.broadcast_to(4 + along(random, correlation, lines), (seeds, lines))
    return (second + difference)[:, line] + 0.2 * random.normal(size=(seeds, line.size)), second[:, line]


def share(holds):
    return sum(holds) / len(holds)


def holds(found, truth=TRUTH):
    return found.low <= truth <= found.high


def compared(trials, seeds, correlation, line, **effects):
    """Fewer draws than by default: they make intervals no better, and the test quick."""
    random = np.random.default_rng(1)
    pairs = (simulated(random, seeds, correlation, line, **effects) for _ in range(trials))
    return [block_bootstrap(*pair, line, draws=500) for pair in pairs]


@pytest.mark.parametrize(("correlation", "line"), [(0.3, LINES), (0.9, LONG)], ids=["weak", "strong"])
@pytest.mark.parametrize("seeds", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_intervals_over_seeds_and_text_cover_what_they_say(seeds, correlation, line):
    found = compared(TRIALS, seeds, correlation, line, by_seed=2.0)
    assert {one.variance_from for one in found} == {"seeds and text"}
    assert 0.93 <= share([holds(one.mean) for one in found]) <= 0.97


@pytest.mark.parametrize("by_seed", [0.3, 4.0])
def test_intervals_cover_whichever_of_seeds_and_text_matters_more(by_seed):
    found = compared(TRIALS, 3, 0.6, LINES, by_seed=by_seed)
    assert 0.93 <= share([holds(one.mean) for one in found]) <= 0.97


@pytest.mark.parametrize(("correlation", "line"), [(0.0, LINES), (0.5, LINES), (0.9, LONG)])
def test_intervals_of_two_trained_models_cover_other_text(correlation, line):
    found = compared(TRIALS, 1, correlation, line, by_seed=0.0)
    assert {one.variance_from for one in found} == {"text"}
    assert 0.93 <= share([holds(one.mean) for one in found]) <= 0.97
    assert 0.93 <= share([holds(one.exp_mean, math.exp(4 + TRUTH) - math.exp(4)) for one in found]) <= 0.97


@pytest.mark.parametrize("seeds", [3, 10])
def test_intervals_that_leave_a_source_of_chance_out_do_not_cover(seeds):
    """The same bounds catch them: what covers above does not do so because anything would."""
    random = np.random.default_rng(1)
    by_text, by_seeds, by_tokens = [], [], []
    for _ in range(TRIALS // 3):
        first, second = simulated(random, seeds, 0.5, LINES, by_seed=1.0)
        tokens = first - second
        by_text.append(holds(block_bootstrap(first.mean(0), second.mean(0), LINES, draws=500).mean))
        by_seeds.append(holds(confidence_interval(tokens.mean(1))))
        by_tokens.append(abs(tokens.mean() - TRUTH) < 1.96 * tokens.std() / math.sqrt(tokens.size))
    assert share(by_text) < 0.9
    assert share(by_seeds) < 0.93
    assert share(by_tokens) < 0.5


@pytest.mark.parametrize("seeds", [3, 10])
def test_intervals_over_seeds_cover_other_seeds(seeds):
    draws = np.random.default_rng(4).normal(TRUTH, 2.0, size=(TRIALS, seeds))
    assert 0.93 <= share([holds(confidence_interval(values)) for values in draws.tolist()]) <= 0.97


@pytest.mark.parametrize("effects", [{"by_seed": 1.0}, {"by_seed": 0.0, "by_text": 0.0, "by_both": 1.0}])
def test_intervals_of_few_seeds_are_wide_rather_than_narrow(effects):
    """Where seeds and text matter alike, and where each seed has weak places of its own and nothing else counts."""
    found = compared(TRIALS // 2, 3, 0.5, LINES, **effects)
    assert 0.95 < share([holds(one.mean) for one in found]) < 1.0


def test_p_is_below_five_percent_exactly_where_the_interval_leaves_zero_out():
    found = [one.mean for one in compared(100, 3, 0.5, LINES, by_seed=0.1)]
    assert [one.p < 0.05 for one in found] == [not holds(one, 0) for one in found]
    assert 0 < share([holds(one, 0) for one in found]) < 1


def test_the_interval_and_the_paired_difference_are_scipys():
    values, others = (98.1, 99.2, 97.7, 98.4), (99.0, 99.9, 99.1, 98.8)
    known = stats.ttest_1samp(values, 0).confidence_interval()
    found = confidence_interval(values)
    assert (found.low, found.high) == pytest.approx(tuple(known))
    known = stats.ttest_rel(values, others)
    found = paired_difference(Group({}, (1, 2, 3, 4), values), Group({}, (1, 2, 3, 4), others))
    assert found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval()))


def test_differences_are_taken_seed_by_seed():
    a, b = Group({"width": 1}, (1, 2, 4), (10.0, 20.0, 40.0)), Group({"width": 2}, (2, 3, 4), (19.0, 0.0, 38.0))
    found = paired_difference(a, b)
    assert (found.mean, found.seeds) == (1.5, 2)
    with pytest.raises(ConfigError, match=r"width 1 and width 3 have no seed in common: \[1, 2, 4\] and \[9\]"):
        paired_difference(a, Group({"width": 3}, (9,), (1.0,)))


def test_one_seed_has_no_interval_and_says_so():
    found = confidence_interval([98.123])
    assert (found.low, found.high, found.half_width, str(found)) == (None, None, None, "98.12")
    found = paired_difference(Group({}, (1,), (2.0,)), Group({}, (1,), (1.5,)))
    assert (found.mean, found.low, found.p) == (0.5, None, None)
    assert "cannot be judged" in few_seeds_warning(1)
    assert "Only 2 seeds" in few_seeds_warning(2)
    assert few_seeds_warning(3) == ""


def test_what_is_not_finite_has_no_interval():
    found = confidence_interval([98.0, math.inf])
    assert (found.mean, found.low) == (math.inf, None)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([98.0, 98.1, 98.2], "98.10 ± 0.25"),
        ([90.0, 100.0, 110.0], "100 ± 25"),
        ([0.91, 0.912, 0.914], "0.9120 ± 0.0050"),
        ([5.0, 5.0, 5.0], "5.000 ± 0.000"),
    ],
)
def test_numbers_have_as_many_digits_as_their_interval_supports(values, told):
    assert str(confidence_interval(values)) == told


def test_holms_correction_on_a_worked_example():
    # Ordered 0.005, 0.01, 0.03, 0.04 they are multiplied with 4, 3, 2, 1, and none is smaller than the one before.
    assert holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_correction([0.5, 0.9]) == [1.0, 1.0]
    assert holm_correction([]) == []


@pytest.mark.parametrize("seeds", [3, 10])
def test_a_correction_for_the_choice_lies_between_one_for_what_is_told_and_one_for_all_pairs(seeds):
    p_values = [0.01, 0.004, 0.03, 0.0005, 0.3, 0.000001]
    corrected = selection_correction(p_values, seeds)
    pairs = math.comb(len(p_values) + 1, 2)
    for p, least, one in zip(p_values, holm_correction(p_values), corrected, strict=True):
        assert p > 0.03 or least < one < pairs * p or p == min(p_values)
    assert sorted(corrected) == [one for _, one in sorted(zip(p_values, corrected, strict=True))]
    assert selection_correction([0.04], seeds) == [0.04], "of two settings either may be the better one"
    assert selection_correction([], 0) == []
    assert selection_correction([0.0, 1.0, 1.0], seeds) == [0.0, 1.0, 1.0]
    many = selection_correction([0.0001] * 60, seeds)
    assert 60 * 0.0001 < many[0] == many[-1] < 0.5


@pytest.mark.parametrize("spread", [(1, 1, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 9, 9, 9, 9), (9, 1, 1, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("worse", [0, 4])
def test_a_correction_for_the_choice_holds_where_settings_spread_unlike_or_some_are_worse(spread, worse):
    random, seeds, wrong = np.random.default_rng(3), 5, 0
    truth = np.where(np.arange(8) < 8 - worse, 0.0, 40.0)
    for _ in range(TRIALS):
        values = truth + random.normal(size=(seeds, 8)) * spread
        best = values.mean(0).argmin()
        others = [place for place in range(8) if place != best]
        p_values = stats.ttest_rel(values[:, others], values[:, [best]]).pvalue
        told = selection_correction(p_values.tolist(), seeds)
        wrong += any(p < 0.05 and truth[place] == truth[best] for p, place in zip(told, others, strict=True))
    assert wrong / TRIALS <= 0.06


def test_the_difference_is_that_of_means_over_all_tokens():
    random = np.random.default_rng(7)
    first, second = random.exponential(4, size=(2, 3, LINES.size))
    found = block_bootstrap(first, second, LINES)
    assert found.mean.mean == pytest.approx((first - second).mean())
    each = np.exp(first.mean(1)) - np.exp(second.mean(1))
    assert found.exp_mean.mean == pytest.approx(each.mean())
    other = block_bootstrap(second, first, LINES)
    assert (other.mean.low, other.mean.high) == pytest.approx((-found.mean.high, -found.mean.low))
    assert block_bootstrap(first, second, LINES) == found


def test_the_same_model_twice_does_not_differ():
    losses = np.random.default_rng(8).exponential(4, size=LINES.size)
    found = block_bootstrap(losses, losses, LINES)
    assert (found.mean.mean, found.mean.low, found.mean.high, found.mean.p) == (0, 0, 0, 1)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_blocks_are_longer_where_correlation_is(correlation):
    series = along(np.random.default_rng(9), correlation, 20_000)
    assert correlation_length(series) == pytest.approx((1 + correlation) / (1 - correlation), rel=0.2)
    found = block_bootstrap(series[:1000], np.zeros(1000), np.arange(1000))
    assert found.blocks == (16 if correlation < 0.9 else 8)


@pytest.mark.parametrize(
    ("first", "second", "lines", "told"),
    [
        (np.ones((2, 9)), np.ones((3, 9)), np.arange(9), r"losses \(2, 9\) and \(3, 9\)"),
        (np.ones(9), np.ones(9), np.arange(8), r"lines \(8,\)"),
        (np.ones(9), np.ones(9), np.arange(9)[::-1], "order of the text"),
        (np.full(9, np.nan), np.ones(9), np.arange(9), "is not finite"),
        (np.ones(9), np.ones(9), np.arange(9) // 3, "3 lines give 3 blocks"),
        ([], [], [], "same items"),
    ],
)
def test_what_cannot_be_compared_is_refused(first, second, lines, told):
    with pytest.raises((ConfigError, DataError), match=told):
        block_bootstrap(first, second, lines)
