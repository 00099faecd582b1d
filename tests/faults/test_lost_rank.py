"""A run on several processes that loses one of them or is told to end: all end, one says so, any number resumes."""

import os
import random
import signal
import time
from functools import partial

import pytest
import torch

from anaphor.cli.main import main
from training.ranks import read_log, start_ranks, train, wait_for, wait_until

TEXT = "the cat sat on the mat\na dog sat on a log and it was warm\n" * 40
SETTINGS = {
    "model": "hybrid", "width": 8, "heads": 2, "layers": 2, "memory": 8, "dropout": 0.2, "batch_size": 5, "bptt": 4,
    "average": "ema", "accumulate": 2, "eval_every": 20,
}  # fmt: skip


def write_text(folder):
    (folder / "text").mkdir()
    (folder / "text" / "train.txt").write_text(TEXT)
    (folder / "text" / "valid.txt").write_text(TEXT[:200])


@pytest.fixture
def data(tmp_path):
    write_text(tmp_path)
    return tmp_path


def train_part(folder, name, steps, rank=0, **options):
    out = folder / name
    given = {"save_minutes": 3e-3, "warn": lambda line: None, "resume": (out / "spec.yaml").exists(), **options}
    found = train("lm", out, given, log=folder / f"{name}.log", data=str(folder / "text"), steps=steps, **SETTINGS)
    return found["code"]


def kill_some(processes, draw):
    for process in draw.sample(processes, draw.randint(1, len(processes))):
        os.kill(process, signal.SIGKILL)


def check_elastic(folder, counts, steps, seed, train_part=train_part):
    """Train on one number of ranks after the other, each killed at a random step but the last. Returns the losses."""
    draw, name = random.Random(seed), f"elastic-{seed}"
    log, last = folder / f"{name}.log", 0
    for place, count in enumerate(counts):
        output = folder / f"{name}-{place}"
        output.mkdir()
        processes = start_ranks(count, partial(train_part, folder, name, steps), output)
        if place + 1 < len(counts):
            last = min(last + draw.randint(1, steps // 3), steps - 2)
            wait_until(lambda: max(read_log(log), default=0) >= last, 600)  # noqa: B023
            kill_some(processes, draw)
        codes = wait_for(processes, log=log)
    assert codes == [0] * counts[-1], (output / "output-0").read_text()
    return read_log(log)


def test_a_run_continues_on_another_number_of_ranks_after_kills(data):
    assert train_part(data, "whole", 30) == 0
    assert check_elastic(data, (1, 3, 2), 30, seed=0) == pytest.approx(read_log(data / "whole.log"), rel=1e-9)


@pytest.mark.slow
def test_a_run_continues_on_other_numbers_of_ranks_twenty_times(data):
    assert train_part(data, "whole", 60) == 0
    whole = read_log(data / "whole.log")
    for seed in range(20):
        assert check_elastic(data, (1, 4, 2), 60, seed) == pytest.approx(whole, rel=1e-9), f"seed {seed}"


def command(folder, rank=0, *more):
    words = ["train", "lm", "--data", str(folder / "text"), "--model", "lstm", "--width", "8", "--batch-size", "5"]
    words += ["--bptt", "4", "--steps", "1000000", "--eval-every", "50", "--no-test", "--device", "cpu"]
    torch.set_default_dtype(torch.float32)
    return main([*words, "--out", str(folder / "run"), *more])


def command_for_minutes(folder, *more):
    words = ["train", "lm", "--data", str(folder / "text"), "--model", "lstm", "--width", "8", "--no-test"]
    torch.set_default_dtype(torch.float32)
    return main([*words, "--device", "cpu", "--out", str(folder / "run"), *more])


def said(folder, count):
    """The lines that the processes have printed, but for those that tell how far training is."""
    lines = [line for rank in range(count) for line in (folder / f"output-{rank}").read_text().splitlines()]
    return [line for line in lines if line.startswith("anaphor: ") or "Traceback" in line or line.startswith("stopped")]


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_lost_rank_ends_all_with_one_line(data, lost):
    processes = start_ranks(3, partial(command, data), data)
    wait_until(lambda: (data / "run" / "checkpoints" / "step-50" / "manifest.json").exists())
    os.kill(processes[lost], signal.SIGKILL)
    start = time.monotonic()
    codes = wait_for(processes)
    assert time.monotonic() - start < 10
    assert codes[lost] == -signal.SIGKILL
    assert {code for rank, code in enumerate(codes) if rank != lost} == {1}
    (line,) = said(data, 3)
    assert "another process of this run has ended" in line
    assert "--resume" in line


@pytest.mark.parametrize(("number", "rank"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_a_signal_to_one_rank_ends_all_with_a_checkpoint(data, number, rank):
    processes = start_ranks(2, partial(command, data), data)
    wait_until(lambda: (data / "run" / "checkpoints" / "step-50" / "manifest.json").exists())
    os.kill(processes[rank], number)
    assert wait_for(processes) == [128 + number] * 2
    (line,) = said(data, 2)
    assert line.startswith("stopped; resume with: anaphor train lm --resume")
    saved = [int(path.name[5:]) for path in (data / "run" / "checkpoints").iterdir()]
    assert max(saved) >= 50


def test_divergence_ends_all_with_one_line(data):
    processes = start_ranks(2, lambda rank: command(data, rank, "--lr", "1e20"), data)
    assert wait_for(processes) == [3, 3]
    (line,) = said(data, 2)
    assert "training diverged at step" in line
    assert '"diverged"' in (data / "run" / "result.json").read_text()


def test_a_mistake_is_told_once(data):
    processes = start_ranks(2, lambda rank: command(data, rank, "--heads", "3"), data)
    assert wait_for(processes) == [2, 2]
    assert len(said(data, 2)) == 1


def test_ranks_with_other_settings_are_refused(data):
    processes = start_ranks(2, lambda rank: command(data, rank, "--seed", str(rank)), data)
    assert wait_for(processes) == [2, 2]
    (line,) = said(data, 2)
    assert "rank 1 has other settings than rank 0" in line


def test_what_torchrun_starts_again_resumes(data):
    processes = start_ranks(2, partial(command, data), data)
    wait_until(lambda: (data / "run" / "checkpoints" / "step-50" / "manifest.json").exists())
    os.kill(processes[1], signal.SIGKILL)
    wait_for(processes)
    processes = start_ranks(2, partial(command, data), data, TORCHELASTIC_RESTART_COUNT="1")
    wait_until(lambda: "resumed at step" in (data / "output-0").read_text())
    os.kill(processes[0], signal.SIGTERM)
    assert wait_for(processes) == [143, 143]


def test_minutes_end_all_ranks_at_one_step(data):
    words = ("--minutes", "0.05", "--eval-batch-size", "3")
    processes = start_ranks(2, lambda rank: command_for_minutes(data, *words), data)
    assert wait_for(processes) == [0, 0]
    steps = [int(path.name[5:]) for path in (data / "run" / "checkpoints").iterdir()]
    assert max(steps) > 0


def test_a_rank_that_is_lost_without_a_carried_state_leaves_the_last_step(data):
    """Nothing is gone with it, so that the first rank saves what it has."""
    processes = start_ranks(2, lambda rank: command(data, rank, "--no-carry"), data)
    wait_until(lambda: (data / "run" / "checkpoints" / "step-50" / "manifest.json").exists())
    os.kill(processes[1], signal.SIGKILL)
    assert wait_for(processes) == [1, -signal.SIGKILL]
    (line,) = said(data, 2)
    step = int(line.partition("saved at step ")[2].partition(";")[0])
    assert (data / "run" / "checkpoints" / f"step-{step}").exists()
