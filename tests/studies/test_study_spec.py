"""A study's file: what it may say, what each place of it becomes, and errors that name the file and the mistake."""

import json

import pytest
import yaml

import anaphor
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric
from anaphor.studies.axes import Range
from anaphor.studies.figures import draw_study
from anaphor.studies.findings import describe_findings
from anaphor.studies.groups import Group, Objective
from anaphor.studies.study_file import find_study_file, list_presets, read_study
from anaphor.studies.tables import write_tables
from studies.preset_cases import PRESETS

LOSS = Objective(Metric("loss", "min", "loss", "nats"))


def read(tmp_path, text, **more):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return read_study(path, **more)


def places(spec):
    return [dict(setting.parameters) for setting in spec.settings()]


def test_a_grid_has_every_combination_in_the_order_of_the_file(tmp_path):
    spec = read(tmp_path, "parameters: {width: {values: [8, 16]}, layers: {values: [1, 2]}}\n")
    assert places(spec) == [
        {"width": 8, "layers": 1},
        {"width": 8, "layers": 2},
        {"width": 16, "layers": 1},
        {"width": 16, "layers": 2},
    ]
    assert [(setting.run.width, setting.run.layers) for setting in spec.settings()] == [
        (8, 1),
        (8, 2),
        (16, 1),
        (16, 2),
    ]
    assert spec.axes == {"width": (8, 16), "layers": (1, 2)}


def test_zip_goes_along_all_axes_together(tmp_path):
    spec = read(tmp_path, "method: zip\nparameters: {width: {values: [8, 16]}, layers: {values: [1, 2]}}\n")
    assert places(spec) == [{"width": 8, "layers": 1}, {"width": 16, "layers": 2}]


def test_a_list_is_run_as_it_is_written(tmp_path):
    spec = read(tmp_path, "method: list\nparameters: [{width: 8}, {width: 16, mixers: [lstm, attention]}]\n")
    assert places(spec) == [{"width": 8, "mixers": None}, {"width": 16, "mixers": "[lstm, attention]"}]
    assert spec.settings()[1].run.mixers == ("lstm", "attention")


def test_every_place_of_a_list_has_a_value_on_every_axis(tmp_path):
    """What the list does not say is what the base says, unless something that the list says takes its place."""
    spec = read(
        tmp_path,
        "method: list\nbase: {width: 8, epochs: 2}\nparameters: [{lr: 0.01}, {width: 16}, {epochs: 3}, {steps: 5}]\n",
    )
    assert places(spec) == [
        {"lr": 0.01, "width": 8, "epochs": 2, "steps": None},
        {"lr": None, "width": 16, "epochs": 2, "steps": None},
        {"lr": None, "width": 8, "epochs": 3, "steps": None},
        {"lr": None, "width": 8, "epochs": None, "steps": 5},
    ]
    assert spec.axes == {"lr": (0.01, None), "width": (8, 16), "epochs": (2, 3, None), "steps": (None, 5)}
    groups = [Group(place, (0,), (3.0 + number,)) for number, place in enumerate(places(spec))]
    assert describe_findings(groups, spec.axes, LOSS)
    rows = write_tables(groups, spec.axes, LOSS, {}, tmp_path).splitlines()[2:]
    assert [row.split()[1] for row in rows] == ["0.01", "none", "none", "none"]
    assert draw_study(groups, spec.axes, LOSS, tmp_path)


def test_a_named_variant_may_set_several_things(tmp_path):
    spec = read(
        tmp_path,
        "base: {width: 8}\nparameters: {kind: {settings: {small: {}, big: {width: 32, layers: 3}}}}\n",
    )
    assert places(spec) == [{"kind": "small"}, {"kind": "big"}]
    assert [setting.run.width for setting in spec.settings()] == [8, 32]


def test_a_name_that_yaml_reads_as_a_date_is_a_name(tmp_path):
    (tmp_path / "study.yaml").write_text(
        "parameters: {kind: {settings: {2024-01-01: {width: 8}, 3: {width: 12}}}}\nseeds: 1\n"
    )
    spec = read_study(tmp_path / "study.yaml")
    assert [dict(setting.parameters) for setting in spec.settings()] == [{"kind": "2024-01-01"}, {"kind": 3}]
    assert json.dumps(spec.to_plain())


def test_the_base_lies_over_a_recipe_and_a_place_over_the_base(tmp_path):
    spec = read(
        tmp_path,
        "base: {epochs: 2}\n"
        "parameters: {model: {settings: {lstm: {recipe: word-language-model-lstm}}}, lr: {values: [1.0, 2.0]}}\n",
    )
    first, second = (setting.run for setting in spec.settings())
    assert (first.data, first.optimizer, first.epochs) == ("wikitext-2", "sgd", 2)
    assert (first.lr, second.lr) == (1.0, 2.0)


def test_a_budget_takes_the_place_of_a_recipes_whatever_its_unit(tmp_path):
    spec = read(
        tmp_path,
        "base: {recipe: word-language-model-lstm, steps: 7}\nparameters: {width: {values: [8]}}\n",
    )
    run = spec.settings()[0].run
    assert (run.steps, run.epochs) == (7, None)


def test_a_budget_takes_the_place_of_the_bases_whatever_its_unit(tmp_path):
    text = "base: {epochs: 2}\nparameters: {width: {values: [8]}}\nwith_data: {wikitext-2: {base: {minutes: 3}}}\n"
    spec = read(tmp_path, text)

    def budget(spec):
        run = spec.settings()[0].run
        return run.epochs, run.steps, run.minutes

    assert budget(spec) == (2, None, None)
    assert budget(spec.with_base(steps=7)) == (None, 7, None)
    assert budget(spec.with_base(width=9)) == (2, None, None)
    assert budget(read(tmp_path, text, data="wikitext-2")) == (None, None, 3)
    assert budget(read(tmp_path, "base: {epochs: 2}\nparameters: {steps: {values: [5]}}\n")) == (None, 5, None)
    with pytest.raises(ConfigError, match=r"steps=7, minutes=3.0: give one of them"):
        spec.with_base(steps=7, minutes=3.0).settings()


def test_what_every_place_sets_is_known_and_what_some_set_is_not(tmp_path):
    spec = read(
        tmp_path,
        "parameters: {kind: {settings: {one: {lr: 1.0, heads: 2}, two: {lr: 2.0}}}, steps: {values: [5, 6]}}\n",
    )
    assert spec.find_axis_of("lr") == "kind"
    assert spec.find_axis_of("heads") is None
    assert spec.find_axis_of("epochs") == spec.find_axis_of("steps") == "steps"
    listed = read(tmp_path, "method: list\nparameters: [{width: 8, lr: 1.0}, {width: 9}]\n")
    assert (listed.find_axis_of("width"), listed.find_axis_of("lr")) == ("width", None)


def test_what_an_item_of_a_list_leaves_out_is_shown_as_it_runs(tmp_path):
    """`clip none` would be a run without clipping, and a recipe says more than the base."""
    recipe = "word-language-model-lstm"
    items = f"[{{optimizer: muon}}, {{clip: 3.0}}, {{recipe: {recipe}, steps: 9}}, {{mixers: [gru]}}]"
    spec = read(tmp_path, f"method: list\nparameters: {items}\n")
    none = {"recipe": None, "steps": None, "mixers": None}
    assert places(spec) == [
        {**none, "optimizer": "muon", "clip": 1.0},
        {**none, "optimizer": "adamw", "clip": 3.0},
        {**none, "optimizer": "sgd", "clip": 0.25, "recipe": recipe, "steps": 9},
        {**none, "optimizer": "adamw", "clip": 1.0, "mixers": "[gru]"},
    ]
    for setting in spec.settings():
        assert setting.parameters["optimizer"] == setting.run.optimizer
        assert setting.parameters["clip"] == setting.run.clip


def test_seeds_are_a_list_or_how_many(tmp_path):
    body = "parameters: {width: {values: [8]}}\n"
    assert read(tmp_path, body).seeds == (0, 1, 2)
    assert read(tmp_path, body + "seeds: 2\n").seeds == (0, 1)
    assert read(tmp_path, body + "seeds: [5, 7]\n").seeds == (5, 7)


def test_another_data_set_may_bring_settings_of_its_own(tmp_path):
    text = (
        "base: {data: grammar, width: 8}\nparameters: {bptt: {values: [5]}}\n"
        "with_data: {wikitext-2: {base: {width: 200}, seeds: 1}}\n"
    )
    here, there = read(tmp_path, text), read(tmp_path, text, data="wikitext-2")
    assert (here.settings()[0].run.data, here.settings()[0].run.width, here.seeds) == ("grammar", 8, (0, 1, 2))
    assert (there.settings()[0].run.data, there.settings()[0].run.width, there.seeds) == ("wikitext-2", 200, (0,))


def test_a_range_is_for_searches(tmp_path):
    body = "parameters: {lr: {min: 1.0e-4, max: 1.0e-2, distribution: log_uniform}}\n"
    (axis,) = read(tmp_path, "method: bayes\n" + body).parameters
    assert axis == Range("lr", 1e-4, 1e-2, "log_uniform")
    with pytest.raises(ConfigError, match="lr has no list of values: method grid needs one"):
        read(tmp_path, body)


def complete(spec):
    """A preset with what the command line must give."""
    return spec.with_base(**dict.fromkeys(spec.required, "given"))


def test_what_a_study_requires_must_be_given(tmp_path):
    body = "required: [init, lr]\nparameters: {width: {values: [8, 16]}}\n"
    spec = read(tmp_path, body)
    with pytest.raises(ConfigError, match=r"has no init of its own: give it with --init, a run or a folder"):
        spec.settings()
    with pytest.raises(ConfigError, match=r"has no lr of its own: give it with --set lr=VALUE"):
        spec.with_base(init="weights").settings()
    assert [setting.run.lr for setting in spec.with_base(init="weights", lr=0.5).settings()] == [0.5, 0.5]
    with pytest.raises(ConfigError, match=r"required=.init.: it must be a list of names"):
        read(tmp_path, body.replace("[init, lr]", "init"))


@pytest.mark.parametrize(("name", "data"), PRESETS)
def test_every_preset_says_what_it_asks_and_makes_runs(name, data):
    spec = complete(read_study(find_study_file(name), data=data))
    assert spec.about.endswith("?")
    assert len(spec.settings()) >= 3
    if data is not None:
        assert {setting.run.data for setting in spec.settings()} == {data}


@pytest.mark.parametrize("name", list_presets())
def test_a_study_written_down_is_the_same_study(name, tmp_path):
    spec = complete(read_study(find_study_file(name)))
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec.to_plain(), sort_keys=False))
    again = read_study(path)
    assert again.settings() == spec.settings()
    assert again.to_plain() == spec.to_plain()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no parameters"),
        ("parameters: {widht: {values: [8]}}\n", "a run of a study has no field 'widht'; did you mean 'width'"),
        ("parameters: {width: {values: []}}\n", "width has no values: give at least one"),
        ("parameters: {model: {settings: {}}}\n", "model has no settings: give at least one"),
        ("seeds: 0\nparameters: {width: {values: [8]}}\n", "seeds=0: give the number of seeds, at least 1, or a list"),
        ("parameters: {width: [8]}\n", "write `width: {values: \\[...\\]}`"),
        ("parameters: {width: {valeus: [8]}}\n", "width has valeus: it needs values, settings, or min and max"),
        ("parameters: {width: {values: [8, 8]}}\n", "width has a duplicate value: 8, 8"),
        ("parameters: {width: {values: [wide]}}\n", "at width wide: width='wide': it must be a whole number"),
        ("parameters: 3\n", "parameters=3: it must be a mapping"),
        ("parameters: [{width: 8}]\n", "need method list"),
        ("method: list\nparameters: {width: {values: [8]}}\n", "as a list of settings"),
        ("method: gird\nparameters: {width: {values: [8]}}\n", "did you mean 'grid'"),
        ("metric: test.loss\nparameters: {width: {values: [8]}}\n", "unknown metric 'test.loss'"),
        ("metrics: valid.loss\nparameters: {width: {values: [8]}}\n", "unknown key 'metrics'"),
        ("seeds: []\nparameters: {width: {values: [8]}}\n", "at least one"),
        ("seeds: [1, 1]\nparameters: {width: {values: [8]}}\n", "without duplicates"),
        (f"seeds: {10**30}\nparameters: {{width: {{values: [8]}}}}\n", "more than 1,000 seeds"),
        (
            "seeds: 20261118\nparameters: {width: {values: [8]}}\n",
            "seeds=20261118 is more than 1,000 seeds; a file has one seed as `seeds: \\[20261118\\]`",
        ),
        ("base: {select: [loss]}\nparameters: {width: {values: [8]}}\n", "unknown metric \"\\['loss'\\]\""),
        ("seeds: many\nparameters: {width: {values: [8]}}\n", "or a list of integers"),
        ("lengths: [0]\nparameters: {width: {values: [8]}}\n", "at least 1 token"),
        ("task: chess\nparameters: {width: {values: [8]}}\n", "unknown task 'chess'"),
        ("base: [1]\nparameters: {width: {values: [8]}}\n", "base=\\[1\\]: it must be a mapping"),
        ("base: {recipe: gpt5}\nparameters: {width: {values: [8]}}\n", "unknown recipe 'gpt5'"),
        ("method: zip\nparameters: {width: {values: [8]}, layers: {values: [1, 2]}}\n", "as many values on every axis"),
        ("method: bayes\nparameters: {lr: {min: 2, max: 1}}\n", "min must be below max"),
        ("method: bayes\nparameters: {lr: {min: 0, max: 1, distribution: log_uniform}}\n", "must be above 0"),
        ("method: bayes\nparameters: {lr: {min: 0, max: .inf}}\n", "max=inf: both must be finite"),
        (
            "method: random\nparameters: {bptt: {min: 1.5, max: 4, distribution: int_uniform}}\n",
            "bptt: min=1.5, max=4: distribution int_uniform needs integers",
        ),
        ("trials: many\nparameters: {width: {values: [8]}}\n", "trials='many': it must be a whole number"),
        ("trials: 2.5\nparameters: {width: {values: [8]}}\n", "trials=2.5: it must be a whole number"),
        ("long_lines: three\nparameters: {width: {values: [8]}}\n", "long_lines='three': it must be a whole number"),
        ("prune: maybe\nparameters: {width: {values: [8]}}\n", "prune='maybe': it must be True or False"),
        ("parameters: {width: {values: [{a: 1}]}}\n", "width: {'a': 1} must be a number, a name or a list of them"),
        ("parameters: {width: {values: [!!set {a}]}}\n", "width: {'a'} must be a number, a name or a list of them"),
        ("samples: {one: ''}\nparameters: {width: {values: [8]}}\n", "samples: one is empty"),
        ("samples: {one: }\nparameters: {width: {values: [8]}}\n", "samples: one is empty"),
        ("samples: {test: a b}\nparameters: {width: {values: [8]}}\n", "samples: test is another column"),
        (
            "samples: {2 long lines: a b}\nlong_lines: 2\nparameters: {width: {values: [8]}}\n",
            "samples: 2 long lines is another column",
        ),
        ("base: {mixers: lstm}\nparameters: {width: {values: [8]}}\n", "mixers='lstm': it must be a list of strings"),
        (
            "seeds: 2\nparameters: {seed: {values: [7, 8]}}\n",
            "seed is no axis: use `seeds: \\[7, 8\\]` or `seeds: 2`",
        ),
        ("method: random\nparameters: {seed: {min: 1, max: 9}}\n", "seed is no axis: use `seeds: "),
        ("parameters: {seeds: {values: [7, 8]}}\n", "seeds is no axis: use `seeds: "),
        ("parameters: {kind: {settings: {one: {seed: 7}, two: {}}}}\n", "seed is no setting: use `seeds: "),
        ("method: list\nparameters: [{width: 8, seed: 7}]\n", "seed is no axis: use `seeds: "),
        ("base: {seed: 7}\nparameters: {width: {values: [8]}}\n", "seed is no setting: use `seeds: "),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text).settings()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "other", "own"),
    [
        ("base: {beam: 3}\nparameters: {width: {values: [8]}}\n", "beam", "translate", "lm"),
        ("parameters: {source: {values: [de]}}\n", "source", "translate", "lm"),
        ("task: translate\nbase: {bptt: 3}\nparameters: {width: {values: [8]}}\n", "bptt", "lm", "translate"),
    ],
)
def test_a_setting_of_the_other_task_is_told_as_one(tmp_path, text, name, other, own):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text).settings()
    assert str(caught.value) == (
        f"study 'study': {name} is a setting of `task: {other}`, and this study has `task: {own}`"
    )


def test_a_list_among_the_values_is_one_value_in_brackets(tmp_path):
    spec = read(
        tmp_path, "parameters: {layer_lr: {values: [[1, 1], [0.5, 1.0]]}, layer_residuals: {values: [[true, false]]}}\n"
    )
    assert spec.axes == {"layer_lr": ("[1, 1]", "[0.5, 1.0]"), "layer_residuals": ("[yes, no]",)}


def test_an_unknown_study_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown study 'bptts'; did you mean 'bptt'"):
        find_study_file("bptts")


def test_a_setting_may_follow_another(tmp_path):
    told = (
        "parameters: {model: {settings: {wide: {model: transformer, feedforward: $width}}}, width: {values: [8, 16]}}\n"
    )
    assert [setting.run.feedforward for setting in read(tmp_path, told).settings()] == [8, 16]
    in_base = (
        "base: {recipe: word-language-model-transformer, feedforward: $width}\nparameters: {layers: {values: [1]}}\n"
    )
    assert [setting.run.feedforward for setting in read(tmp_path, in_base).settings()] == [200]
    with pytest.raises(ConfigError, match=r"unknown setting in feedforward=\$widht: 'widht'; did you mean 'width'"):
        read(tmp_path, told.replace("$width", "$widht")).settings()
    with pytest.raises(ConfigError, match=r"heads: \$feedforward refers to \$width"):
        read(tmp_path, told.replace("$width", "$width, heads: $feedforward")).settings()


def test_the_grid_of_the_seed_has_nhid_everywhere():
    spec = read_study(find_study_file("grid"), data="wikitext-2")
    transformers = [setting.run for setting in spec.settings() if setting.parameters["model"] == "transformer"]
    assert {(run.width, run.feedforward) for run in transformers} == {(size, size) for size in (64, 128, 256, 512)}
    assert len(spec.settings()) == 32


def test_its_path_may_be_a_string(tmp_path):
    (tmp_path / "own.yaml").write_text("base: {model: lstm}\nparameters: {width: {values: [8, 16]}}\n")
    assert anaphor.read_study(str(tmp_path / "own.yaml")).name == "own"
