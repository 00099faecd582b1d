"""Mixers, callbacks, extras and tasks of a user's file in a study."""

import json
import shutil
from pathlib import Path

import pytest

from anaphor.cli.main import main
from anaphor.shipped_files import EXAMPLES
from studies.here import Here

LEAKY = EXAMPLES / "leaky_mixer.py"
CALLBACK = """
from dataclasses import dataclass
from typing import ClassVar

import anaphor


@dataclass(frozen=True, kw_only=True)
class Settings:
    section: ClassVar[str] = "counter"

    count_steps: bool = False
    \"\"\"Whether steps.txt has a line for each step.\"\"\"


class Counter(anaphor.NullCallback):
    def __init__(self, file):
        self.file = file

    def on_step(self, info):
        with self.file.open("a") as file:
            file.write("step\\n")


def make(settings, experiment, run):
    return Counter(run / "steps.txt") if settings.count_steps else None


anaphor.register_callback("counter", make, Settings)
"""


@pytest.fixture
def study(text, tmp_path, capsys, single_precision):
    """A function that runs a study with a file of the user's. Returns its exit code and its cells."""

    def run(content, file):
        (tmp_path / "study.yaml").write_text(content)
        code = main(["study", "study.yaml", "--import", str(file), "--out", "study", "--json"])
        return code, json.loads(capsys.readouterr().out)["cells"]

    return run


@pytest.fixture
def here(monkeypatch):
    """Cells run in this process: a process for each takes seconds."""
    monkeypatch.setattr("anaphor.studies.command.build_engine", lambda name, **options: Here())


SMALL = "base: {data: text, width: 8, steps: 2, bptt: 8, batch_size: 2, device: cpu}\nseeds: 1\ntest: none\n"


def test_a_mixer_is_compared_with_another(study, here):
    code, cells = study(SMALL + "parameters: {model: {values: [leaky, lstm]}}\n", LEAKY)
    assert code == 0
    assert [cell["status"] for cell in cells] == ["finished", "finished"]


@pytest.mark.slow
def test_the_error_of_a_mixer_is_the_reason_of_the_failure(study, tmp_path):
    file = tmp_path / "broken.py"
    source = (
        LEAKY.read_text()
        .replace('"leaky"', '"broken"')
        .replace("(hidden)\n\n\nreg", "(hidden) if [][1] else 0\n\n\nreg")
    )
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "[][1]" in text)
    file.write_text(source)
    code, (cell,) = study(SMALL + "parameters: {model: {values: [broken]}}\n", file)
    assert code == 4
    assert cell["reason"] == f"IndexError in line {line} of {file}: list index out of range"


def test_a_callback_has_a_setting_that_varies(study, here, tmp_path):
    (tmp_path / "callback.py").write_text(CALLBACK)
    code, cells = study(SMALL + "parameters: {count_steps: {values: [false, true]}}\n", tmp_path / "callback.py")
    assert code == 0
    assert [cell["status"] for cell in cells] == ["finished", "finished"]
    (counted,) = Path("study").rglob("steps.txt")
    assert counted.read_text() == "step\n" * 2


@pytest.mark.slow
def test_settings_of_an_extra_vary(study, tmp_path):
    """Its file is the user's, in the current folder; each cell has a process of its own."""
    shutil.copy(EXAMPLES / "repetition.py", tmp_path / "own.py")
    axes = "parameters: {repetition: {values: [true, false]}}\n"
    code, cells = study(SMALL + axes, "own.py")
    assert code == 0
    assert [cell["status"] for cell in cells] == ["finished"] * 2


def test_a_task_is_studied(study, here):
    content = "task: digit-sum\nbase: {steps: 20, lr: 0.02}\nparameters: {model: {values: [gru, rnn]}}\nseeds: 2\n"
    code, cells = study(content, EXAMPLES / "digit_sum.py")
    assert code == 0
    assert [cell["status"] for cell in cells] == ["finished"] * 4


def test_a_callback_of_the_command_line_is_called_in_every_run(study, here, tmp_path, capsys, error_of):
    (tmp_path / "log.py").write_text(
        "import anaphor\n"
        "class Log(anaphor.NullCallback):\n"
        "    def on_step(self, info):\n"
        "        with (info.folder / 'log.txt').open('a') as file:\n"
        "            print(info.step, file=file)\n"
        "class Decay(Log):\n"
        "    changes_training = True\n"
    )
    (tmp_path / "study.yaml").write_text(SMALL + "parameters: {model: {values: [gru, lstm]}}\n")
    assert main(["study", "study.yaml", "--callback", "log.py:Log", "--out", "study", "--json"]) == 0
    capsys.readouterr()
    assert [path.read_text() for path in Path("study").rglob("log.txt")] == ["1\n2\n"] * 2
    assert "it changes training" in error_of(["study", "study.yaml", "--callback", "log.py:Decay", "--out", "b"])
    (tmp_path / "study.yaml").write_text(SMALL + "callbacks: [log.py:Lgo]\nparameters: {model: {values: [gru]}}\n")
    assert "has no class 'Lgo'; did you mean 'Log'?" in error_of(["study", "study.yaml", "--out", "b"])
