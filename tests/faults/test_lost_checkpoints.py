"""Checkpoints that are damaged or gone: whoever opens a run or goes on with it is told, and does with what is left."""

import json
import re
import shutil
import signal
from itertools import chain, repeat

import pytest

from anaphor.cli.main import main
from anaphor.metrics.perplexity import LossTotal, loss_result
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.training import checkpoint
from anaphor.training.run import Interruption

TINY = ["--model", "lstm", "--width", "8", "--layers", "1", "--batch-size", "2", "--bptt", "5", "--device", "cpu"]
WORDS = ["train", "lm", "--data", "text", "--no-test", *TINY, "--steps", "6", "--eval-every", "2", "--out", "run"]

pytestmark = pytest.mark.usefixtures("text")


@pytest.fixture
def trained(tmp_path, monkeypatch, capsys):
    """Train so that the validations at steps 2, 4 and 6 cost what is given. Gives the folder of checkpoints."""

    def train(*costs, more=()):
        told = chain(costs, repeat(costs[-1]))
        with monkeypatch.context() as patch:
            patch.setattr(StreamExperiment, "evaluate", lambda *_: loss_result(LossTotal(next(told), 1), {}))
            assert main([*WORDS, *more]) == 0
        capsys.readouterr()
        return tmp_path / "run" / "checkpoints"

    return train


def damage(folder):
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def told(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("anaphor:")]


def evaluated(capsys):
    """The score of the run, and what is told besides."""
    assert main(["evaluate", "run", "--json", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err.splitlines()


def test_whoever_opens_a_run_hears_that_the_newest_checkpoint_is_damaged(trained, capsys):
    kept = trained(4.0, 3.0, 2.0)
    damage(kept / "step-6")
    found, lines = evaluated(capsys)
    assert len(lines) == 1
    assert re.match(r"anaphor: run/checkpoints/step-6/model\.safetensors is damaged: .*; it is left out$", lines[0])
    shutil.rmtree(kept / "step-6")
    assert evaluated(capsys) == (found, [])


@pytest.mark.parametrize("lose", [damage, shutil.rmtree])
def test_where_the_best_is_lost_the_newest_is_used_and_this_is_told(trained, capsys, lose):
    kept = trained(2.0, 3.0, 4.0)
    best, _ = evaluated(capsys)
    lose(kept / "step-2")
    found, lines = evaluated(capsys)
    assert found != best
    assert len(lines) == 1
    assert re.match(r"anaphor: .*step-2.*; it was the best, and step-6 takes its place$", lines[0])


@pytest.mark.parametrize("average", ["none", "ema"])
def test_a_best_that_was_given_up_for_a_damaged_one_is_forgotten(tmp_path, trained, capsys, monkeypatch, average):
    more = ["--average", average]
    kept = trained(3.0, 4.0, 2.0, more=more)
    assert sorted(path.name for path in kept.iterdir()) == ["step-4", "step-6"]
    damage(kept / "step-6")
    monkeypatch.setattr(Interruption, "asked", lambda self: setattr(self, "signal", signal.SIGINT) or True)
    assert main([*WORDS, *more, "--resume"]) == 130
    newest, best = told(capsys)
    assert "step-6/model.safetensors is damaged" in newest
    assert re.match(r"anaphor: .*step-2.*; it was the best, and is forgotten$", best)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["steps"], result["best_step"]) == ("interrupted", 5, None)
    assert evaluated(capsys)[0][0]["loss"] == result["valid"]["loss"]


def test_a_finished_run_whose_best_is_damaged_is_scored_by_its_last_weights(tmp_path, trained, capsys):
    kept = trained(2.0, 3.0, 4.0)
    damage(kept / "step-2")
    assert main([*WORDS, "--resume"]) == 0
    assert [re.sub(r".*(step-2).*;", r"\1;", line) for line in told(capsys)] == [
        "step-2; it was the best, and is forgotten"
    ]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best_step"] is None


def test_a_best_that_is_damaged_while_the_run_goes_on_does_not_cost_the_result(tmp_path, capsys, monkeypatch):
    def asked(self):
        if (tmp_path / "run" / "checkpoints" / "step-2").exists():
            damage(tmp_path / "run" / "checkpoints" / "step-2")
            self.signal = signal.SIGINT
        return self.signal is not None

    monkeypatch.setattr(Interruption, "asked", asked)
    assert main(WORDS) == 130
    (line,) = told(capsys)
    assert line.endswith("; it was the best, and is forgotten")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["valid"]["loss"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda progress: {**progress, "mood": 3}, "facts.json: the progress does not fit: extra: mood"),
        (lambda progress: dict(list(progress.items())[1:]), "facts.json: the progress does not fit: missing: step"),
        (lambda progress: {}, "facts.json: the progress does not fit: missing: step, epoch, "),
    ],
)
def test_progress_of_another_kind_is_refused_in_one_line(trained, capsys, change, message):
    kept = trained(4.0, 3.0, 2.0)
    saved = checkpoint.read(kept / "step-6")
    facts = saved.facts | {"progress": change(saved.facts["progress"])}
    checkpoint.write(kept, 6, saved.parts, facts)
    assert main([*WORDS, "--resume"]) == 2
    (line,) = told(capsys)
    assert message in line


def test_a_place_in_an_epoch_that_is_shorter_now_is_its_end(tmp_path, capsys):
    words = ["train", "lm", "--data", "text", "--no-test", "--model", "transformer", "--heads", "2", *TINY[2:]]
    assert main([*words, "--steps", "20", "--eval-every", "20", "--out", "run"]) == 0
    larger = ["--batch-size", "20", "--steps", "22", "--eval-every", "2"]
    assert main([*words, *larger, "--out", "run", "--resume", "--force", "--json"]) == 0
    progress = checkpoint.read(tmp_path / "run" / "checkpoints" / "step-22").facts["progress"]
    assert (progress["epoch"], progress["batch"]) == (1, 2)
