"""Sentences say what the numbers say: the best, trends, rankings, failures, and no more than the seeds support."""

from itertools import product

import numpy as np
import pytest

from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric
from anaphor.metrics.statistics import BlockDifference, Difference
from anaphor.studies.axes import format_value
from anaphor.studies.findings import describe_findings, describe_trends
from anaphor.studies.groups import Group, Objective, describe_block_difference, slice_axis, varied_axes

PERPLEXITY = Metric("perplexity", "min", "PPL")
PPL = Objective(PERPLEXITY)
ACCURACY = Objective(Metric("accuracy", "max", "accuracy"))


def study(axes, mean, *, seeds=3, noise=0.3, without=(), note=None):
    """Groups whose true means are known. `without` holds (values, seed) of cells that failed."""
    random, groups = np.random.default_rng(0), []
    for values in product(*axes.values()):
        parameters = dict(zip(axes, values, strict=True))
        drawn = {seed: float(mean(**parameters) + noise * random.normal()) for seed in range(seeds)}
        there = {seed: value for seed, value in drawn.items() if (values, seed) not in without}
        said = note[1] if note and values == note[0] else ""
        groups.append(Group(parameters, tuple(there), tuple(there.values()), said, seeds - len(there)))
    return groups


def said(sentences, start):
    (found,) = [sentence for sentence in sentences if sentence.startswith(start)]
    return found


def test_the_best_is_named_with_its_interval_and_what_cannot_be_told_apart():
    axes = {"width": [64, 128, 256], "layers": [1, 2]}
    sentences = describe_findings(study(axes, lambda width, layers: 130 - width / 8 - layers / 2), axes, PPL)
    assert sentences[0].startswith("Best of 6 settings: width 256, layers 2: 9")
    assert sentences[0].endswith(" PPL (3 seeds).")
    assert " ± " in sentences[0]
    assert said(sentences, "Second best: ").startswith("Second best: width 256, layers 1, a difference of 0.")
    assert ", not significant (" in said(sentences, "Second best: ")
    assert "corrected for selection among 6 settings" in said(sentences, "Second best: ")
    assert said(sentences, "1 of the 5 others").endswith(
        "do not differ significantly from the best: width 256, layers 1."
    )


def test_a_clear_winner_is_told_apart_from_all():
    axes = {"width": [1, 2, 3]}
    sentences = describe_findings(study(axes, lambda width: 50 * width), axes, PPL)
    assert ", significant (p < 0.001, corrected for selection among 3 settings)" in sentences[1]
    assert sentences[2] == "All 2 others differ significantly from the best."


@pytest.mark.parametrize(
    ("mean", "starts", "holds"),
    [
        (lambda bptt: 90 + max(70 - bptt, 0), "PPL falls with bptt until 70 (from 15",
         ", then does not change significantly up to 140 ("),
        (lambda bptt: 110 - bptt / 5, "PPL falls with bptt until 140 (from 10", "at 5 to "),
        (lambda bptt: 90 + bptt / 5, "PPL rises with bptt (from 9", " at 140)"),
        (lambda bptt: 90 + abs(bptt - 35), "PPL falls with bptt until 35 (from ", "), then rises (from 9"),
        (lambda bptt: 90 + max(bptt - 35, 0), "PPL does not change significantly until 35 (",
         ", then rises with bptt (from "),
        (lambda bptt: 90, "No significant effect of bptt on PPL (differences up to ", " PPL are possible)"),
        (lambda bptt: 90 + (10 if bptt in (10, 70) else 0), "PPL has no simple trend with bptt: lowest at bptt ",
         ", not significantly different from that at "),
    ],
)  # fmt: skip
def test_trends_along_a_scale(mean, starts, holds):
    axes = {"bptt": [140, 5, 10, 20, 35, 70]}
    sentences = describe_findings(study(axes, mean, seeds=5), axes, PPL)
    assert holds in said(sentences, starts)


def test_trends_are_told_for_each_name_and_averaged_over_other_scales():
    axes = {"model": ["lstm", "gru"], "width": [1, 2], "layers": [1, 2]}
    groups = study(axes, lambda model, width, layers: 100 + (20 if model == "lstm" else -20) * width)
    sentences = describe_findings(groups, axes, PPL)
    assert said(sentences, "With model lstm, PPL rises with width").endswith("(averaged over layers).")
    assert said(sentences, "With model gru, PPL falls with width").endswith("(averaged over layers).")
    assert said(sentences, "With model gru, no significant effect of layers").endswith("(averaged over width).")


def test_names_are_ranked_with_the_pairs_that_differ():
    axes = {"position": ["none", "learned", "rotary"]}
    means = {"none": 120, "learned": 100, "rotary": 100}
    sentences = describe_findings(study(axes, lambda position: means[position]), axes, PPL)
    ranking = said(sentences, "By position, best first: ")
    assert ranking.index("rotary") < ranking.index("none")
    assert ranking.index("learned") < ranking.index("none")
    assert said(sentences, "Significant differences (p-values corrected for 3 comparisons): ").count("and none") == 2
    within = said(sentences, "Not significant differences (p-values corrected for 3 comparisons): ")
    assert "none" not in within
    assert "learned" in within
    assert not [sentence for sentence in sentences if sentence.startswith("Second best")]


def test_the_highest_is_best_where_more_is_better():
    axes = {"dropout": [0.0, 0.2, 0.4, 0.6]}
    groups = study(axes, lambda dropout: 0.8 - (dropout - 0.2) ** 2, noise=0.001)
    sentences = describe_findings(groups, axes, ACCURACY)
    assert sentences[0].startswith("Best of 4 settings: dropout 0.2: 0.")
    assert "then falls (from 0." in said(sentences, "Accuracy rises with dropout until 0.2 (from 0.7")


@pytest.mark.parametrize(
    ("seeds", "warning"), [(1, "One seed only: differences cannot be judged"), (2, "Only 2 seeds")]
)
def test_too_few_seeds_are_warned_of_and_nothing_is_claimed(seeds, warning):
    axes = {"model": ["lstm", "gru"], "width": [1, 2, 3]}
    groups = study(axes, lambda model, width: 100 + 50 * width, seeds=seeds)
    sentences = describe_findings(groups, axes, PPL)
    assert sum(sentence.startswith(warning) for sentence in sentences) == 1
    for claim in ("p = ", "p < ", "significant", "falls", "rises"):
        assert not [sentence for sentence in sentences[2:] if claim in sentence], claim
    assert said(sentences, "With model gru, PPL is lowest at width 1 (")
    assert f"({seeds} seed" in sentences[0]


def test_groups_with_a_note_stand_apart_and_are_never_ranked():
    axes = {"variant": ["plain", "matrix", "shift"]}
    groups = study(axes, lambda variant: 1 if variant == "matrix" else 100, note=(("matrix",), "sees later tokens"))
    sentences = describe_findings(groups, axes, PPL)
    assert [sentence for sentence in sentences if "matrix" in sentence] == [sentences[-1]]
    assert sentences[-1].startswith("Not ranked: variant matrix: ")
    assert sentences[-1].endswith(" (sees later tokens).")
    assert sentences[0].startswith("Best of 2 settings")


def test_failed_cells_are_counted_and_half_a_setting_is_not_the_best():
    axes = {"width": [1, 2, 3]}
    groups = study(axes, lambda width: 100 - 10 * width, without={((3,), 0), ((1,), 0), ((1,), 1), ((1,), 2)})
    sentences = describe_findings(groups, axes, PPL)
    assert sentences[0].startswith("Best of 2 settings: width 2")
    assert sentences[-1] == "4 of 9 cells have no result: width 1 (3 of 3 seeds); width 3 (1 of 3 seeds)."


def test_a_setting_that_lost_a_seed_is_not_second_best():
    """It may look better than the best one only because its bad seed failed."""
    axes = {"width": [1, 2, 3]}
    groups = study(axes, lambda width: {1: 20, 2: 10, 3: 30}[width], seeds=4, without={((2,), 3)})
    sentences = describe_findings(groups, axes, PPL)
    assert sentences[0].startswith("Best of 3 settings: width 1: ")
    assert said(sentences, "Second best: ").startswith("Second best: width 3, a difference of ")
    assert "selection" not in said(sentences, "Second best: ")
    groups = study(axes, lambda width: 10 * width, without={((2,), 0), ((3,), 0)})
    sentences = describe_findings(groups, axes, PPL)
    assert not [sentence for sentence in sentences if "econd best" in sentence]


def test_where_all_failed_that_is_all_there_is_to_say():
    sentences = describe_findings([Group({"width": 1}, (), (), failed=3)], {"width": [1]}, PPL)
    assert sentences == [
        "No best setting: no setting has a result for all its seeds.",
        "3 of 3 cells have no result: width 1 (3 of 3 seeds).",
    ]


def test_what_is_not_finite_is_not_ranked():
    groups = [Group({"lr": 1.0}, (1, 2), (5.0, 6.0)), Group({"lr": 9.0}, (1, 2), (5.0, float("inf")))]
    sentences = describe_findings(groups, {"lr": [1.0, 9.0]}, PPL)
    assert sentences[-1] == "Not ranked: lr 9: not a finite number for every seed."
    assert sentences[0].startswith("Result of lr 1: 5.5")


def test_averages_are_taken_over_the_same_settings_and_seeds():
    """The worst setting of one width is missing: without it that width would look better than it is."""
    axes = {"width": [1, 2], "layers": [1, 2]}
    groups = study(axes, lambda width, layers: 100 * layers, noise=0.1, without={((2, 2), 0)})
    found = slice_axis(groups, axes, "width", {})
    assert not found.is_complete
    assert [group.seeds for group in found.groups] == [(0, 1, 2)] * 2
    assert [round(group.mean) for group in found.groups] == [100, 100]
    assert found.suffix == " (averaged over layers, where no result is missing)"


def test_axes_that_go_together_are_one():
    axes = {"width": [128, 64], "emsize": [128, 64], "dropout": [0.1], "tied": [True, False]}
    groups = [
        Group({"width": width, "emsize": width, "dropout": 0.1, "tied": tied}, (1,), (1.0,))
        for width in (64, 128)
        for tied in (True, False)
    ]
    assert varied_axes(groups, axes) == {"width": [64, 128], "tied": [True, False]}


def test_values_are_told_as_people_write_them():
    assert [format_value(value) for value in (True, None, 0.1, 64, 1e-5, "lstm")] == [
        "yes",
        "none",
        "0.1",
        "64",
        "1e-05",
        "lstm",
    ]
    assert format_value([1, 0.50, None, [True]]) == "[1, 0.5, none, [yes]]"
    assert str(Group({"width": 64, "tied": False}, (), ())) == "width 64, tied no"
    with pytest.raises(ConfigError, match="goal='least'"):
        Metric("loss", "least", "loss")


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_rounding_noise_is_no_finding(seeds):
    """A carried state makes a model equal at all lengths, but for the order of sums."""
    axes = {"state": ["carried", "restarted"], "length": [5, 10, 80]}
    random = np.random.default_rng(0)
    groups = [
        Group(
            {"state": state, "length": length},
            tuple(range(seeds)),
            tuple(3262.5 + 10 * seed + 1e-4 * random.normal() + (100 / length if state == "restarted" else 0)
                  for seed in range(seeds)),
        )
        for state, length in product(*axes.values())
    ]  # fmt: skip
    sentences = describe_findings(groups, axes, PPL)
    assert said(sentences, "With state carried, PPL is the same at every length (32")
    assert said(sentences, "Equal to it in the digits shown: ").count("state carried, length") == 2
    assert "restarted, length 80, a difference of 1.2" in said(sentences, "Second best: ")
    assert not [sentence for sentence in sentences if "0.0000" in sentence]


def test_names_that_are_equal_are_not_told_apart():
    axes = {"merge": ["one", "two", "three"]}
    values = {"one": (50.0, 51.0, 52.0), "two": (50.00001, 51.00001, 52.00001), "three": (80.0, 81.0, 82.5)}
    groups = [Group({"merge": name}, (0, 1, 2), values[name]) for name in axes["merge"]]
    sentences = describe_findings(groups, axes, PPL)
    assert said(sentences, "Equal in the digits shown: ") == "Equal in the digits shown: one and two."
    assert "one and two" not in said(sentences, "Significant differences")


def test_an_equal_mean_of_unlike_seeds_is_noise_and_not_equality():
    axes = {"width": [1, 2]}
    groups = [Group({"width": 1}, (0, 1, 2), (90.0, 100.0, 110.0)), Group({"width": 2}, (0, 1, 2), (100, 90, 110.0))]
    assert said(describe_findings(groups, axes, PPL), "No significant effect of width on PPL")


def test_scores_that_nothing_may_be_chosen_by_are_described_and_not_ranked_first():
    axes = {"model": ["lstm", "gru"], "bptt": [5, 10]}
    sentences = describe_trends(study(axes, lambda model, bptt: 100 + 50 * bptt), axes, Objective(PERPLEXITY, "test"))
    assert said(sentences, "With model gru, test PPL rises with bptt")
    assert not [sentence for sentence in sentences if "est of" in sentence or "Second best" in sentence]


def on_text(mean, half, p, variance_from="seeds and text"):
    found = Difference(mean, mean - half, mean + half, 1, p)
    return BlockDifference(found, found, variance_from, 8, 1.0)


def test_the_two_best_are_compared_on_the_same_tokens():
    names = ("model lstm", "model gru")
    assert describe_block_difference(names, on_text(-0.2, 0.1, 0.0000004), 3, "tokens") == (
        "on the same tokens the mean loss of model lstm is 0.20 ± 0.10 lower than that of model gru (block bootstrap "
        "over seeds and text, p < 0.001); their order is significant for text of this kind."
    )
    assert "is 0.01 ± 0.10 higher than that of model gru" in describe_block_difference(
        names, on_text(0.01, 0.1, 0.8), 3, "tokens"
    )
    small = describe_block_difference(names, on_text(-0.00123, 0.00021, 0.001), 3, "tokens")
    assert "is 0.00123 ± 0.00021 lower than that of model gru" in small, "the interval decides on the digits"
    assert describe_block_difference(names, on_text(-1e-9, 1e-9, 0.01), 3, "images") == (
        "on the same images model lstm and model gru have the same mean loss."
    )


def test_few_seeds_are_compared_on_text_alone_and_the_words_say_so():
    names = ("model lstm", "model gru")
    assert describe_block_difference(names, on_text(-0.2, 0.3, 0.23, "text"), 2, "tokens") == (
        "on the same tokens the mean loss of these 2 runs of model lstm is 0.20 ± 0.30 lower than that of model gru "
        "(block bootstrap over text, p = 0.23); their order may differ on other text, but nothing is known about "
        "other seeds."
    )
    one = describe_block_difference(names, on_text(-0.2, 0.1, 0.01, "text"), 1, "tokens")
    assert one.startswith("on the same tokens the mean loss of this run of model lstm is 0.20 ± 0.10 lower than ")
    assert one.endswith("is significant for text of this kind, but nothing is known about other seeds.")


@pytest.mark.parametrize(("seeds", "settings"), [(3, 8), (5, 12)])
def test_settings_that_are_all_alike_are_told_apart_from_the_best_in_one_study_of_twenty(seeds, settings):
    """The best was chosen by the very numbers that it is then compared by."""
    axes, random, studies = {"width": list(range(settings))}, np.random.default_rng(1), 1000
    ahead = trends = 0
    for _ in range(studies):
        values = random.normal(100, 1, size=(settings, seeds))
        groups = [Group({"width": width}, tuple(range(seeds)), tuple(values[width])) for width in axes["width"]]
        sentences = describe_findings(groups, axes, PPL)
        few = [line for line in sentences if "do not differ significantly from the best" in line]
        ahead += not few or not few[0].startswith(f"{settings - 1} of the {settings - 1} others")
        trends += not [line for line in sentences if line.startswith("No significant effect of width on PPL")]
    assert ahead / studies <= 0.06
    assert trends / studies <= 0.06
