"""Figures: several panels fit on a page, and values without intervals are not enlarged."""

import itertools
import math

import matplotlib.image
import numpy as np
import pytest

from anaphor import draw
from anaphor.draw import cells, line_style
from anaphor.draw.confusion import draw_confusion


def size_of(path) -> tuple[int, int]:
    high, wide = matplotlib.image.imread(path).shape[:2]
    return wide, high


def test_four_heat_maps_stand_in_two_lines(tmp_path):
    values = np.linspace(100, 200, 16).reshape(4, 4)
    texts = [[f"{value:.1f}" for value in row] for row in values]
    panels = [cells.Annotated(name, values, 100.0, 200.0, texts) for name in "abcd"]
    labels = {"x_label": "width", "y_label": "layers", "label": "perplexity"}
    cells.annotated_heat_maps(panels, [tmp_path / "grid.png"], rows=list("4321"), columns=list("1234"), **labels)
    wide, high = size_of(tmp_path / "grid.png")
    assert wide <= 10 * draw.DPI
    assert high > 4 * draw.DPI


@pytest.mark.parametrize("name", ["cat", "automobile", "Golden Retriever", "a class with a name of many words, number"])
def test_names_of_classes_do_not_overlap_and_stay_distinct(tmp_path, monkeypatch, name):
    kept = []
    monkeypatch.setattr(cells, "save_all", lambda figure, paths, remark: kept.append(figure))
    draw_confusion(np.eye(14, dtype=int), [f"{name} {number}" for number in range(14)], tmp_path / "confusion")
    (figure,) = kept
    figure.canvas.draw()
    axes = figure.axes[0]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert len({label.get_text() for label in labels}) == 14
        boxes = [label.get_window_extent() for label in labels]
        assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    cell = axes.get_window_extent()
    assert min(cell.width, cell.height) / 14 > 0.3 * figure.dpi, "there is room for a number"


@pytest.fixture
def limits(monkeypatch):
    """Limits of the value axis of the figures that are drawn."""
    found = []

    def keep(figure, paths, remark):
        (axes, *_) = figure.axes
        found.append((axes.get_xlim(), axes.get_ylim()))

    monkeypatch.setattr(draw, "save_all", keep)
    return found


@pytest.mark.parametrize(
    ("middle", "low", "is_wide"),
    [
        ((100.1, 100.3, 100.2), (), True),
        ((100.1, 100.3, 100.2), (100.0, 100.2, 100.1), False),
        ((50, 90, 70), (), False),
    ],
)
def test_lines_of_one_seed_are_not_enlarged(limits, middle, low, is_wide):
    line = draw.Line("a", [1, 2, 4], middle, low, [2 * one - other for one, other in zip(middle, low, strict=False)])
    draw.bands({"": [line]}, [], x_label="x", y_label="perplexity")
    ((_, (bottom, top)),) = limits
    assert bool(abs(top - bottom - 0.1 * 100.2) < 0.01) is is_wide
    assert bottom < min(middle)
    assert top > max(middle)


@pytest.mark.parametrize(("interval", "is_wide"), [(math.nan, True), (0.1, False)])
def test_dots_of_one_seed_are_not_enlarged(limits, interval, is_wide):
    rows = [draw.Dot(name, value, value - interval, value + interval) for name, value in (("a", 100.1), ("b", 100.3))]
    draw.dots(rows, [], x_label="perplexity")
    (((left, right), _),) = limits
    assert bool(abs(right - left - 0.1 * 100.2) < 0.01) is is_wide


def test_a_setting_without_a_quantity_leaves_its_panel_empty(monkeypatch):
    """Panels of one column are of one setting."""
    found = []
    monkeypatch.setattr(draw, "save_all", lambda figure, paths, remark: found.append(figure))
    series = {"validation": [{1.0: 0.5, 2.0: 0.6}]}
    draw.learning_curves({"loss": {"a": series, "b": series}, "accuracy": {"b": series}}, [], "epoch")
    (top_a, top_b, bottom_a, bottom_b) = found[0].axes
    assert [axes.get_title() for axes in (top_a, top_b)] == ["a", "b"]
    assert [len(axes.lines) for axes in (top_a, top_b, bottom_a, bottom_b)] == [1, 1, 0, 1]


def test_lines_of_the_same_color_have_other_styles_and_markers():
    styles = [line_style(number) for number in range(40)]
    for key in ("linestyle", "marker"):
        assert len({(style["color"], style[key]) for style in styles}) == len(styles)


@pytest.mark.parametrize(("lines", "is_outside"), [(2, False), (9, True)])
def test_a_long_legend_stands_beside_the_lines(monkeypatch, tmp_path, lines, is_outside):
    found = []
    monkeypatch.setattr(draw, "_save", lambda figure, paths: found.append(figure))
    points = ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    draw.curves({f"run {number}": points for number in range(lines)}, tmp_path / "a.png", x_label="x", y_label="y")
    (figure,) = found
    figure.draw_without_rendering()
    (legend,) = figure.legends if is_outside else [figure.axes[0].get_legend()]
    assert len(legend.get_texts()) == lines
    assert bool(legend.get_window_extent().x0 >= figure.axes[0].get_window_extent().x1) is is_outside
    assert len({(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}) == lines


def test_a_figure_in_several_files_is_drawn_once_and_has_one_layout(tmp_path):
    paths = draw.figure_paths(tmp_path / "run-0.5")
    assert [path.name for path in paths] == ["run-0.5.png", "run-0.5.svg", "run-0.5.pdf"]
    assert draw.curves({"loss": ([1, 2], [3.0, 2.0])}, *paths, x_label="epoch", y_label="loss") == paths[0]
    starts = (b"\x89PNG", b"<?xml", b"%PDF")
    assert all(path.read_bytes().startswith(start) for path, start in zip(paths, starts, strict=True))
    assert draw.figure_lines([*paths, tmp_path / "other.png"]) == [f"{paths[0]}, .svg, .pdf", f"{tmp_path}/other.png"]


@pytest.mark.parametrize(("lowest", "colors"), [(0.0, "Blues"), (-1.0, "viridis")])
def test_attention_has_one_color_scale(monkeypatch, tmp_path, lowest, colors):
    """Those of `heat_maps`."""
    found = []
    monkeypatch.setattr(draw, "_save", lambda figure, paths: found.append(figure))
    draw.heat_map([[lowest, 0.5], [math.nan, 1.0]], tmp_path / "a.png", rows="ab", columns="cd")
    assert found[0].axes[0].get_images()[0].get_cmap().name == colors
