"""Callbacks that a user's file registers: made for each run with their settings, called beside the progress bar."""

import hashlib
import json
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

import anaphor
from anaphor.cli.main import main
from anaphor.deprecated import AnaphorDeprecationWarning

FILE = '''
from dataclasses import dataclass
from typing import ClassVar

import torch

import anaphor


@dataclass(frozen=True, kw_only=True)
class NormSettings:
    section: ClassVar[str] = "norms"

    log_norms: int = 0
    """Steps between two lines of norms.csv; 0 for none."""


class LogNorms(anaphor.NullCallback):
    def __init__(self, every, model, file):
        torch.randn(3)  # whatever it draws, training draws the same
        self.every, self.model, self.file, self.steps = every, model, file, 0

    def on_step(self, info):
        self.steps += 1
        if self.steps % self.every == 0:
            norms = [f"{weight.norm():.4f}" for weight in self.model.parameters()]
            with self.file.open("a") as file:
                print(info.count, *norms, sep=",", file=file)

    def on_evaluation(self, info):
        with self.file.open("a") as file:
            print("valid", info.result.values["loss"], info.is_best, sep=",", file=file)


def make(settings, experiment, run):
    return LogNorms(settings.log_norms, experiment.model, run / "norms.csv") if settings.log_norms else None


anaphor.register_callback("norms", make, NormSettings)
'''
SIZES = ["--data", "text", "--width", "8", "--batch-size", "2", "--bptt", "5", "--steps", "6", "--eval-every", "3"]
TRAIN = ["train", "lm", *SIZES, "--no-test", "--device", "cpu", "--json"]

pytestmark = pytest.mark.usefixtures("text", "_single_precision")


@pytest.fixture
def _single_precision(monkeypatch, tmp_path, single_precision):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path):
    def write(old="", new=""):
        (tmp_path / "norms.py").write_text(FILE.replace(old, new) if old else FILE)
        return ["--import", str(tmp_path / "norms.py")]

    return write


def test_it_is_called_at_every_step_and_validation_of_the_runs_that_ask_for_it(file):
    assert main([*TRAIN, *file(), "--out", "without"]) == 0
    assert not Path("without/norms.csv").exists()
    assert main([*TRAIN, *file(), "--log-norms", "2", "--out", "with"]) == 0
    lines = [line.split(",")[0] for line in Path("with/norms.csv").read_text().splitlines()]
    assert lines == ["20", "valid", "40", "60", "valid"]
    document = yaml.safe_load(Path("with/spec.yaml").read_text())
    assert document["norms"] == {"log_norms": 2}
    assert document["imports"][0]["file"].endswith("norms.py")
    assert "norms" not in yaml.safe_load(Path("without/spec.yaml").read_text())
    assert Path("with/checkpoints/step-6/model.safetensors").read_bytes() == (
        Path("without/checkpoints/step-6/model.safetensors").read_bytes()
    )


class Killer(anaphor.NullCallback):
    steps = 0

    def on_step(self, info):
        self.steps += 1
        if self.steps == 5:
            raise SystemError("killed")


def test_a_resumed_run_has_it_again_and_the_same_bits(file):
    anaphor.import_file(file()[1])
    settings = {"data": "text", "width": 8, "batch_size": 2, "bptt": 5, "steps": 6, "eval_every": 3, "log_norms": 1}
    spec = anaphor.LanguageRunSpec(**settings, dropout=0.3, device="cpu")
    anaphor.execute(spec, "whole", test=False)
    with pytest.raises(SystemError):
        anaphor.execute(spec, "parts", Killer(), test=False)
    anaphor.execute(spec, "parts", test=False, resume=True)
    whole, parts = (Path(run, "norms.csv").read_text().splitlines() for run in ("whole", "parts"))
    assert parts[-4:] == whole[-4:]


def test_its_flags_have_a_section_of_help_in_every_task(file, capsys):
    for task in ("lm", "images"):
        assert main(["train", task, *file(), "--help"]) == 0
        assert "norms options" in (text := capsys.readouterr().out)
        assert "--log-norms" in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("self.steps += 1", "self.steps += None", "TypeError in line 24 of {file}"),
        ("weight.norm()", "weight.nrm()", "AttributeError in line 26 of {file}"),
        ("return LogNorms(", "return str(", "TypeError in line 36 of {file}"),
        (
            'return LogNorms(settings.log_norms, experiment.model, run / "norms.csv")',
            "return LogNorms",
            "registered callback=<class 'anaphor_import_norms.LogNorms'>: it must be an object with on_step",
        ),
    ],
)
def test_one_that_fails_is_one_line_with_its_file_and_line(file, capsys, old, new, message):
    assert main([*TRAIN, *file(old, new), "--log-norms", "1", "--out", "run"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message.format(file=file(old, new)[1]) in error


LOG = """
import json
import torch
import anaphor


class Log(anaphor.NullCallback):
    def on_step(self, info):
        torch.randn(3)
        info.model.eval()  # as for a sample; it is put back
        row = [info.step, info.epoch, info.lr, info.loss, info.gradient_norm, info.layer_gradient_norms]
        with (info.folder / "log.jsonl").open("a") as file:
            print(json.dumps(row), file=file)

    def on_evaluation(self, info):
        with (info.folder / "log.jsonl").open("a") as file:
            print(json.dumps([info.step, info.epoch, info.result.values["loss"], info.is_best]), file=file)


class Decay(anaphor.NullCallback):
    changes_training = True

    def on_step(self, info):
        with torch.no_grad():
            for weight in info.model.parameters():
                weight.mul_(0.9)


class Meddler(Decay):
    changes_training = False


class Broken(anaphor.NullCallback):
    def on_step(self, info):
        info.nothing
"""
DROPOUT = ["--dropout", "0.3"]


@pytest.fixture
def log(tmp_path):
    (tmp_path / "log.py").write_text(LOG)
    return tmp_path / "log.py"


def weights_of(run):
    return Path(run, "checkpoints/step-6/model.safetensors").read_bytes()


def rows_of(run):
    return [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]


def test_one_of_the_command_line_is_called_and_recorded_and_changes_nothing(log):
    assert main([*TRAIN, *DROPOUT, "--out", "without"]) == 0
    assert main([*TRAIN, *DROPOUT, "--callback", "log.py:Log", "--out", "with"]) == 0
    assert weights_of("without") == weights_of("with")
    rows = rows_of("with")
    assert [len(row) for row in rows] == [6, 6, 6, 4, 6, 6, 6, 4]
    assert [row[0] for row in rows] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert rows[0][1] > 0
    for *_, norm, layers in (row for row in rows if len(row) == 6):
        assert set(layers) == {"embedder", "layers.0", "layers.1", "head"}
        assert norm == pytest.approx(sum(layer**2 for layer in layers.values()) ** 0.5)
    (recorded,) = yaml.safe_load(Path("with/spec.yaml").read_text())["callbacks"]
    digest = hashlib.sha256(log.read_bytes()).hexdigest()
    assert recorded == {"class": "Log", "file": str(log), "sha256": digest}
    assert anaphor.load_run("with", device="cpu").step == 6, "the file is not needed to use the run"


def test_gradient_norms_are_those_of_the_gradients():
    class Compare(anaphor.NullCallback):
        synchronize = True

        def on_step(self, info):
            own = {name: weight.grad.norm().item() for name, weight in info.model.named_parameters()}
            assert own == pytest.approx(dict(info.gradient_norms))

    settings = {"data": "text", "width": 8, "batch_size": 2, "bptt": 5, "steps": 3, "clip": 0.0}
    anaphor.train("lm", **settings, device="cpu", out="run", no_test=True, callback=Compare())


def test_one_that_changes_weights_says_so(log, error_of):
    error = error_of([*TRAIN, "--callback", "log.py:Meddler", "--out", "run"])
    assert "callback Meddler changed embedder" in error
    assert "changes_training = True" in error
    assert main([*TRAIN, "--callback", "log.py:Decay", "--out", "changed"]) == 0
    assert main([*TRAIN, "--out", "plain"]) == 0
    assert weights_of("changed") != weights_of("plain")
    assert yaml.safe_load(Path("changed/spec.yaml").read_text())["callbacks"][0]["changes_training"] is True


def test_one_that_changes_training_must_be_there_to_resume(log, error_of):
    killed = [*TRAIN, "--callback", "log.py:Decay", "--out", "run"]
    anaphor_run = anaphor.LanguageRunSpec(
        data="text", width=8, batch_size=2, bptt=5, steps=6, eval_every=3, device="cpu"
    )
    with pytest.raises(SystemError):
        anaphor.execute(anaphor_run, "run", Killer(), test=False, callbacks=("log.py:Decay",))
    resume = ["train", "lm", "--resume", "--out", "run", "--json"]
    assert f"pass --callback {log}:Decay" in error_of(resume)
    assert main([*resume, "--callback", "log.py:Decay"]) == 0
    assert main([*killed[:-1], "whole"]) == 0
    assert weights_of("run") == weights_of("whole")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("log.py", "write FILE.py:Class"),
        ("log.py:Lgo", "has no class 'Lgo'; did you mean 'Log'?"),
        ("nowhere.py:Log", "No such file"),
        ("log.py:Broken", "AttributeError in line 35 of {log}"),
    ],
)
def test_a_wrong_callback_of_the_command_line_is_one_line(log, error_of, given, message):
    assert message.format(log=log) in error_of([*TRAIN, "--callback", given, "--out", "run"])


def test_methods_in_the_form_before_1_0_are_called_with_a_warning():
    class Old(anaphor.NullCallback):
        seen: ClassVar[list] = []

        def on_step(self, progress, loss, count):
            self.seen.append((progress, count))

        def on_evaluation(self, epoch, train_loss, result, is_best):
            self.seen.append((epoch, is_best, result.values["loss"] > 0, train_loss > 0))

    settings = {"data": "text", "width": 8, "batch_size": 2, "bptt": 5, "steps": 2}
    with pytest.warns(AnaphorDeprecationWarning) as caught:
        anaphor.train("lm", **settings, device="cpu", out="run", no_test=True, callback=Old())
    assert Old.seen[:2] == [(0.5, 10), (1.0, 20)]
    assert Old.seen[2][1:] == (True, True, True)
    assert [str(one.message) for one in caught] == [
        "on_step(progress, loss, count) of Old is now on_step(info); the old form is removed in anaphor 1.2",
        "on_evaluation(epoch, train_loss, result, is_best) of Old is now on_evaluation(info); the old form is removed "
        "in anaphor 1.2",
    ]
