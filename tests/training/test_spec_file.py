"""`spec.yaml` of a run: the values that were used, in sections; it repeats the run and does not leak into another."""

import platform

import pytest
import torch

import anaphor
from anaphor.api import execute
from anaphor.cli.main import main
from anaphor.cli.train import read_command_line
from anaphor.flags import from_yaml
from anaphor.registry import TASKS
from anaphor.training.run_folder import RunFolder
from anaphor.yaml_files import dump_yaml, read_mapping

TEXT = "the cat sat on the mat\na dog sat on a log\n\n" * 20
BASE = {"steps": 2, "device": "cpu", "batch_size": 2, "width": 8}
LM = {"data": "text", "bptt": 5, **BASE}
TRANSLATE = {"data": "pairs", "source": "en", "beam": 2, **BASE}
RUNS = {
    "lstm": ("lm", {**LM, "model": "lstm", "layers": 1}),
    "transformer": ("lm", {**LM, "model": "transformer", "layers": 2, "heads": 2}),
    "transformer-xl": ("lm", {**LM, "model": "transformer-xl", "layers": 1, "heads": 2, "memory": 7}),
    "hybrid": ("lm", {**LM, "model": "hybrid", "layers": 2, "heads": 2, "dropout": 0.1}),
    "gpt": ("lm", {**LM, "model": "gpt-nano", "heads": 2, "max_positions": 12}),
    "widths": (
        "lm",
        {**LM, "model": "lstm", "layers": 2, "layer_widths": (8, 6), "optimizer": "sgd", "average": "ema"},
    ),
    "padded": ("lm", {**LM, "model": "gru", "layers": 1, "batching": "padded", "schedule": "plateau"}),
    "luong": ("translate", {**TRANSLATE, "model": "luong"}),
    "mixed": ("translate", {**TRANSLATE, "model": "mixed", "heads": 2, "batch_tokens": 40, "optimizer": "muon"}),
}


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch, own_cache, single_precision):
    monkeypatch.chdir(tmp_path)
    for folder in ("text", "pairs"):
        (tmp_path / folder).mkdir()
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_text(TEXT)
        for side in ("en", "de"):
            (tmp_path / "pairs" / f"{split}.{side}").write_text("the cat sat\na dog\n" * 6)


@pytest.fixture
def train(tmp_path):
    """Train one of RUNS. Returns its folder and the losses of validation."""

    def trained(name, out="run", **more):
        task, settings = RUNS[name]
        return executed(TASKS[task].run_spec(**settings, **more), tmp_path / out)

    return trained


def executed(spec, out):
    execute(spec, out, test=False)
    folder = RunFolder(out)
    return folder, [line["valid"]["loss"] for line in folder.read_metrics()]


def values_in(tree):
    if isinstance(tree, dict):
        return [value for child in tree.values() for value in values_in(child)]
    return [value for child in tree for value in values_in(child)] if isinstance(tree, list) else [tree]


@pytest.mark.parametrize("name", RUNS)
def test_the_file_has_the_values_used_and_repeats_the_run(name, train, tmp_path):
    folder, losses = train(name)
    document = folder.read_document()
    task, given = RUNS[name]
    assert list(document) == ["format", "task", "data", "model", "training", "evaluation", "environment"]
    assert (document["format"], document["task"]) == (2, task)
    assert None not in values_in(document)
    assert [] not in [value for section in document.values() if isinstance(section, dict) for value in section.values()]
    settings = folder.read_settings()
    for setting, value in given.items():
        if setting in settings:
            assert settings[setting] == (list(value) if isinstance(value, tuple) else value)
    again, same_losses = executed(from_yaml(TASKS[task].run_spec, folder.spec), tmp_path / "again")
    assert again.read_document() == document
    assert same_losses == losses


LEFT_OUT = {
    "lstm": {"heads", "memory", "mask", "layer_widths", "activation", "dropout_kind", "max_positions", "epochs",
             "momentum", "plateau_factor", "patience", "eval_every", "max_examples", "vocabulary"},
    "transformer": {"weight_drop", "max_positions", "memory", "window", "layer_norms"},
    "padded": {"bptt", "protocol", "eval_batch_size", "carry", "heads", "min_lr_ratio"},
    "widths": {"width", "betas"},
    "mixed": {"batch_size", "max_length"},
}  # fmt: skip
FILLED_IN = {
    "lstm": {"lr": 0.001, "betas": [0.9, 0.95], "min_lr_ratio": 0.0, "select": "loss", "carry": True, "tied": False,
             "mixers": ["lstm"], "norm": "none", "residual": False, "feedforward": 0, "embedding": 8},
    "transformer": {"position": "sinusoidal", "feedforward": 32, "score": "scaled-dot", "mask": "causal",
                    "carry": False, "activation": "gelu", "causal": True},
    "transformer-xl": {"position": "relative", "memory": 7, "carry": True},
    "hybrid": {"mixers": ["lstm", "attention"], "memory": 128, "input_dropout": 0.1, "dropout_kind": "each"},
    "gpt": {"max_positions": 12, "position": "learned"},
    "widths": {"layer_widths": [8, 6], "lr": 1.0, "momentum": 0.0},
    "padded": {"plateau_factor": 4.0},
    "luong": {"encoder": ["lstm"], "decoder": ["lstm"], "beam": 2, "length_penalty": 1.0, "condition": "attention",
              "input_feeding": True, "encoder_layers": 1, "tied": "none"},
    "mixed": {"momentum": 0.95, "batch_tokens": 40},
}  # fmt: skip


@pytest.mark.parametrize("name", FILLED_IN)
def test_settings_left_open_have_values_and_those_that_do_not_apply_are_left_out(name, train):
    settings = train(name)[0].read_settings()
    assert {setting: settings.get(setting) for setting in FILLED_IN[name]} == FILLED_IN[name]
    assert LEFT_OUT.get(name, set()) & settings.keys() == set()


def test_the_default_budget_is_in_the_file(tmp_path):
    spec = TASKS["lm"].run_spec(**{**LM, "steps": None, "layers": 1})
    settings = executed(spec, tmp_path / "run")[0].read_settings()
    assert settings["epochs"] == 3
    assert "steps" not in settings


def test_the_environment_is_recorded_and_ignored(train, tmp_path):
    folder, losses = train("lstm")
    environment = folder.read_environment()
    assert environment == {
        "anaphor": anaphor.__version__, "python": platform.python_version(), "torch": torch.__version__,
        "device": "cpu", "dtype": "float32", "threads": 1, "data_path": str(tmp_path / "text"),
    }  # fmt: skip
    document = folder.read_document() | {"environment": {"device": "tpu", "dtype": "float8", "threads": 512}}
    (tmp_path / "other.yaml").write_text(dump_yaml(document))
    assert main(["train", "lm", "--config", "other.yaml", "--no-test", "--json", "--out", "again"]) == 0
    assert RunFolder(tmp_path / "again").read_environment() == environment
    assert [line["valid"]["loss"] for line in RunFolder(tmp_path / "again").read_metrics()] == losses


def test_a_device_left_to_auto_stays_auto(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    spec = TASKS["lm"].run_spec(**{**LM, "layers": 1, "device": "auto"})
    folder, _ = executed(spec, tmp_path / "run")
    assert (folder.read_settings()["device"], folder.read_settings()["dtype"]) == ("auto", "auto")
    assert (folder.read_environment()["device"], folder.read_environment()["dtype"]) == ("cpu", "float32")


@pytest.mark.parametrize(
    ("number", "given"),
    [
        ("1", "format 1"),
        ("3", "format 3"),
        ("true", "format True"),
        ("two", "format 'two'"),
        (None, "no format number"),
    ],
)
@pytest.mark.parametrize("use", ["evaluate run --device cpu", "generate run --tokens 2", "train lm --resume --out run"])
def test_a_run_of_another_format_is_refused_in_one_line(train, tmp_path, capsys, use, number, given):
    train("lstm")
    path = tmp_path / "run" / "spec.yaml"
    path.write_text(path.read_text().replace("format: 2\n", "" if number is None else f"format: {number}\n"))
    before = path.read_bytes()
    assert main(use.split()) == 2
    message = f"run/spec.yaml has {given}, but this version of anaphor reads format 2"
    assert capsys.readouterr().err == f"anaphor: {message}\n"
    assert path.read_bytes() == before


def test_a_config_of_another_format_is_refused_and_one_by_hand_needs_none(train, tmp_path, error_of):
    (tmp_path / "own.yaml").write_text("format: 7\nmodel: lstm\n")
    line = error_of(["train", "lm", "--config", "own.yaml", "--dry-run"])
    assert "own.yaml has format 7, but this version of anaphor reads format 2" in line
    (tmp_path / "own.yaml").write_text("model: {model: gru, width: 8}\ndata: text\ntraining:\n  steps: 3\n")
    spec = from_yaml(TASKS["lm"].run_spec, tmp_path / "own.yaml")
    assert (spec.model, spec.width, spec.data, spec.steps) == ("gru", 8, "text", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {lr: 0.1}\nlr: 0.2\n", "own.yaml gives 'lr' twice, in two sections"),
        ("training: {lr: 0.1}\nmodel: {lr: 0.2}\n", "own.yaml gives 'lr' twice, in two sections"),
        ("task: translate\n", "own.yaml is for the task 'translate', not for 'lm'"),
        ("training: {lr: {peak: 1}}\n", "own.yaml: lr holds a dict; a spec is flat: names, numbers and lists of them"),
        ("training: {widht: 1}\n", "own.yaml has no field 'widht'; did you mean 'width'?"),
        ("trainig: {lr: 1}\n", "own.yaml has no field 'trainig'"),
    ],
)
def test_mistakes_in_sections_are_one_line(tmp_path, error_of, text, message):
    (tmp_path / "own.yaml").write_text(text)
    assert error_of(["train", "lm", "--config", "own.yaml", "--dry-run"]).startswith(message)


def settings_with(task, file, *flags):
    """What a run would have with a file and flags."""
    return read_command_line(TASKS[task], ["--config", str(file), *flags])[1]


def test_another_model_does_not_get_the_values_of_the_first(train, tmp_path, error_of):
    folder, _ = train("hybrid")
    assert main(["train", "lm", "--config", "run/spec.yaml", "--model", "gru", "--heads", "None", "--no-test",
                 "--out", "gru", "--json"]) == 0  # fmt: skip
    found = RunFolder(tmp_path / "gru").read_settings()
    assert (found["width"], found["dropout"]) == (8, 0.1), "given for the first model"
    plain = executed(TASKS["lm"].run_spec(**LM, model="gru", layers=2, dropout=0.1), tmp_path / "plain")[
        0
    ].read_settings()
    assert found == plain
    line = error_of(["train", "lm", "--config", "run/spec.yaml", "--model", "gru", "--dry-run"])
    assert "heads=2 is not used by the layers gru, gru" in line
    assert settings_with("lm", folder.spec, "--model", "transformer-xl").heads == 2


def test_another_model_of_translation_does_not_get_the_values_of_the_first(train):
    folder, _ = train("luong")
    spec = settings_with("translate", folder.spec, "--model", "transformer-translation", "--width", "16")
    expected = TASKS["translate"].run_spec(**{**TRANSLATE, "model": "transformer-translation", "width": 16})
    sizes = {"source_vocabulary": 9, "vocabulary": 9}
    assert spec.model_spec(**sizes) == expected.model_spec(**sizes)


def test_the_same_model_named_again_is_the_same(train):
    for name, preset in (("hybrid", "hybrid"), ("widths", "lstm")):
        folder, _ = train(name, out=name)
        spec = settings_with("lm", folder.spec, "--model", preset, "--seed", "3")
        expected = TASKS["lm"].run_spec(**RUNS[name][1])
        assert spec.model_spec(vocabulary=9).used_settings() == expected.model_spec(vocabulary=9).used_settings()


def test_another_optimizer_has_its_usual_learning_rate(train):
    folder, _ = train("lstm")
    spec = settings_with("lm", folder.spec, "--optimizer", "sgd")
    assert (spec.lr, spec.betas, spec.momentum) == (None, (), None)
    assert settings_with("lm", folder.spec, "--epochs", "2").steps is None
    kept = train("lstm", out="kept", lr=0.25)[0]
    assert settings_with("lm", kept.spec, "--optimizer", "sgd").lr == 0.25


@pytest.mark.parametrize("flags", [["--batching", "padded"], ["--model", "transformer", "--layers", "1"]])
def test_carrying_the_state_is_decided_anew(train, flags, answer_of):
    folder, _ = train("lstm")
    assert folder.read_settings()["carry"] is True
    assert settings_with("lm", folder.spec, *flags).carry is None
    assert answer_of(["train", "lm", "--config", "run/spec.yaml", *flags, "--dry-run", "--json"])["parameters"] > 0


@pytest.mark.parametrize("heads", ["", "heads: 2\n"], ids=["a model", "no model by itself"])
def test_a_file_by_hand_keeps_its_values_under_another_model(tmp_path, heads):
    (tmp_path / "own.yaml").write_text(f"model: lstm\nwidth: 256\nlr: 0.001\n{heads}")
    spec = settings_with("lm", tmp_path / "own.yaml", "--model", "gpt-nano", "--optimizer", "sgd")
    assert (spec.width, spec.lr, spec.heads) == (256, 0.001, 2 if heads else None)


def test_python_drops_the_values_of_the_first_model_as_well(train, tmp_path):
    train("hybrid")
    run = anaphor.train("lm", config="run/spec.yaml", model="gru", heads=None, out="gru", no_test=True, progress=False)
    assert run.spec.model == "gru"
    assert read_mapping(tmp_path / "gru" / "spec.yaml")["model"]["mixers"] == ["gru"]
