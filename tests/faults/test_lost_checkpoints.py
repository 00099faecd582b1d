"""Damaged and missing checkpoints: loading or resuming a run warns and uses the next best one."""

import json
import re
import shutil
import signal
from itertools import chain, repeat

import pytest

from anaphor.cli.main import main
from anaphor.metrics.losses import LossTotal, loss_result
from anaphor.tasks.lm.experiment import StreamExperiment
from anaphor.training import checkpoint
from anaphor.training.signals import Interruption
from command_line import override

TINY = ["--model", "lstm", "--width", "8", "--layers", "1", "--batch-size", "2", "--bptt", "5", "--device", "cpu"]
WORDS = ["train", "lm", "--data", "text", "--no-test", *TINY, "--steps", "6", "--eval-every", "2", "--out", "run"]

pytestmark = pytest.mark.usefixtures("text")


@pytest.fixture
def trained(tmp_path, monkeypatch, capsys):
    """Train so that the validations at steps 2, 4 and 6 have the given losses. Returns the folder of checkpoints."""

    def train(*costs, more=()):
        losses = chain(costs, repeat(costs[-1]))
        with monkeypatch.context() as patch:
            patch.setattr(StreamExperiment, "evaluate", lambda *_: loss_result(LossTotal(next(losses), 1), {}))
            assert main([*WORDS, *more]) == 0
        capsys.readouterr()
        return tmp_path / "run" / "checkpoints"

    return train


def damage(folder):
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def warnings(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("anaphor:")]


def evaluated(capsys):
    """The score of the run, and the lines of stderr."""
    assert main(["evaluate", "run", "--json", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err.splitlines()


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(trained, capsys):
    kept = trained(4.0, 3.0, 2.0)
    damage(kept / "step-6")
    found, lines = evaluated(capsys)
    assert len(lines) == 1
    assert re.match(
        r"anaphor: run/checkpoints/step-6/model\.safetensors is damaged: .*; skipping this checkpoint$", lines[0]
    )
    shutil.rmtree(kept / "step-6")
    assert evaluated(capsys) == (found, [])


def test_where_no_checkpoint_can_be_read_none_is_called_skipped(trained, capsys):
    for folder in trained(4.0, 3.0, 2.0).iterdir():
        damage(folder)
    assert main(["evaluate", "run", "--device", "cpu"]) == 2
    (line,) = warnings(capsys)
    assert line.startswith(
        "anaphor: run has no checkpoint that can be read; run/checkpoints/step-6/model.safetensors is"
    )
    assert line.count("is damaged") == 2
    assert "skipping" not in line
    assert main([*WORDS, "--resume"]) == 2
    *damaged, refusal = warnings(capsys)
    assert [line.count("is damaged") for line in damaged] == [1, 1]
    assert not any("skipping" in line for line in damaged)
    assert "run has no checkpoint that can be read: --overwrite would" in refusal


@pytest.mark.parametrize("lose", [damage, shutil.rmtree])
def test_without_the_best_checkpoint_the_newest_is_used_with_a_warning(trained, capsys, lose):
    kept = trained(2.0, 3.0, 4.0)
    best, _ = evaluated(capsys)
    lose(kept / "step-2")
    found, lines = evaluated(capsys)
    assert found != best
    assert len(lines) == 1
    assert re.match(r"anaphor: .*step-2.*; using the newest checkpoint instead of the best$", lines[0])


@pytest.mark.parametrize("average", ["none", "ema"])
def test_a_best_checkpoint_that_was_pruned_is_lost(tmp_path, trained, capsys, monkeypatch, average):
    more = ["--average", average]
    kept = trained(3.0, 4.0, 2.0, more=more)
    assert sorted(path.name for path in kept.iterdir()) == ["step-4", "step-6"]
    damage(kept / "step-6")
    monkeypatch.setattr(Interruption, "is_requested", lambda self: setattr(self, "signal", signal.SIGINT) or True)
    assert main([*WORDS, *more, "--resume"]) == 130
    newest, best = warnings(capsys)
    assert "step-6/model.safetensors is damaged" in newest
    assert re.match(r"anaphor: .*step-2.*; the best checkpoint is lost$", best)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["steps"], result["best_step"]) == ("interrupted", 5, None)
    assert evaluated(capsys)[0][0]["loss"] == result["valid"]["loss"]


def test_a_finished_run_whose_best_is_damaged_is_scored_by_its_last_weights(tmp_path, trained, capsys):
    kept = trained(2.0, 3.0, 4.0)
    damage(kept / "step-2")
    assert main([*WORDS, "--resume"]) == 0
    best, finished = warnings(capsys)
    assert re.match(r"anaphor: .*step-2.*; the best checkpoint is lost$", best)
    assert "trained to its end" in finished
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best_step"] is None


def test_a_finished_run_without_checkpoints_is_not_trained_anew_by_resuming(tmp_path, trained, capsys):
    shutil.rmtree(trained(4.0, 3.0, 2.0))
    result = (tmp_path / "run" / "result.json").read_bytes()
    assert main([*WORDS, "--resume"]) == 2
    assert warnings(capsys) == ["anaphor: run has no checkpoint: --overwrite would delete it and start again"]
    assert (tmp_path / "run" / "result.json").read_bytes() == result


def test_a_run_that_ended_before_its_first_checkpoint_starts_at_step_0_and_says_so(tmp_path, trained, capsys):
    shutil.rmtree(trained(4.0, 3.0, 2.0))
    (tmp_path / "run" / "result.json").unlink()
    assert main([*WORDS, "--resume"]) == 0
    assert warnings(capsys) == ["anaphor: run has no checkpoint yet: training starts at step 0"]


def test_a_best_checkpoint_damaged_while_training_does_not_cost_the_result(tmp_path, capsys, monkeypatch):
    def is_requested(self):
        if (tmp_path / "run" / "checkpoints" / "step-2").exists():
            damage(tmp_path / "run" / "checkpoints" / "step-2")
            self.signal = signal.SIGINT
        return self.signal is not None

    monkeypatch.setattr(Interruption, "is_requested", is_requested)
    assert main(WORDS) == 130
    (line,) = warnings(capsys)
    assert line.endswith("; the best checkpoint is lost")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["valid"]["loss"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda progress: {**progress, "mood": 3}, "facts.json: the progress does not fit: unexpected: mood"),
        (lambda progress: dict(list(progress.items())[1:]), "facts.json: the progress does not fit: missing: step"),
        (lambda progress: {}, "facts.json: the progress does not fit: missing: step, epoch, "),
    ],
)
def test_progress_with_other_fields_is_refused_in_one_line(trained, capsys, change, message):
    kept = trained(4.0, 3.0, 2.0)
    saved = checkpoint.read(kept / "step-6")
    metadata = saved.metadata | {"progress": change(saved.metadata["progress"])}
    checkpoint.write(kept, 6, saved.parts, metadata)
    assert main([*WORDS, "--resume"]) == 2
    (line,) = warnings(capsys)
    assert message in line


def test_a_position_beyond_the_end_of_a_shorter_epoch_is_its_end(tmp_path, capsys):
    words = ["train", "lm", "--data", "text", "--no-test", "--model", "transformer", "--heads", "2", *TINY[2:]]
    assert main([*words, "--steps", "20", "--eval-every", "20", "--out", "run"]) == 0
    larger = ["--batch-size", "20", "--steps", "22", "--eval-every", "2"]
    assert main([*override(words, *larger), "--out", "run", "--resume", "--force", "--json"]) == 0
    progress = checkpoint.read(tmp_path / "run" / "checkpoints" / "step-22").metadata["progress"]
    assert (progress["epoch"], progress["batch"]) == (1, 2)


def parts_of(kept):
    """The parts of each checkpoint that is there, by step."""
    return {int(path.name[5:]): sorted(file.stem for file in path.glob("*.safetensors")) for path in kept.iterdir()}


WHOLE = ["carry", "model", "optimizer", "random"]


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ((4.0, 3.0, 2.0), {4: ["model"], 6: WHOLE}),
        ((4.0, 2.0, 3.0), {4: ["model"], 6: WHOLE}),
        ((2.0, 3.0, 4.0), {2: ["model"], 6: WHOLE}),
    ],
    ids=["best-last", "best-before", "best-earlier"],
)
def test_a_finished_run_keeps_the_last_checkpoint_whole_and_one_more_as_weights_alone(trained, costs, expected):
    assert parts_of(trained(*costs)) == expected


def test_a_finished_run_takes_16_bytes_a_parameter_and_little_more(tmp_path, single_precision):
    """Weights twice and the two moments of AdamW once, 4 bytes each, beside headers and states of fixed size."""
    words = override(WORDS, "--width", "128", "--steps", "2", "--eval-every", "1")
    assert main(words) == 0
    parameters = json.loads((tmp_path / "run" / "result.json").read_text())["parameters"]
    files = [*(tmp_path / "run" / "checkpoints").rglob("*")]
    assert 16 * parameters <= sum(file.stat().st_size for file in files if file.is_file()) < 16.5 * parameters + 20_000


def test_a_finished_run_with_a_larger_budget_is_resumed_as_if_it_had_not_been_finished(trained, tmp_path, capsys):
    """Bit by bit: what was dropped is not what the last checkpoint needs."""
    kept = trained(4.0, 3.0, 2.0, more=["--schedule", "constant"])
    assert main([*override(WORDS, "--steps", "10"), "--schedule", "constant", "--resume", "--force"]) == 0
    whole = override(WORDS, "--steps", "10", "--out", "whole")
    assert main([*whole, "--schedule", "constant"]) == 0
    ends = [checkpoint.read(folder / "step-10") for folder in (kept, tmp_path / "whole" / "checkpoints")]
    for part in ("model", "optimizer", "random"):
        one, other = (end.parts[part] for end in ends)
        assert all(one[name].equal(other[name]) for name in {**one, **other})


def test_where_the_last_checkpoint_of_a_finished_run_is_damaged_the_weights_before_are_trained_on(trained, capsys):
    kept = trained(4.0, 3.0, 2.0)
    damage(kept / "step-6")
    assert main([*WORDS, "--resume", "--json"]) == 0
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("anaphor:")]
    assert "run/checkpoints/step-6/model.safetensors is damaged" in line
    assert line.endswith(
        "; resuming from the weights of run/checkpoints/step-4 without the states of the optimizer and the random "
        "generators, so that the result will differ"
    )
    result = json.loads(captured.out)
    assert (result["status"], result["steps"]) == ("finished", 6)
    assert parts_of(kept) == {4: ["model"], 6: WHOLE}


@pytest.mark.parametrize("verb", [["generate", "run", "--tokens", "3"], ["score", "run", "the cat"]])
def test_where_the_last_checkpoint_of_a_finished_run_is_damaged_it_is_used_with_the_weights_before(
    trained, capsys, verb
):
    kept = trained(4.0, 3.0, 2.0)
    damage(kept / "step-6")
    assert main([*verb, "--device", "cpu"]) == 0
    (line,) = warnings(capsys)
    assert "step-6/model.safetensors is damaged" in line
