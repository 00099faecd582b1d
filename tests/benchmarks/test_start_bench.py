"""The benchmark of the command's start: seconds of help, and those of a training beyond the import of torch."""

import pytest
import torch

from anaphor.cli.main import main
from benchmarks import start, timing

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("help_seconds", "small_seconds", "kept"), [(0.3, 3.4, True), (0.6, 3.6, False)])
def test_seconds_of_help_and_seconds_beyond_the_import(monkeypatch, help_seconds, small_seconds, kept):
    seconds = {start.IMPORT: 2.0, start.TRAININGS[0]: small_seconds, start.TRAININGS[1]: 7.0}
    clock = [0.0]

    def run_python(*words, source=None):
        command = words[1] if len(words) == 2 else " ".join(words[2:]).partition(" --out")[0]
        clock[0] += seconds.get(command, help_seconds)

    monkeypatch.setattr(start, "run_python", run_python)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    ticks = []
    findings = start.measure(3, CPU, ticks.append)
    assert len(ticks) == start.count_ticks(3, CPU) == 3
    assert [finding.value for finding in findings] == pytest.approx([help_seconds] * 2 + [small_seconds - 2, 5])
    assert [finding.kept for finding in findings] == [kept, kept, kept, True]
    assert "7.00 s against 2.00 s; median of 3, from 5.00 to 5.00 s" in findings[-1].detail


def test_on_a_gpu_the_seconds_of_training_are_taken_off_and_the_first_run_does_not_count(monkeypatch):
    clock = iter([0.0, 90.0, 100.0, 112.0, 200.0, 214.0])
    monkeypatch.setattr(start, "run_python", lambda *words, source: '{"seconds": 5.0}')
    monkeypatch.setattr(start.time, "perf_counter", lambda: next(clock))
    ticks = []
    (finding,) = start.measure(2, GPU, ticks.append)
    assert finding.value == (7 + 9) / 2
    assert finding.kept
    assert len(ticks) == start.count_ticks(2, GPU) == 3


def test_the_small_training_that_is_measured_works(tmp_path, capsys):
    assert main([*start.TRAININGS[0].split(), "--out", str(tmp_path / "run"), "--json"]) == 0
    assert '"finished"' in capsys.readouterr().out


def test_the_help_that_is_measured_is_printed():
    assert "usage: anaphor" in start.run_command("--help")
