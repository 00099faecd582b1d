"""A few tries of each fault that `make torture` tries often, and what its table says of them."""

import json
import os
import random
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from torture import command_lines, damages, experiment, kills, ranks, storage, studies
from torture.experiment import FAULTS, Report, attempt_fault, describe, describe_failures
from torture.fault import Outcome, failed
from torture.results import faults_page
from torture.runs import RUNS

LM = "hybrid with memory, dropout and an average"


@pytest.fixture(autouse=True)
def _as_the_command(monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(damages, "DAMAGED_RUNS", (LM,))
    monkeypatch.setattr(kills, "RUNS", {LM: RUNS[LM]})


def attempts(key, tmp_path, seeds):
    fault = FAULTS[key]
    if fault.missing() is not None:
        pytest.skip(fault.missing())
    fault.prepare(tmp_path)
    return [attempt_fault(key, tmp_path, seed) for seed in seeds]


@pytest.mark.parametrize(
    ("key", "seeds"),
    [
        ("kills", [39]),  # the first kill is in a write, which comes however quick the run is
        ("damages", [1, 2, 3]),
        ("command-lines", [1]),
        ("spec-files", [1]),
        ("disk-full", [1]),
        ("rank-kills", [1]),
        pytest.param("elastic-ranks", [1], marks=pytest.mark.slow),
        pytest.param("study-kills", [0, 1], marks=pytest.mark.slow),
        pytest.param("ray-kills", [1], marks=pytest.mark.slow),
    ],
)
def test_a_few_tries_are_survived(tmp_path, key, seeds):
    outcomes = attempts(key, tmp_path, seeds)
    assert [outcome.seen for outcome in outcomes if not outcome.survived] == []
    assert sum(outcome.count for outcome in outcomes) >= len(seeds)


def test_a_try_follows_from_its_seed():
    flags = {verb: ["--width", "--model"] for verb in command_lines.VERBS}
    first, again, other = (command_lines.draw_line(random.Random(seed), flags) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("code", "errors", "how"),
    [
        (None, "", "hangs for 60 s"),
        (1, "", "exit code 1"),
        (0, "Traceback (most recent call last)", "traceback"),
        (2, "", "no message"),
        (-11, "anaphor: what", "exit code -11"),
    ],
)
def test_a_command_line_that_ends_otherwise_is_a_failure(code, errors, how):
    outcome = command_lines.judge([["train", "lm"]], iter([(0, code, errors)]))
    assert (outcome.survived, outcome.how) == (False, how)
    assert "train" in outcome.seen


@pytest.mark.parametrize(
    ("seconds", "answers"), [([0, 0], False), ([0, 0.01, 0.01], False), ([0, 0.2], False), ([0, 0.01, 0.02, 0.2], True)]
)
def test_what_gets_little_of_a_busy_machine_does_not_hang_yet(monkeypatch, seconds, answers):
    """Seconds of the processor when the wait begins, and at the end of each round of it."""
    monkeypatch.setattr(command_lines, "SECONDS", 0.1)
    there, reader = os.pipe()[::-1]
    left = iter(seconds)

    def next_seconds(process):
        value = next(left)
        if answers and value == seconds[-2]:
            os.write(there, b"answer")
        return value

    monkeypatch.setattr(command_lines, "processor_seconds", next_seconds)
    with os.fdopen(reader) as stdout, os.fdopen(there, "wb"):
        assert command_lines.await_answer(SimpleNamespace(stdout=stdout, pid=0)) is answers


def test_a_process_that_computes_uses_seconds_of_the_processor():
    before, began = command_lines.processor_seconds(os.getpid()), time.process_time()
    while time.process_time() < began + 0.1:
        pass
    assert command_lines.processor_seconds(os.getpid()) > before


def test_a_checkpoint_that_is_damaged_in_silence_is_a_failure(tmp_path, monkeypatch):
    """So that the experiment is known to see what it looks for."""
    FAULTS["damages"].prepare(tmp_path)
    expected = tmp_path / "expected-0.json"
    changed = json.loads(expected.read_text())
    changed["evaluate"] = changed["resume"] = "other"
    expected.write_text(json.dumps(changed))
    monkeypatch.setattr(damages, "DAMAGES", {"nothing": lambda file, draw: None})
    assert attempt_fault("damages", tmp_path, 0).how == "silently wrong"


def test_ranks_with_the_losses_of_another_run_are_a_failure(tmp_path):
    (tmp_path / "whole.log").write_text("1 2.5\n2 2.25\n")
    assert ranks.judge_losses(tmp_path, {1: 2.5, 2: 2.25 * (1 + 1e-10)}) is None
    assert ranks.judge_losses(tmp_path, {1: 2.5, 2: 2.25 * (1 + 1e-8)}).how == "other losses"
    assert ranks.judge_losses(tmp_path, {1: 2.5}).how == "other steps"


def test_a_try_of_many_faults_is_not_tried_more_often_than_needed(monkeypatch, tmp_path):
    """A study is killed dozens of times in one try, which takes minutes."""

    class Pool:
        def submit(self, function, key, place, number):
            future = Future()
            future.set_result(Outcome(True, "every cell once", counts[number]))
            return future

    counts = [50, 40, 50]
    monkeypatch.setitem(experiment.FAULTS, "study-kills", replace(studies.STUDY_KILLED, each=50))
    found = list(experiment._outcomes(Pool(), "study-kills", tmp_path, 0, 100, 2))
    assert sorted(number for number, _ in found) == [0, 1, 2]


def test_a_fault_that_cannot_be_tried_here_is_skipped_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(studies, "find_spec", lambda name: None)
    monkeypatch.setattr(studies, "missing_studies", lambda: None)
    report = experiment.run_fault(tmp_path / "ray", "ray-kills", 1.0, None, 0, 1)
    assert describe(report).split(maxsplit=1)[1] == "skipped: ray is not installed\n"
    assert "| skipped | 0 | ray is not installed |" in faults_page([report])


def test_the_table_has_counts_and_the_seed_that_repeats_a_failure():
    report = Report("disk-full", storage.DISK_FULL)
    report.add(4, Outcome(True, "one line"))
    report.add(5, failed("litter", "step-7.tmp"))
    assert (report.count, report.survived) == (2, 1)
    assert "disk-full --seed 5 --tries 1: litter\nstep-7.tmp" in describe_failures([report])
    page = faults_page([report])
    assert "| disk full | " in page
    assert "| 2 | 1 | 1 one line; 1 litter |" in page
    assert "`python -m torture --fault disk-full --seed 5 --tries 1`" in page
