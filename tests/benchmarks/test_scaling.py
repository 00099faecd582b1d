"""The bench of scaling measures recipes at larger batches, finds the largest model, and estimates hours on paper."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from anaphor.data.datasets import find_dataset, open_dataset
from anaphor.registry import DATASETS, TASKS
from anaphor.training.step import CUDAGraphStep
from benchmarks import scaling
from benchmarks.__main__ import main
from benchmarks.scaling import ImageShape, Search, TextShape
from benchmarks.scaling_report import LargestModel, Point, RecipeCost, Scaling, format_number, render_page

CPU = torch.device("cpu")
TINY = {
    "one": ("lm", {"model": "lstm", "width": 4, "batch_size": 2, "bptt": 4, "steps": 100}),
    "two": ("classify", {"model": "lstm", "width": 4, "batch_size": 2, "epochs": 2.0}),
}


@pytest.fixture
def tiny(monkeypatch, tmp_path, single_precision, own_cache):
    """Two small recipes of two tasks, and a small search."""
    data = {"lm": tmp_path / "text.txt", "classify": tmp_path / "labeled.tsv"}
    data["lm"].write_text("a b c d\n" * 100)
    data["classify"].write_text("text\tlabel\n" + "a b c\tx\nd e\ty\n" * 50)
    specs = {
        name: (TASKS[task], TASKS[task].run_spec(data=str(data[task]), **settings))
        for name, (task, settings) in TINY.items()
    }
    monkeypatch.setattr(scaling, "find_recipes", lambda names=(): {name: specs[name] for name in names or specs})
    search = Search(largest=1, head_width=8, rows=1, context=4, vocabulary=9, steps=1)
    monkeypatch.setitem(scaling.SEARCHES, "cpu", search)
    return specs


def test_the_command_writes_page_figure_and_json(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["--parts", "scaling", "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in out.iterdir()) == ["scaling.json", "scaling.md", "scaling.png"]
    assert json.loads((out / "scaling.json").read_text())["recipes"] == report["scaling"]["recipes"]
    for cost, (task, spec) in zip(report["scaling"]["recipes"], tiny.values(), strict=True):
        assert (cost["task"], cost["unit"], cost["data"]) == (task.name, task.unit, spec.data)
        assert [point["batch_size"] for point in cost["points"]] == [spec.batch_size * n for n in (1, 2, 4, 8, 16)]
        assert cost["points"][0]["relative_cost"] == 1
        for point in cost["points"]:
            assert point["seconds_per_million"] * point["items_per_second"] == pytest.approx(1e6)
    assert report["scaling"]["largest_model"]["layers"] == 1
    page = (out / "scaling.md").read_text()
    assert "![Seconds per million items against the batch size](scaling.png)" in page
    assert "epochs · items per epoch / (items per second) / 3600" in page
    assert (out / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_people_get_a_table(tiny, capsys):
    assert main(["--parts", "scaling", "--recipes", "two"]) == 0
    output = capsys.readouterr().out
    assert "16 ×" in output
    assert "sentences" in output
    assert "largest model: " in output
    assert "one" not in output.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--parts", "scaling", "--recipes", "wikitext-2-lstn"], "did you mean 'wikitext-2-lstm'?"),
        (["--recipes", "sst2"], "recipes=sst2 has no effect: only --parts scaling and --against use it"),
    ],
)
def test_wrong_recipes_are_refused_in_one_line(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def measure_costs(specs, tmp_path):
    ticks = []
    costs, left_out = scaling.measure_recipes(specs, CPU, tmp_path, ticks.append)
    assert len(ticks) == len(scaling.MULTIPLES) * len(specs)
    assert not left_out
    return {cost.recipe: cost for cost in costs}


@pytest.mark.parametrize("in_capture", [False, True])
def test_what_does_not_fit_ends_a_recipe_and_not_the_others(tiny, tmp_path, monkeypatch, in_capture):
    time_steps = scaling.time_steps

    def fail_when_large(spec, cost, device):
        if spec.task == "lm" and spec.batch_size > 4:
            try:
                raise torch.OutOfMemoryError("no more")
            except torch.OutOfMemoryError:
                if in_capture:
                    raise RuntimeError("the capture failed")  # noqa: B904 (as torch raises it)
                raise
        return time_steps(spec, cost, device)

    monkeypatch.setattr(scaling, "time_steps", fail_when_large)
    costs = measure_costs(tiny, tmp_path)
    assert [point.reason for point in costs["one"].points] == ["", "", *["does not fit"] * 3]
    assert all(point.items_per_second for point in costs["two"].points)
    assert "| one | 8 (4 ×) | does not fit | –" in render_page(Scaling(list(costs.values()), None, {}), {}, "", None)


@pytest.mark.parametrize("kind", [RuntimeError, TimeoutError])  # those of Triton are no RuntimeError, either
def test_other_errors_are_shown_and_are_an_exit_code(kind, tiny, monkeypatch, capsys):
    def fail(spec, cost, device):
        raise kind("shapes\ndiffer")

    monkeypatch.setattr(scaling, "time_steps", fail)
    assert main(["--parts", "scaling", "--recipes", "one", "--json"]) == 1
    (cost,) = json.loads(capsys.readouterr().out)["scaling"]["recipes"]
    assert {point["reason"] for point in cost["points"]} == {f"failed: {kind.__name__}: shapes differ"}


def test_slow_points_and_those_after_the_time_limit_are_skipped(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "POINT_SECONDS", 0.0)
    slow = measure_costs({"one": tiny["one"]}, tmp_path)["one"]
    assert [point.reason for point in slow.points] == ["", *["too slow"] * 4]
    assert slow.points[0].spread is None, "one pass"
    monkeypatch.setattr(scaling, "RECIPE_SECONDS", -1.0)
    late = measure_costs(tiny, tmp_path)["two"]
    assert [point.reason for point in late.points] == ["no time left"] * 5
    assert late.estimate() is None
    assert "| two | classify | – | float32 | – |" in render_page(Scaling([late], None, {}), {}, "", None)


def test_a_text_that_is_too_short_for_a_batch_says_so(tiny, tmp_path):
    task, spec = tiny["one"]
    cost = measure_costs({"one": (task, replace(spec, batch_size=16))}, tmp_path)["one"]
    assert cost.points[0].items_per_second
    assert "too short for 256 rows" in cost.points[-1].reason


@pytest.mark.needs("extras")
def test_every_recipe_can_be_measured_without_a_download():
    recipes = scaling.find_recipes()
    assert len(recipes) >= 12
    assert {task.name for task, _ in recipes.values()} == set(TASKS)
    # The small encoder learns from a data set of the program, which needs no shape.
    assert {spec.data for _, spec in recipes.values()} - {"negation"} <= set(scaling.SHAPES)


SMALL = {
    "wikitext-2": TextShape(40, (9.0,), (50,)),
    "tinyshakespeare": TextShape(40, (9.0,), (65,), separator=""),
    "multi30k": TextShape(40, (5.0, 6.0), (30, 40)),
    "sst2": TextShape(40, (5.0,), (30,)),
    "cifar-10": ImageShape(40, 8, 10),
}


@pytest.mark.parametrize("name", SMALL)
def test_data_that_are_not_here_are_drawn_in_their_sizes(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ANAPHOR_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(scaling, "SHAPES", SMALL)
    monkeypatch.setattr(scaling, "HELD_OUT", 20)
    path, described = scaling.locate_data(name, tmp_path)
    assert described == f"drawn at random in the sizes of {name}"
    assert scaling.locate_data(name, tmp_path)[0] == path, "drawn once"
    entry, languages = find_dataset(name), {"source": "en", "target": "de"} if name == "multi30k" else {}
    rows = open_dataset(path, entry.columns, **languages).rows("train").values
    assert len(rows) == 40
    shape = SMALL[name]
    if isinstance(shape, TextShape):
        for column, vocabulary in enumerate(shape.vocabulary):
            words = [word for row in rows for word in (row[column].split() if shape.separator else row[column])]
            assert len(set(words)) == vocabulary
    else:
        assert {label for _, label in rows} == {str(number) for number in range(10)}


def test_real_data_are_used_where_they_are_and_unknown_ones_left_out(tmp_path, monkeypatch):
    assert scaling.locate_data("grammar", tmp_path) == ("grammar", "grammar")
    file = SimpleNamespace(find=lambda: None)
    monkeypatch.setattr(scaling, "find_dataset", lambda name: SimpleNamespace(files=(file,)))
    DATASETS.add("mine", object())
    task = TASKS["lm"]
    costs, left_out = scaling.measure_recipes({"it": (task, task.spec(data="mine"))}, CPU, tmp_path, lambda now: None)
    assert costs == []
    assert left_out == {"it": "the data set mine is not on this machine: get it by `anaphor data get mine`"}


@dataclass(frozen=True)
class Padded:
    tokens: torch.Tensor
    restarts: bool = False


def test_sampled_batches_are_full_and_spread_over_the_sizes():
    batches = [Padded(torch.zeros(4, width)) for width in (9, 3, 7, 5, 1, 8, 2, 6, 4)]
    odd = [Padded(torch.zeros(3, 50)), Padded(torch.zeros(4, 60), restarts=True)]
    chosen = scaling.sample_batches([*odd, *batches], rows=4, count=3)
    assert [batch.tokens.shape[1] for batch in chosen] == [2, 5, 8]
    assert len(scaling.sample_batches(odd, rows=4, count=8)) == 1


def test_warm_up_ends_when_all_steps_are_captured():
    step = object.__new__(CUDAGraphStep)  # without a GPU
    step.captured = SimpleNamespace(seen=Counter())
    passes = []

    def run():
        passes.append(1)
        step.captured.seen["shape"] += len(passes) <= 3

    scaling.run_until_captured(run, step)
    assert len(passes) == 4


@pytest.mark.parametrize("limit", range(8))
def test_bisection_finds_the_largest_model(limit, monkeypatch):
    def try_model(search, layers, device):
        return LargestModel(layers, 1, 1, 1, 1, 1, 1.0, 1.0, None) if layers <= limit else None

    monkeypatch.setattr(scaling, "try_model", try_model)
    search, ticks = Search(largest=7, head_width=1, rows=1, context=1, vocabulary=1, steps=1), []
    found = scaling.find_largest(search, CPU, ticks.append)
    assert (found.layers if found else 0) == limit
    assert len(ticks) == 3
    if found:
        assert found.bound == ("the most layers that are tried" if limit == 7 else "memory")


@pytest.mark.parametrize(
    "message", ["Triton Error [CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "shapes differ"]
)
def test_a_model_that_does_not_fit_is_told_from_one_that_fails(message, monkeypatch):
    def fail(search, layers, device):
        raise RuntimeError(message)

    monkeypatch.setattr(scaling, "time_model", fail)
    search = Search(largest=7, head_width=1, rows=1, context=1, vocabulary=1, steps=1)
    if message == "shapes differ":
        with pytest.raises(RuntimeError, match=message):
            scaling.try_model(search, 1, CPU)
    else:
        assert scaling.try_model(search, 1, CPU) is None


def test_the_largest_model_has_the_shape_of_its_family(single_precision):
    search = Search(largest=3, head_width=8, rows=2, context=6, vocabulary=11, steps=1)
    model = scaling.time_model(search, 2, CPU)
    assert (model.layers, model.width, model.rows, model.context) == (2, 16, 2, 6)
    assert model.parameters > 2 * 12 * 16**2
    assert model.tokens_per_second > 0


def test_hours_on_paper_follow_from_the_speed():
    cost = RecipeCost("r", "lm", "tokens", "d", "float32", {"epochs": 10.0}, 5, 3600, 20.0)
    cost.points = [Point(1, 2, 10.0), Point(2, 4, 40.0), Point(4, 8, reason="does not fit")]
    epochs = {
        "epochs": 10, "hours": 1, "hours_more_data": 100, "hours_more_data_one_epoch": 10, "cheapest_multiple": 2,
        "hours_more_data_cheapest": 25, "hours_more_data_one_epoch_cheapest": 2.5,
    }  # fmt: skip
    assert cost.estimate() == pytest.approx(epochs)
    assert replace(cost, budget={"steps": 200}).estimate() == pytest.approx(epochs)
    assert replace(cost, budget={"minutes": 60}).estimate() == pytest.approx(epochs)
    assert [cost.relative_cost(point) for point in cost.points] == [1, 0.25, None]
    model = LargestModel(2, 16, 3_600_000, 1, 8, 9, 1.0, 2_088_628.0, None)
    assert model.estimate() == pytest.approx(
        {"hours_more_data": 100 / 3600, "hours_compute_optimal": 7.2e7 / 2_088_628 / 3600}
    )
    assert model.teraflops(1e6) == pytest.approx(21.6)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.012345, "0.0123"), (9.996, "10.0"), (99.96, "100"), (1234567.0, "1,230,000"), (0.0, "0"), (None, "–"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert format_number(value) == text
