"""Specs to files and back, and what is refused on the way."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anaphor.cli.main import main
from anaphor.cli.score import Options as ScoreOptions
from anaphor.cli.train import flags_class, read_command_line
from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.flags import from_yaml, parse, read_flags
from anaphor.models import PRESETS, LanguageModelSpec, preset
from anaphor.plain_values import plain_value
from anaphor.registry import TASKS
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.yaml_files import dump_yaml, parse_yaml, read_mapping


def to_yaml(spec):
    return dump_yaml({name: plain_value(value) for name, value in vars(spec).items()})


@pytest.mark.parametrize("name", PRESETS)
def test_a_spec_survives_being_written(name, tmp_path):
    spec = preset(name, vocabulary=100)
    path = tmp_path / "spec.yaml"
    path.write_text(to_yaml(spec), encoding="utf-8")
    assert from_yaml(LanguageModelSpec, path) == spec


@given(
    width=st.sampled_from([8, 24]),
    dropout=st.floats(0, 0.9),
    tied=st.booleans(),
    layer_widths=st.sampled_from([(), (8, 16)]),
    embedding=st.one_of(st.none(), st.integers(1, 50)),
)
def test_any_values_survive(tmp_path_factory, width, dropout, tied, layer_widths, embedding):
    spec = LanguageModelSpec(
        vocabulary=9,
        mixers=("lstm", "gru"),
        width=width,
        dropout=dropout,
        tied=tied,
        layer_widths=layer_widths,
        embedding=embedding,
    )
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(to_yaml(spec), encoding="utf-8")
    assert from_yaml(LanguageModelSpec, path) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vocabulary: 9\nwidht: 3", "no field 'widht'; did you mean 'width'"),
        ("vocabulary: 9\nwidth: wide", "width"),
        ("vocabulary: 9\nwidth: {_target_: os.system}", "a spec is flat"),
        ("vocabulary: 9\nmixers: [[lstm]]", "a spec is flat"),
        ("vocabulary: !!python/object/apply:os.system [ls]", "not a plain YAML file"),
        ("- 1\n- 2", "must hold `name: value` lines"),
        ("width: 8", "vocabulary"),
        ("[" * 100_000, "not a plain YAML file"),
        ("a: " + "x" * 2_000_000, "a spec has at most"),
    ],
    ids=["typo", "type", "nested", "nested-list", "python-object", "list", "missing", "deep", "huge"],
)
def test_files_that_are_no_specs_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        from_yaml(LanguageModelSpec, path)
    assert "\n" not in str(caught.value)
    assert "spec.yaml" in str(caught.value) or "LanguageModelSpec" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width: 8\nheads: 2\nwidth: 16\n", "gives 'width' twice, the second time in line 3"),
        ("base:\n  lr: 1\n  lr: 2\n", "gives 'lr' twice, the second time in line 3"),
        ("axes:\n- {lr: 1}\n- lr: 2\n  lr: 3\n", "gives 'lr' twice, the second time in line 4"),
        ("one: {lr: 1, lr: 2}\n", "gives 'lr' twice, the second time in line 1"),
    ],
)
def test_a_name_that_comes_twice_is_refused(tmp_path, text, message):
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_mapping(path)
    assert str(caught.value) == f"{path} {message}"


def test_the_same_name_in_two_places_is_no_repetition(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("one: &shared {lr: 1}\ntwo: {lr: 2}\nthree: *shared\nfour: [{lr: 3}, {lr: 4}]\n")
    assert read_mapping(path)["three"] == {"lr": 1}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no file at .*nowhere\.yaml"):
        from_yaml(LanguageModelSpec, tmp_path / "nowhere.yaml")


def test_a_number_like_3e_4_is_a_number(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("vocabulary: 9\nmixers: [lstm]\ndropout: 3e-4", encoding="utf-8")
    assert from_yaml(LanguageModelSpec, path).dropout == 3e-4


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("-2E5", -2e5), ("3.e+2", 300.0), ("1e-3x", "1e-3x"), ("[1e-4, 1]", [1e-4, 1])]
)
def test_exponents_are_numbers_wherever_values_are_read(text, value):
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("score", "`anaphor score` needs RUN: run folder"),
        ("look", "`anaphor look` needs RUN: run folder"),
    ],
)
def test_a_missing_argument_is_named(verb, message, error_of):
    assert error_of([verb]) == message


def test_a_value_of_a_file_may_look_like_a_flag(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text('data: "--width"\nwidth: 12\n', encoding="utf-8")
    spec = from_yaml(LanguageRunSpec, path)
    assert (spec.data, spec.width) == ("--width", 12)


def test_help_shows_defaults_of_zero(capsys):
    assert main(["train", "lm", "--help"]) == 0
    assert "Random seed. (default: 0)" in capsys.readouterr().out


def test_flags_override_a_file(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("width: 8\nlayers: 3\n")
    _, spec, given = read_command_line(TASKS["lm"], ["--config", str(path), "--width", "12"])
    assert (spec.width, spec.layers) == (12, 3)
    assert given == {"config", "width"}
    with pytest.raises(ConfigError, match=r"--widht.*did you mean '--width'"):
        read_command_line(TASKS["lm"], ["--config", str(path), "--widht", "12"])


@pytest.mark.parametrize(("words", "tied"), [([], None), (["--tied"], True), (["--no-tied"], False)])
def test_what_is_left_open_is_set_by_a_switch(words, tied):
    spec = parse(LanguageRunSpec, words, program="x")
    assert spec == LanguageRunSpec(tied=tied)
    assert type(spec) is LanguageRunSpec


@pytest.mark.parametrize("words", [["--no-tied", "--tied"], ["--width", "8", "--width=9"], ["--tied", "--tied"]])
def test_a_flag_given_twice_is_refused(words):
    with pytest.raises(ConfigError, match=r"--(tied|width) is given twice"):
        parse(LanguageRunSpec, words, program="x")


@pytest.mark.parametrize("given", [True, False, None])
def test_a_switch_overrides_a_file_and_a_file_may_leave_it_open(tmp_path, given):
    path = tmp_path / "spec.yaml"
    path.write_text(to_yaml(LanguageRunSpec(tied=given)), encoding="utf-8")
    assert from_yaml(LanguageRunSpec, path).tied is given
    for flag, tied in (("--width=8", given), ("--no-tied", False), ("--tied", True)):
        assert read_command_line(TASKS["lm"], ["--config", str(path), flag])[1].tied is tied


@pytest.mark.parametrize(("typed", "meant"), [("--teid", "--tied"), ("--no-teid", "--no-tied")])
def test_a_mistyped_switch_gets_the_nearest_one(typed, meant):
    with pytest.raises(ConfigError, match=f"{typed}; did you mean '{meant}'"):
        parse(LanguageRunSpec, [typed], program="x")
    with pytest.raises(ConfigError, match="maybe"):
        parse(LanguageRunSpec, ["--tied", "maybe"], program="x")


def test_help_shows_both_sides_of_a_switch_and_no_double_negation(capsys):
    with pytest.raises(SystemExit):
        parse(flags_class(TASKS["lm"]), ["--help"], program="x")
    shown = capsys.readouterr().out
    for switch in ("--tied, --no-tied", "--carry, --no-carry", "--head-bias, --no-head-bias", "--no-test"):
        assert switch in shown
    assert "Tie the weights of the head to the embeddings." in shown
    assert "--no-no-" not in shown


@pytest.mark.parametrize("words", [["--mixers"], ["--mixers", "--width", "8"]], ids=" ".join)
def test_a_list_without_values_is_refused(words, capsys):
    assert main(["train", "lm", *words, "--dry-run"]) == 2
    assert capsys.readouterr() == ("", "anaphor: --mixers needs a value\n")


def test_a_list_without_values_clears_that_of_a_file(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("layers: 2\nlayer_lr: [0.5, 1]\n")
    for flags, expected in (([], (0.5, 1)), (["--layer-lr"], ())):
        assert read_command_line(TASKS["lm"], ["--config", str(path), *flags])[1].layer_lr == expected


def test_look_up_says_what_there_is():
    with pytest.raises(ConfigError, match=r"unknown colour 'gren'; did you mean 'green'\? \(known: blue, green\)"):
        look_up({"green": 1, "blue": 2}, "gren", "colour")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", {}),
        ("--width 12 --lr 1e-3 --model gru", {"width": 12, "lr": 1e-3, "model": "gru"}),
        ("--mixers lstm attention --layer-widths 8 16", {"mixers": ("lstm", "attention"), "layer_widths": (8, 16)}),
        ("--tied --no-carry", {"tied": True, "carry": False}),
        ("--dropout 0 --seed 3 --memory None", {"dropout": 0.0, "seed": 3, "memory": None}),
        ("--layer_dropouts 0.1 0.2 --epochs=2", {"layer_dropouts": (0.1, 0.2), "epochs": 2.0}),
        ("--import a.py --import b.py --no-test", {"imports": (Path("a.py"), Path("b.py")), "no_test": True}),
        ("--layer-widths=8 16 --bptt 5", {"layer_widths": (8, 16), "bptt": 5}),
        ("--normalize softmax --out ~/runs", {"normalize": "softmax", "out": Path.home() / "runs"}),
        ("--data=--width --model=a=b", {"data": "--width", "model": "a=b"}),
        ("--data -x --weight-decay -1e-3 --seed -5", {"data": "-x", "weight_decay": -1e-3, "seed": -5}),
    ],
)  # fmt: skip
def test_words_are_read_by_the_types_of_the_fields(words, values):
    assert read_flags(flags_class(TASKS["lm"]), words.split(), program="anaphor train lm") == values


def test_words_between_flags_are_positional():
    options = parse(
        ScoreOptions, ["run", "-h is no help here", "--threads", "2", "- one", "-2"], program="anaphor score"
    )
    assert (options.run, options.threads) == (Path("run"), 2)
    assert options.texts == ("-h is no help here", "- one", "-2")


def outcome(text):
    """What a text is read as, or how it is refused."""
    try:
        return parse_yaml(text)
    except (ConfigError, yaml.YAMLError, ValueError, RecursionError) as error:
        return type(error), str(error)


def outcome_without_the_parser_in_c(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(yaml, "CSafeLoader", raising=False)
        return outcome(text)


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(values)
def test_both_parsers_read_the_same(value):
    text = dump_yaml({"value": value})
    assert outcome(text) == outcome_without_the_parser_in_c(text)


@pytest.mark.parametrize(
    "text",
    ["a: [1", "a: 1\na: 2\n", "<<: {a: 1}\n", "a: " + "9" * 5000, "\0", "[" * 1200, "- " * 1200, "a: 2026-99-99"],
)
def test_both_parsers_refuse_with_the_same_words(text):
    assert outcome(text) == outcome_without_the_parser_in_c(text)
    assert issubclass(outcome(text)[0], Exception)


def test_numbers_of_yaml_1_2_are_numbers_for_both_parsers():
    assert outcome("a: 3e-4") == outcome_without_the_parser_in_c("a: 3e-4") == {"a": 3e-4}
