"""Steps are logged every few seconds: from the first one on, in bounded files, and once where a run is resumed."""

import json
from dataclasses import replace

import pytest

import anaphor
from anaphor.training import step_log
from anaphor.training.progress import Progress
from anaphor.training.run_folder import RunFolder
from anaphor.training.step import StepMetrics
from anaphor.training.step_log import MAX_LINES, StepLog, interval


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


class Clock:
    """A clock that a test turns on."""

    now = 0.0

    def __call__(self):
        return self.now


def add(log, clock, step, seconds, *, loss=1.0, spent=None, elapsed=None):
    """Add a step that ends at a time, of 10 items."""
    clock.now = seconds
    progress = Progress(step=step, seconds=seconds, elapsed=seconds if elapsed is None else elapsed)
    metrics = StepMetrics(loss, {"a": 3.0, "b": 4.0})
    return log.add(step, 0.1, 10, metrics, progress, step / 100 if spent is None else spent)


def test_the_first_step_is_logged_at_once_and_then_one_in_two_seconds(folder):
    log = StepLog(folder, clock := Clock())
    for step in range(1, 12):
        add(log, clock, step, step * 0.5, loss=float(step))
    rows = folder.read_steps()
    assert [row["step"] for row in rows] == [1, 5, 9]
    assert rows[1] == {
        "step": 5,
        "loss": 3.5,  # the mean of steps 2 to 5
        "lr": 0.1,
        "grad_norm": 5.0,
        "throughput": 20.0,
        "seconds_left": pytest.approx(95 * 0.5),
    }


def test_nothing_is_left_of_a_spent_budget(folder):
    log = StepLog(folder, clock := Clock())
    add(log, clock, 1, 1.0, spent=0.5)
    assert add(log, clock, 2, 9.0, spent=1.0)["seconds_left"] is None


def test_a_long_training_has_no_more_lines_than_one_of_an_hour(folder, monkeypatch):
    monkeypatch.setattr(step_log, "MAX_LINES", 16)
    log = StepLog(folder, clock := Clock())
    for step in range(1, 400):
        add(log, clock, step, 2.0 * step)
        assert len(folder.read_steps()) < 16
    steps = [row["step"] for row in folder.read_steps()]
    assert steps[0] == 1  # the whole course is there
    assert steps[-1] > 350


def test_the_end_of_a_long_log_is_not_denser_than_its_beginning():
    assert interval(2.0 * MAX_LINES) == 2.0
    assert interval(2.1 * MAX_LINES) == interval(4.0 * MAX_LINES) == 4.0


def test_a_log_is_continued_where_a_run_is_resumed(folder):
    add(StepLog(folder), Clock(), 1, 1.0)
    folder.spec.write_text("format: 2\n")
    add(StepLog(folder, clock := Clock()), clock, 2, 5.0)
    folder.truncate_after(1)
    assert [row["step"] for row in folder.read_steps()] == [1]
    assert StepLog(folder).lines == 1


def test_a_torn_or_damaged_line_hides_no_other(folder):
    folder.steps.write_bytes(b'{"step": 1}\nnot JSON\n{"step": 3}\n{"ste')
    assert [row["step"] for row in folder.read_steps()] == [1, 3]


def test_a_run_has_the_history_of_its_steps_before_any_validation(tmp_path):
    run = anaphor.train("lm", data="grammar", width=8, steps=3, eval_every=3, no_test=True, out=tmp_path / "run")
    first = run.history[0]
    assert first["step"] == 1
    assert first["loss"] == pytest.approx(4.8, abs=0.5)
    assert set(first) == {"step", "loss", "lr", "grad_norm", "throughput", "seconds_left"}
    lines = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == run.history


def test_overwriting_a_run_sets_its_steps_aside(tmp_path):
    options = {"data": "grammar", "width": 8, "steps": 1, "no_test": True, "out": tmp_path / "run"}
    anaphor.train("lm", **options)
    run = anaphor.train("lm", **options, overwrite=True)
    assert [row["step"] for row in run.history] == [1]
    assert replace(run, folder=tmp_path / "none").history == []
