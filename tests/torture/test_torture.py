"""A few tries of each fault that `make torture` tries often, and what its table says of them."""

import json
import random

import pytest
import torch

from torture import command_lines, damages, kills, storage
from torture.experiment import FAULTS, Report, attempt_fault, describe
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
    # With this seed the first kill is in a write, which comes however quick the run is.
    [("kills", [39]), ("damages", [1, 2, 3]), ("command-lines", [1]), ("spec-files", [1]), ("disk-full", [1])],
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


def test_a_checkpoint_that_is_damaged_in_silence_is_a_failure(tmp_path, monkeypatch):
    """So that the experiment is known to see what it looks for."""
    FAULTS["damages"].prepare(tmp_path)
    expected = tmp_path / "expected-0.json"
    changed = json.loads(expected.read_text())
    changed["evaluate"] = changed["resume"] = "other"
    expected.write_text(json.dumps(changed))
    monkeypatch.setattr(damages, "DAMAGES", {"nothing": lambda file, draw: None})
    assert attempt_fault("damages", tmp_path, 0).how == "silently wrong"


def test_the_table_has_counts_and_the_seed_that_repeats_a_failure():
    report = Report("disk-full", storage.DISK_FULL)
    report.add(4, Outcome(True, "one line"))
    report.add(5, failed("litter", "step-7.tmp"))
    assert (report.count, report.survived) == (2, 1)
    assert "disk-full --seed 5 --tries 1: litter\nstep-7.tmp" in describe([report])
    page = faults_page([report])
    assert "| disk full | " in page
    assert "| 2 | 1 | 1 one line; 1 litter |" in page
    assert "`python -m torture --fault disk-full --seed 5 --tries 1`" in page
