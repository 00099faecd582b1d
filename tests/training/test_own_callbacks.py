"""Callbacks that a user's file registers: made for each run with their settings, called beside the progress bar."""

from pathlib import Path

import pytest
import yaml

import anaphor
from anaphor.cli.main import main

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

    def on_step(self, progress, loss, count):
        self.steps += 1
        if self.steps % self.every == 0:
            norms = [f"{weight.norm():.4f}" for weight in self.model.parameters()]
            with self.file.open("a") as file:
                print(count, *norms, sep=",", file=file)

    def on_evaluation(self, epoch, train_loss, result, is_best):
        with self.file.open("a") as file:
            print("valid", result.values["loss"], is_best, sep=",", file=file)


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

    def on_step(self, progress, loss, count):
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
