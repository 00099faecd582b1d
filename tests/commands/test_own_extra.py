"""An idea of a user's own in one file outside the package: embeddings, a part behind the head, a loss term, a callback,
an evaluation and a verb. It trains, resumes, and is seen everywhere, as the extras of the package are."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from anaphor.cli.main import main
from anaphor.shipped_files import EXAMPLES
from anaphor.training.run_folder import RunFolder
from anaphor.yaml_files import read_mapping

EXAMPLE = EXAMPLES / "repetition.py"
PAGE = Path(__file__).parents[2] / "docs" / "own-extras.md"
IMPORT = ["--import", "own.py"]
FLAGS = ["--unit-embeddings", "--repetition", "--z-loss", "0.01", "--log-bonus"]
SMALL = ["--data", "text", "--width", "8", "--bptt", "8", "--batch-size", "2", "--eval-every", "3", "--lr", "0.05"]
TRAIN = ["train", "lm", *IMPORT, *SMALL, "--steps", "9", "--device", "cpu", "--no-test", "--json"]


pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(autouse=True)
def file(text, tmp_path):
    """The user's file, in the current folder, far from the package."""
    return shutil.copy(EXAMPLE, tmp_path / "own.py")


@pytest.fixture
def run(tmp_path, capsys):
    assert main([*TRAIN, *FLAGS, "--out", "run"]) == 0
    capsys.readouterr()
    return tmp_path / "run"


def files_of_last_checkpoint(run):
    return json.loads((run / "checkpoints" / "step-9" / "manifest.json").read_bytes())["files"]


def losses(run):
    return [json.loads(line)["train_loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_page_shows_the_file():
    shown = PAGE.read_text(encoding="utf-8").partition('title="repetition.py" }\n')[2].partition("```")[0]
    assert shown == EXAMPLE.read_text(encoding="utf-8")


def test_each_part_changes_the_run(tmp_path):
    """But the callback, which watches."""
    found = {}
    for flags in ([], ["--unit-embeddings"], ["--repetition"], ["--z-loss", "0.01"], ["--repetition", "--log-bonus"]):
        out = tmp_path / f"run{len(found)}"
        assert main([*TRAIN, *flags, "--out", str(out)]) == 0
        found[" ".join(flags)] = losses(out)[-1]
    assert found.pop("--repetition --log-bonus") == found["--repetition"]
    assert len({*found.values()}) == 4
    lines = (out / "bonus.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == [str(16 * step) for step in range(1, 10)]
    assert float(lines[-1].partition(",")[2]) != 0


def test_it_resumes_bit_identically_after_a_kill(run, tmp_path):
    def log(self, step, **values):
        if step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return b""

    killed = tmp_path / "killed"
    words = [*TRAIN, *FLAGS, "--out", str(killed), "--save-minutes", "1e-9"]
    done = forked.run(words, {}, first=lambda: setattr(RunFolder, "log", log))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (killed / "checkpoints" / "step-9").exists()
    assert main(["train", "lm", "--resume", *IMPORT, "--out", str(killed), "--json"]) == 0
    whole, resumed = files_of_last_checkpoint(run), files_of_last_checkpoint(killed)
    for name in ("model.safetensors", "optimizer.safetensors", "random.safetensors", "carry.safetensors"):
        assert whole[name] == resumed[name], name


def test_a_run_needs_its_file(run, file):
    words = [sys.executable, "-m", "anaphor", "evaluate", str(run), "--device", "cpu"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # this process has imported it
    assert done.returncode == 2
    assert done.stderr == f"anaphor: {run} was trained with parts of own.py: pass --import {file}\n"


def test_its_settings_are_in_help_and_spec(run, file, capsys):
    assert main(["train", "lm", *IMPORT, "--help"]) == 0
    text = capsys.readouterr().out
    sections = dict(re.findall(r"^(repetition[\w ]*) options:\n(.*?)(?:\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert sections.keys() == {"repetition", "repetition training"}
    assert re.findall(r"--[a-z-]+", sections["repetition"])[::2] == ["--unit-embeddings", "--repetition"]
    assert "Weight of the squared logarithm" in sections["repetition training"]
    document = read_mapping(run / "spec.yaml")
    assert document["repetition"] == {"unit_embeddings": True, "repetition": True}
    assert document["repetition_training"] == {"z_loss": 0.01, "log_bonus": True}
    assert [Path(one["file"]) for one in document["imports"]] == [file]
    assert main(["evaluate", str(run), *IMPORT, "--help"]) == 0
    assert "--without-repetition" in capsys.readouterr().out


def test_its_evaluation_is_a_row_with_a_signature_of_its_own(run, answer_of):
    plain, without = answer_of(["evaluate", str(run), *IMPORT, "--without-repetition", "--json"])
    assert (plain["bonus"], without["bonus"]) == (None, "none")
    assert plain["signature"].endswith("|repetition:bonus")
    assert without["signature"] == f"{plain['signature']}|bonus:none"
    assert plain["loss"] != without["loss"]


def test_its_verb_has_a_line_of_help_and_flags(run, capsys):
    assert main([*IMPORT, "--help"]) == 0
    assert "bonus of repeated words of a run" in capsys.readouterr().out
    assert main(["bonus", str(run), *IMPORT, "--digits", "6"]) == 0
    last = (run / "bonus.csv").read_text().splitlines()[-1].partition(",")[2]
    assert capsys.readouterr().out == f"bonus {last}\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--z-loss", "-1"], "z_loss=-1.0: it must be at least 0"),
        (["--log-bonus"], "log_bonus: the model has no bonus without --repetition"),
        (["--repetiton"], "--repetition"),
    ],
)
def test_its_mistakes_are_one_line(error_of, flags, message):
    assert message in error_of([*TRAIN, *flags, "--out", "run"])
