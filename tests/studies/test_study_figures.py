"""Figures show what was measured: the right kind for the axes, every value at its place, gaps where there is none."""

import math
from itertools import product

import numpy as np
import pytest

from anaphor import draw
from anaphor.errors import DataError
from anaphor.metrics.result import Metric
from anaphor.studies.figures import draw_study
from anaphor.studies.groups import Group, Objective

PPL = Objective(Metric("perplexity", "min", "perplexity", minimum=1.0))
BPTT = [5, 10, 35, 140]
LSTM, TRANSFORMER = "lstm", "transformer, which has a long name: $x_1$ & 100 %"


def study(axes, mean, *, seeds=3, without=(), note=None):
    random = np.random.default_rng(0)
    groups = []
    for values in product(*axes.values()):
        parameters = dict(zip(axes, values, strict=True))
        drawn = tuple(float(mean(**parameters) + random.normal()) for _ in range(seeds))
        there = () if values in without else drawn
        said = note[1] if note and values == note[0] else ""
        groups.append(Group(parameters, tuple(range(len(there))), there, said, seeds - len(there)))
    return groups


@pytest.fixture
def figures(monkeypatch):
    """Figures as they were drawn, before they became files."""
    kept, save = [], draw._save

    def keep(figure, paths, *rest):
        kept.append(figure)
        save(figure, paths, *rest)

    monkeypatch.setattr(draw, "_save", keep)
    return kept


STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def three(name):
    return [f"{name}.{suffix}" for suffix in ("png", "svg", "pdf")]


def drawn(groups, axes, folder, metric=PPL):
    paths = draw_study(groups, axes, metric, folder)
    for path in paths:
        assert path.read_bytes().startswith(STARTS[path.suffix])
    return [path.name for path in paths]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_one_scale_is_a_line_with_a_band_for_each_name(figures, tmp_path):
    axes = {"model": [LSTM, TRANSFORMER], "bptt": BPTT}
    groups = study(axes, lambda model, bptt: 100 + 50 / bptt, without={(LSTM, 35)})
    assert drawn(groups, axes, tmp_path) == three("study")
    (one,) = figures[0].axes
    assert one.get_xscale() == "log"
    assert [label.get_text() for label in one.get_xticklabels()] == ["5", "10", "35", "140"]
    assert one.get_xlabel() == "segment length (tokens)"
    lines = [line for line in one.get_lines() if len(line.get_xdata()) == len(BPTT)]
    means = {tuple(group.parameters.values()): group.mean for group in groups}
    for line, model in zip(lines, axes["model"], strict=True):
        np.testing.assert_allclose(line.get_ydata(), [means[model, bptt] for bptt in BPTT])
    assert math.isnan(lines[0].get_ydata()[2])
    assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines}) == 2
    singles = [line for line in one.get_lines() if line.get_alpha()]
    assert sorted(value for line in singles for value in line.get_ydata()) == pytest.approx(
        sorted(value for group in groups for value in group.values)
    )
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == [LSTM, TRANSFORMER]
    assert figures[0].get_supxlabel() == "not drawn: model lstm, bptt 35 (no result)"


def test_the_band_is_the_interval(figures, tmp_path):
    groups = [Group({"bptt": value}, (1, 2, 3), (99.0, 100.0, 101.0)) for value in BPTT]
    drawn(groups, {"bptt": BPTT}, tmp_path)
    heights = figures[0].axes[0].collections[0].get_paths()[0].vertices[:, 1]
    half = 4.302653 / math.sqrt(3)  # Student's quantile for two degrees of freedom
    assert (heights.min(), heights.max()) == pytest.approx((100 - half, 100 + half))


@pytest.mark.parametrize("axis", [{"bptt": [5, 6, 7]}, {"variant": ["a", "b", "c"]}])
def test_no_band_goes_below_what_the_metric_can_be(figures, tmp_path, axis):
    """Two seeds make wide intervals; a perplexity is never below 1."""
    ((name, values),) = axis.items()
    groups = [Group({name: value}, (1, 2), (2000.0, 4000.0)) for value in values]
    drawn(groups, axis, tmp_path)
    (one,) = figures[0].axes
    ends = one.get_ylim() if name == "bptt" else one.get_xlim()
    assert min(ends) > -1000
    places = [path.vertices[:, int(name == "bptt")].min() for shape in one.collections for path in shape.get_paths()]
    assert min(places) == 1.0
    assert figures[0].get_supxlabel() == "intervals are cut off at 1, the minimum"


@pytest.mark.parametrize("axis", [{"bptt": [5, 6, 7]}, {"variant": ["a", "b", "c"]}])
def test_no_band_goes_above_what_the_metric_can_be(figures, tmp_path, axis):
    """An accuracy is never above 1."""
    ((name, values),) = axis.items()
    groups = [Group({name: value}, (1, 2), (0.4, 0.99)) for value in values]
    accuracy = Metric("accuracy", "max", "accuracy", minimum=0.0, maximum=1.0)
    drawn(groups, axis, tmp_path, Objective(accuracy))
    (one,) = figures[0].axes
    places = [path.vertices[:, int(name == "bptt")] for shape in one.collections for path in shape.get_paths()]
    assert (np.concatenate(places).min(), np.concatenate(places).max()) == (0.0, 1.0)
    assert figures[0].get_supxlabel() == "intervals are cut off at 0, the minimum and at 1, the maximum"


def test_test_scores_of_all_settings_have_a_panel_of_their_own(figures, tmp_path):
    axes = {"model": [LSTM, TRANSFORMER], "bptt": BPTT}
    groups = study(axes, lambda model, bptt: 100 + 50 / bptt)
    tested = study(axes, lambda model, bptt: 130 + 50 / bptt)
    assert [path.name for path in draw_study(groups, axes, PPL, tmp_path, tested)] == [
        "study.png",
        "study.svg",
        "study.pdf",
    ]
    first, second = figures[0].axes
    assert (first.get_title(), second.get_title()) == ("validation", "test")
    assert first.get_ylabel().startswith("perplexity\n")
    for one, all_of in ((first, groups), (second, tested)):
        lines = [line for line in one.get_lines() if len(line.get_xdata()) == len(BPTT)]
        means = [group.mean for group in all_of]
        assert [value for line in lines for value in line.get_ydata()] == pytest.approx(means)
    assert len(figures[0].legends[0].get_texts()) == 2


def test_test_scores_have_maps_of_their_own_and_the_choice_is_still_validations(figures, tmp_path):
    axes = {"model": [LSTM, "gru"], "width": [64, 128], "layers": [1, 2]}
    groups = study(axes, lambda model, width, layers: 100 + width + layers + len(model), seeds=1)
    tested = study(axes, lambda model, width, layers: 500 - width - layers - len(model), seeds=1)
    draw_study(groups, axes, PPL, tmp_path, tested)
    *panels, bar = figures[0].axes
    titles = ["model lstm, validation", "model lstm, test", "model gru, validation", "model gru, test"]
    assert [one.get_title() for one in panels] == titles
    assert [len(one.patches) for one in panels] == [0, 0, 1, 1]
    assert panels[2].patches[0].get_xy() == panels[3].patches[0].get_xy()
    assert bar.get_ylabel() == "perplexity"


def test_test_scores_of_names_stand_below_those_they_belong_to(figures, tmp_path):
    groups = [Group({"model": name}, (0,), (value,)) for name, value in {"lstm": 50.0, "gru": 40.0}.items()]
    tested = [Group({"model": name}, (0,), (value,)) for name, value in {"lstm": 30.0, "gru": 60.0}.items()]
    draw_study(groups, {"model": ["lstm", "gru"]}, PPL, tmp_path, tested)
    (one,) = figures[0].axes
    names = [label.get_text() for label in one.get_yticklabels()]
    assert names == ["gru, validation", "gru, test", "lstm, validation", "lstm, test"]
    means = [line.get_xdata()[0] for line in one.get_lines() if line.get_marker() == "D"]
    assert means == [40.0, 60.0, 50.0, 30.0]


def test_one_seed_has_no_band(figures, tmp_path):
    axes = {"bptt": BPTT}
    drawn(study(axes, lambda bptt: 100, seeds=1), axes, tmp_path)
    (one,) = figures[0].axes
    assert not [path for shape in one.collections for path in shape.get_paths() if np.isfinite(path.vertices).all()]
    assert "one seed" in one.get_ylabel()
    assert len(one.get_lines()) == 1


def test_a_second_kind_of_names_makes_panels(figures, tmp_path):
    axes = {"model": ["a", "b", "c"], "state": ["carried", "restarted"], "length": [1, 2, 3]}
    drawn(study(axes, lambda model, state, length: 100), axes, tmp_path)
    assert [one.get_title() for one in figures[0].axes] == ["state carried", "state restarted"]
    assert [one.get_xscale() for one in figures[0].axes] == ["linear"] * 2


def test_two_scales_are_a_map_with_numbers_a_bar_and_a_frame_around_the_best(figures, tmp_path):
    axes = {"model": [LSTM, "gru"], "width": [256, 64, 128], "layers": [1, 2]}
    groups = study(
        axes,
        lambda model, width, layers: 3000 if (model, width) == ("gru", 64) else 130 - width / 8 - layers + len(model),
        without={(LSTM, 64, 2)},
    )
    assert drawn(groups, axes, tmp_path) == three("study")
    first, second, bar = figures[0].axes
    assert (first.get_title(), second.get_title(), bar.get_ylabel()) == ("model lstm", "model gru", PPL.title)
    assert [label.get_text() for label in first.get_xticklabels()] == ["64", "128", "256"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["2", "1"]
    assert texts(first)[0] == "–"
    best = next(group for group in groups if group.parameters == {"model": "gru", "width": 256, "layers": 2})
    assert texts(second)[2].startswith(f"{best.mean:.0f}.")
    assert texts(second)[2].count("\n±") == 1
    assert [len(one.patches) for one in (first, second)] == [0, 1]
    assert second.patches[0].get_xy() == pytest.approx((1.54, -0.46))
    # One setting that went wrong leaves the colours to the others.
    assert second.images[0].get_clim()[1] < 300


@pytest.mark.parametrize("best", [LSTM, "gru"])
def test_maps_far_from_each_other_have_colours_and_a_bar_of_their_own(best, figures, tmp_path):
    axes = {"model": [LSTM, "gru"], "width": [64, 128, 256], "layers": [1, 2]}
    groups = study(axes, lambda model, width, layers: (100 if model == best else 300) + 10 * layers, seeds=1)
    tested = study(axes, lambda model, width, layers: (90 if model == best else 290) + 10 * layers, seeds=1)
    draw_study(groups, axes, PPL, tmp_path, tested)
    panels, bars = figures[0].axes[:4], figures[0].axes[4:]
    ends = [one.images[0].get_clim() for one in panels]
    assert ends[0] == ends[1] != ends[2] == ends[3], "both splits of a model have the same colours"
    assert all(high - low < 40 for low, high in ends)
    assert [bar.get_ylabel() for bar in bars] == ["perplexity"] * 4
    assert "each value of model has its own color scale" in figures[0]._supxlabel.get_text()


def test_a_map_of_equal_numbers_leaves_the_colours_common(figures, tmp_path):
    axes = {"model": [LSTM, "gru"], "width": [64, 128], "layers": [1, 2]}
    groups = [
        Group(group.parameters, (0,), (120.0 if group.parameters["model"] == LSTM else group.mean,))
        for group in study(axes, lambda model, width, layers: 100 + 10 * layers)
    ]
    draw_study(groups, axes, PPL, tmp_path)
    assert len(figures[0].axes) == 3


def test_only_names_are_dots_with_bars_best_first(figures, tmp_path):
    axes = {"variant": ["plain", TRANSFORMER, "seen", "failed"]}
    groups = study(
        axes, lambda variant: 100 + len(variant), without={("failed",)}, note=(("seen",), "sees later tokens")
    )
    drawn(groups, axes, tmp_path)
    (one,) = figures[0].axes
    names = [label.get_text().replace("\n", " ") for label in one.get_yticklabels()]
    assert names == ["plain", TRANSFORMER]
    places = one.get_yticks()
    assert places[0] < places[1] < one.get_ylim()[0]  # the first is on top
    remark = figures[0].get_supxlabel().replace("\n", " ")
    assert remark == "not drawn: variant seen (sees later tokens); variant failed (no result)"
    means = [line.get_xdata()[0] for line in one.get_lines() if line.get_marker() == "D"]
    assert means == pytest.approx([groups[0].mean, groups[1].mean])


def test_more_is_better_where_the_goal_says_so(figures, tmp_path):
    axes = {"variant": ["low", "high"]}
    groups = study(axes, lambda variant: 10 * len(variant))
    drawn(groups, axes, tmp_path, Objective(Metric("accuracy", "max", "accuracy")))
    assert [label.get_text() for label in figures[0].axes[0].get_yticklabels()] == ["high", "low"]


def test_a_search_is_a_cloud_along_each_scale(figures, tmp_path):
    random = np.random.default_rng(0)
    groups = [
        Group({"lr": float(10 ** random.uniform(-4, -1)), "dropout": float(random.uniform(0, 0.6))}, (0,), (100.0 + n,))
        for n in range(20)
    ]
    axes = {name: [group.parameters[name] for group in groups] for name in ("lr", "dropout")}
    names = drawn(groups, axes, tmp_path)
    assert names == [
        "study-lr.png",
        "study-lr.svg",
        "study-lr.pdf",
        "study-dropout.png",
        "study-dropout.svg",
        "study-dropout.pdf",
    ]
    assert [figure.axes[0].get_xscale() for figure in figures] == ["log", "linear"]
    assert {line.get_linestyle() for figure in figures for line in figure.axes[0].get_lines()} == {"None"}


def test_a_third_scale_makes_panels(figures, tmp_path):
    axes = {"width": [1, 2, 3], "dropout": [0.0, 0.5], "layers": [1, 2, 3]}
    drawn(study(axes, lambda width, dropout, layers: 100 + width), axes, tmp_path)
    assert [one.get_title() for one in figures[0].axes[:2]] == ["dropout 0", "dropout 0.5"]


def test_values_far_apart_are_on_a_logarithmic_scale(figures, tmp_path):
    axes = {"lr": [0.1, 0.2]}
    drawn(study(axes, lambda lr: 100 if lr < 0.15 else 3000), axes, tmp_path)
    assert (figures[0].axes[0].get_xscale(), figures[0].axes[0].get_yscale()) == ("linear", "log")


def test_accuracy_is_on_a_linear_scale_however_far_values_are_apart(figures, tmp_path):
    axes = {"lr": [0.1, 0.2]}
    accuracy = Objective(Metric("accuracy", "max", "accuracy", minimum=0.0, maximum=1.0))
    groups = [Group({"lr": lr}, (1, 2), (value, value)) for lr, value in ((0.1, 0.01), (0.2, 1.0))]
    drawn(groups, axes, tmp_path, accuracy)
    assert figures[0].axes[0].get_yscale() == "linear"


@pytest.mark.parametrize("groups", [[], [Group({"width": 1}, (1,), (5.0,)), Group({"width": 2}, (), (), failed=1)]])
def test_nothing_to_compare_is_nothing_to_draw(groups, tmp_path):
    assert draw_study(groups, {"width": [1, 2]}, PPL, tmp_path) == []


def test_a_figure_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    axes = {"bptt": BPTT}
    with pytest.raises(DataError, match="cannot write the figures"):
        draw_study(study(axes, lambda bptt: 100), axes, PPL, tmp_path / "file")
