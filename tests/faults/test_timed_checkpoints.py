"""Checkpoints by time: a kill before the first validation loses little, and the resumed run has the same bits."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from anaphor.api import execute
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training import checkpoint
from anaphor.training.callbacks import NullCallback
from anaphor.training.run_folder import RunFolder

EVERY_STEP = 1e-6
"""Minutes: fewer than any step takes."""
SPEC = {
    "data": "text", "model": "hybrid", "memory": 8, "width": 8, "heads": 2, "layers": 2, "batch_size": 2, "bptt": 5,
    "steps": 12, "eval_every": 9, "device": "cpu", "dropout": 0.2, "average": "ema",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("text")


@pytest.fixture(autouse=True)
def _as_the_command_has_it():
    torch.set_default_dtype(torch.float32)


class Recorder(NullCallback):
    """Keeps the checkpoints that exist at each step; raises at one of them."""

    def __init__(self, folder, until=None):
        self.folder, self.until, self.seen = folder, until, []

    def on_step(self, info):
        self.seen.append(sorted(path.name for path in (self.folder / "checkpoints").iterdir()))
        if len(self.seen) == self.until:
            raise SystemError("killed")


def tensors_of(out):
    found, warnings = checkpoint.newest(out / "checkpoints")
    assert warnings == []
    manifest = json.loads((found.path / "manifest.json").read_text())["files"]
    return found.step, {name: entry for name, entry in manifest.items() if name.endswith(".safetensors")}


def metrics_of(out):
    lines = RunFolder(out).read_metrics()
    return [{key: line[key] for key in ("step", "epoch", "tokens", "train_loss", "lr", "valid")} for line in lines]


@pytest.fixture
def whole(tmp_path):
    """An undisturbed run that is saved at validations only."""
    recorder = Recorder(tmp_path / "whole")
    execute(LanguageRunSpec(**SPEC), tmp_path / "whole", recorder, test=False)
    assert all(seen == [] for seen in recorder.seen[:9]), "five minutes are not over"
    return tmp_path / "whole"


@pytest.mark.parametrize("until", [3, 6, 11])
def test_a_run_resumes_from_a_timed_checkpoint_with_the_same_bits(tmp_path, whole, until):
    spec, out, recorder = LanguageRunSpec(**SPEC), tmp_path / "parts", Recorder(tmp_path / "parts", until)
    with pytest.raises(SystemError):
        execute(spec, out, recorder, test=False, save_minutes=EVERY_STEP)
    assert checkpoint.newest(out / "checkpoints", ())[0].step == until - 1, "one step is lost"
    if until < 9:
        assert RunFolder(out).read_metrics() == [], "it was killed before the first validation"
    execute(spec, out, test=False, resume=True)
    assert tensors_of(out) == tensors_of(whole)
    assert metrics_of(out) == metrics_of(whole)


def test_the_newest_two_and_the_best_are_kept(tmp_path):
    recorder = Recorder(tmp_path / "run")
    spec = LanguageRunSpec(**{**SPEC, "eval_every": 4})
    execute(spec, tmp_path / "run", recorder, test=False, save_minutes=EVERY_STEP)
    assert recorder.seen[:4] == [[], ["step-1"], ["step-1", "step-2"], ["step-2", "step-3"]]
    best = [line["step"] for line in RunFolder(tmp_path / "run").read_metrics()]
    assert best == [4, 8, 12]
    assert recorder.seen[6] == ["step-4", "step-5", "step-6"]


def test_saving_by_time_changes_no_result(tmp_path, whole):
    execute(LanguageRunSpec(**SPEC), tmp_path / "saved", test=False, save_minutes=EVERY_STEP)
    assert tensors_of(tmp_path / "saved") == tensors_of(whole)
    assert metrics_of(tmp_path / "saved") == metrics_of(whole)


KILLED = """
import json, os, signal, sys
import torch
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.api import execute
from anaphor.training.callbacks import NullCallback

class Killer(NullCallback):
    steps = 0

    def on_step(self, info):
        self.steps += 1
        if self.steps == 5:
            os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
execute(LanguageRunSpec(**json.loads(sys.argv[1])), "parts", Killer(), test=False, save_minutes=float(sys.argv[2]))
"""


def test_a_process_killed_before_the_first_validation_resumes_with_the_same_bits(tmp_path, whole):
    command = [sys.executable, "-c", KILLED, json.dumps(SPEC), str(EVERY_STEP)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    out = tmp_path / "parts"
    assert checkpoint.newest(out / "checkpoints", ())[0].step == 4
    execute(LanguageRunSpec(**SPEC), out, test=False, resume=True)
    assert tensors_of(out) == tensors_of(whole)
    assert metrics_of(out) == metrics_of(whole)
