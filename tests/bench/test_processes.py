"""The command's start is compared with the import of torch, several runs on one device with one."""

import pytest
import torch

from anaphor import bench
from anaphor.bench import processes
from anaphor.cli.main import main


def test_seconds_beyond_the_import_are_the_finding(monkeypatch):
    calls, seconds = [], iter([4.0, 2.5, 4.0, 2.5, 5.0, 2.5])
    monkeypatch.setattr(processes, "run_python", lambda *words: calls.append(words))
    monkeypatch.setattr("anaphor.bench.timing.measure_seconds", lambda work: work() or next(seconds))
    monkeypatch.setattr("anaphor.bench.timing.random.Random.random", lambda self: 0.9)  # ours first
    (finding,) = processes.measure_start(3, torch.device("cpu"), lambda what: None)
    assert round(finding.value, 2) == round((1.5 + 1.5 + 2.5) / 3, 2)
    assert not finding.kept
    assert ("-c", "import torch") in calls
    words = next(call for call in calls if call[0] == "-m")
    assert words[1] == "anaphor.cli.main"


def test_on_a_gpu_the_seconds_of_training_are_taken_off_and_the_first_run_does_not_count(monkeypatch):
    clock = iter([0.0, 90.0, 100.0, 112.0, 200.0, 214.0])
    monkeypatch.setattr(processes, "run_python", lambda *words: '{"seconds": 5.0}')
    monkeypatch.setattr(processes.time, "perf_counter", lambda: next(clock))
    ticks = []
    (finding,) = processes.measure_start(2, torch.device("cuda"), ticks.append)
    assert finding.value == (7 + 9) / 2
    assert finding.kept
    assert len(ticks) == bench.count_ticks(["start"], 2, torch.device("cuda")) == 3


def test_the_command_that_is_measured_works(tmp_path, capsys):
    assert main([*processes.COMMAND.split(), "--out", str(tmp_path / "run"), "--json"]) == 0
    assert '"finished"' in capsys.readouterr().out


@pytest.mark.parametrize(("rates", "kept"), [({1: 100, 8: 250, 16: 190}, True), ({1: 100, 8: 150, 16: 120}, False)])
def test_the_best_packing_is_held_against_one_at_a_time(monkeypatch, rates, kept):
    monkeypatch.setattr(processes, "cells_per_hour", lambda device, packed, count, tick: float(rates[packed]))
    (found,) = processes.measure_packing(torch.device("cuda"), print)
    assert found.value == pytest.approx(rates[8] / 100)
    assert found.kept is kept
    assert "8 processes" in found.what
    assert "16 at a time" in found.detail
