"""Fair sizes: the width that a study finds is the one that counting all models finds, without drawing their weights."""

import json
from dataclasses import replace

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.flags import parse
from anaphor.imported_files import import_file
from anaphor.registry import TASKS
from anaphor.shipped_files import EXAMPLES
from anaphor.studies.command import print_cells
from anaphor.studies.report import report
from anaphor.studies.size_matching import match_size
from anaphor.studies.study import Study
from anaphor.studies.study_file import read_study
from anaphor.studies.validation import validate_study
from anaphor.studies.verb import Options
from anaphor.training.build import build_experiment
from studies.here import Here, Silent, logged

STUDY = """
base: {data: %s, layers: 1, batch_size: 4, bptt: 8, steps: 2, device: cpu}
parameters:
  model: {settings: {lstm: {model: lstm}, attention: {model: transformer, heads: 3}, gru: {model: gru}}}
match: {parameters: %s, by: width}
seeds: 1
"""


@pytest.fixture
def read(tmp_path):
    """A function that reads a study of a short text."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog ate the rat\n" * 60)

    def read(parameters=22_200, more=""):
        file = tmp_path / "study.yaml"
        file.write_text(STUDY % (tmp_path / "text.txt", parameters) + more)
        return read_study(file)

    return read


def true_size(run):
    return sum(weight.numel() for weight in build_experiment(run).model.parameters())


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("lm", {"data": "grammar", "model": "lstm"}),
        ("lm", {"data": "grammar", "model": "transformer", "heads": 3, "tied": True}),
        ("lm", {"data": "grammar", "model": "hybrid", "heads": 2, "layers": 2}),
        pytest.param("translate", {"data": "reverse", "model": "luong"}, marks=pytest.mark.slow),
        pytest.param("classify", {"data": "negation", "model": "transformer", "heads": 2}, marks=pytest.mark.slow),
        pytest.param("images", {"data": "shapes", "model": "vit-nano", "heads": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else value["model"],
)
def test_the_width_is_the_nearest_of_all_that_make_a_model(task, settings, own_cache):
    run = TASKS[task].run_spec(**settings, device="cpu")
    sizes = {}
    for width in range(24, 56):
        try:
            sizes[width] = true_size(TASKS[task].run_spec(**settings, device="cpu", width=width))
        except ConfigError:
            continue  # no multiple of the number of heads
    between = sorted(sizes)[len(sizes) // 2]
    for wanted in (sizes[between], int(1.01 * sizes[between])):
        nearest = min(sizes, key=lambda width: abs(sizes[width] - wanted))
        found, size = match_size(run, "width", wanted)
        assert (found.width, size) == (nearest, sizes[nearest])


def test_no_weights_are_drawn_while_sizes_are_counted(read, monkeypatch):
    """Those of one small model are, for the vocabulary of its text."""
    run, drawn = read().settings()[0].run, []
    draw = torch.Tensor.uniform_

    def count(x, *words, **options):
        drawn.append(0 if x.is_meta else x.numel())
        return draw(x, *words, **options)

    monkeypatch.setattr(torch.Tensor, "uniform_", count)
    _, size = match_size(run, "width", 50_000_000)
    assert drawn, "counted"
    assert sum(drawn) == 0
    assert abs(size - 50_000_000) < 1_000_000


def test_layers_may_be_matched_as_well(own_cache):
    run = TASKS["lm"].run_spec(data="grammar", model="lstm", width=8, device="cpu")
    sizes = {layers: true_size(TASKS["lm"].run_spec(data="grammar", model="lstm", width=8, layers=layers, device="cpu"))
             for layers in (2, 3)}  # fmt: skip
    found, size = match_size(run, "layers", sizes[3])
    assert (found.layers, size) == (3, sizes[3])


def test_a_study_shows_the_width_the_size_and_the_difference_of_each_setting(read, tmp_path, capsys):
    spec = read()
    settings = spec.settings()
    validate_study(spec, settings)
    (tmp_path / "out").mkdir()
    study = Study(spec, tmp_path / "out", Here(), Silent())
    study.run()
    result = report(study)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result["table"].splitlines()]
    at = rows[0].index("width")
    assert rows[0][at : at + 3] == ["width", "parameters", "of 22,200"]
    assert rows[0].count("parameters") == 1
    for row, setting, cell in zip(rows[2:], settings, study.cells, strict=True):
        size = json.loads((cell.folder / "result.json").read_text())["parameters"]
        assert row[at] == str(setting.run.width)
        assert (row[at + 1], setting.size) == (f"{size:,}", size)
        assert row[at + 2] == f"{100 * (size / 22_200 - 1):+.2f} %"
        assert abs(size - 22_200) <= 444
    assert settings[1].run.width % 3 == 0
    options = parse(Options, ["x", "--device", "cpu", "--workers", "1"], program="anaphor study")
    print_cells(spec, tmp_path / "out", options)
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"model lstm (width {settings[0].run.width}, {settings[0].size:,} parameters, ")
    assert [line["event"] for line in logged(study)].count("finished") == 3


def test_a_size_that_no_width_has_is_refused_with_the_nearest_ones(read):
    with pytest.raises(
        ConfigError, match=r"at model lstm: match: no width has 50 parameters within 2 %: width 1"
    ) as no:
        read(50).settings()
    assert "\n" not in str(no.value)


def test_a_task_of_ones_own_is_matched_without_saying_how(single_precision):
    import_file(EXAMPLES / "my_recall.py")
    run = TASKS["my-recall"].run_spec(model="lstm", device="cpu")
    found, size = match_size(run, "width", 50_000)
    assert size == true_size(found)
    assert abs(size - 50_000) < 1_000


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("match: 3", "match=3: write"),
        ("match: {parameters: 3}", "write `match: {parameters: 117000, by: width}`"),
        ("match: {parameters: many, by: width}", "parameters='many' must be an integer from 1"),
        ("match: {parameters: 0, by: width}", "parameters=0 must be an integer from 1"),
        ("match: {parameters: 9, by: widht}", "unknown setting to match by 'widht'; did you mean 'width'"),
        ("match: {parameters: 9, by: bptt}", "leave bptt=8 out of the study's base"),
        ("match: {parameters: 9, by: model}", "match finds model, and the study varies it"),
        ("match: {parameters: 9, by: tokenizer}", "by=tokenizer is no setting that is an integer"),
    ],
)
def test_what_cannot_be_matched_is_refused(lines, message, tmp_path):
    (tmp_path / "study.yaml").write_text(
        f"base: {{data: grammar, bptt: 8, device: cpu}}\nparameters: {{model: {{values: [lstm, gru]}}}}\n{lines}\n"
    )
    with pytest.raises(ConfigError, match=message):
        read_study(tmp_path / "study.yaml").settings()


def test_a_setting_that_refers_to_the_width_has_the_one_that_is_found(read):
    spec = read(22_550).with_base(feedforward="$width")
    for setting in spec.settings():
        assert setting.run.feedforward == setting.run.width
        assert setting.size == true_size(setting.run)


def test_the_refusal_names_a_size_that_all_settings_can_have(read):
    """One that a multiple of twelve heads has, and that the LSTM and the GRU come near as well."""
    spec = read(9_000)
    axis = spec.parameters[0]
    settings = tuple({**given, **({"heads": 12} if "heads" in given else {})} for given in axis.settings)
    spec = replace(spec, parameters=(replace(axis, settings=settings),))
    with pytest.raises(ConfigError, match=r"; all settings can have about [\d,]+: write `parameters: \d+`$") as no:
        spec.settings()
    suggested = int(str(no.value).split()[-1].strip("`"))
    found = replace(spec, match={**spec.match, "parameters": suggested}).settings()
    assert all(abs(setting.size - suggested) <= 0.02 * suggested for setting in found)


def test_where_no_size_is_near_the_refusal_says_so(read):
    with pytest.raises(ConfigError, match="; no size near it fits all settings: with fewer heads width comes in"):
        read(50).settings()
