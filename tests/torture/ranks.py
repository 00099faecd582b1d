"""Runs on several ranks that lose some of them, and are resumed on another number of ranks."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anaphor.cli.main import main
from faults.test_lost_rank import SETTINGS, check_elastic, said, train_part, write_text
from torture import children
from torture.fault import Fault, Outcome, failed
from training.ranks import losses_in_double, on_ranks, read_log, start_ranks, wait_for, wait_until

COUNTS = (1, 4, 2)
STEPS = 60
"""Most of them lie in the middle of an epoch."""
SECONDS = 10
"""A run that has lost a rank has ended after so many."""
RELATIVE = 1e-9


def prepare(place: Path) -> None:
    """The run undisturbed, on one rank."""
    write_text(place)
    on_ranks(1, partial(as_the_command, place, train_part, place, "whole", STEPS), place / "output")


def as_the_command(place: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """In a child: what a rank does, in double precision, with the caches and state of `place`. What libraries print
    beside Python is lost."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    children.skip_fsync()
    os.environ.update(children.environment(place), TORCH_CPP_LOG_LEVEL="ERROR")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return function(*arguments)


def attempt_elastic(place: Path, own: Path, seed: int) -> Outcome:
    """One number of ranks after the other, each killed in the middle."""
    write_text(own)
    try:
        losses = check_elastic(own, COUNTS, STEPS, seed, partial(as_the_command, place, train_part))
    except AssertionError as error:
        return failed("not trained to the end", str(error))
    return judge_losses(place, losses) or Outcome(True, "the losses of one rank")


def judge_losses(place: Path, losses: dict[int, float]) -> Outcome | None:
    expected = read_log(place / "whole.log")
    if losses.keys() != expected.keys():
        return failed("other steps", f"{sorted(expected.keys() ^ losses.keys())}")
    wrong = {step: loss for step, loss in losses.items() if abs(loss / expected[step] - 1) > RELATIVE}
    return failed("other losses", f"{wrong}") if wrong else None


def attempt_lost(place: Path, own: Path, seed: int) -> Outcome:
    """The command on 2 to 4 ranks, one of which is killed; then on one rank."""
    draw = random.Random(seed)
    count, last = draw.randint(2, 4), draw.randrange(1, STEPS)
    lost, log = draw.randrange(count), own / "losses"
    write_text(own)
    (own / "ranks").mkdir()
    processes = start_ranks(count, partial(as_the_command, place, train, own), own / "ranks")
    wait_until(lambda: max(read_log(log), default=0) >= last, 120)
    os.kill(processes[lost], signal.SIGKILL)
    began = time.monotonic()
    codes = wait_for(processes)
    seconds = time.monotonic() - began
    if any(code == 0 for rank, code in enumerate(codes) if rank != lost):
        return Outcome(True, "the run had ended before the kill", count=0)
    what = f"rank {lost} of {count} after step {last}"
    if seconds > SECONDS:
        return failed(f"not ended after {SECONDS} s", f"{what}: {seconds:.1f} s")
    if {code for rank, code in enumerate(codes) if rank != lost} != {1}:
        return failed("exit code", f"{what}: {codes}")
    lines = said(own / "ranks", count)
    if len(lines) != 1 or "another process of this run has ended" not in lines[0]:
        return failed("not one line", f"{what}: {lines}")
    (own / "alone").mkdir()
    codes = wait_for(start_ranks(1, partial(as_the_command, place, train, own), own / "alone"))
    if codes != [0]:
        return failed("cannot be resumed", f"{what}: {(own / 'alone' / 'output-0').read_text(encoding='utf-8')}")
    return judge_losses(place, read_log(log)) or Outcome(True, "all ended with one line; on one rank the same losses")


def train(own: Path, rank: int) -> int:
    """The command line of the run that `train_part` trains."""
    flags = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = ["train", "lm", "--data", str(own / "text"), *flags, "--steps", str(STEPS), "--save-minutes", "0.003"]
    more = ["--resume"] if (own / "run" / "spec.yaml").exists() else []
    with losses_in_double(own / "losses"):
        return main([*words, "--device", "cpu", "--threads", "1", "--no-test", "--out", str(own / "run"), *more])


ELASTIC = Fault(
    name=f"ranks killed, and others in their place ({', '.join(map(str, COUNTS))})",
    promise=f"resumed in the middle of an epoch with the losses of one undisturbed rank to {RELATIVE:g}",
    count=20,
    prepare=prepare,
    attempt=attempt_elastic,
)
RANK_LOST = Fault(
    name="a rank of several killed",
    promise=f"all end within {SECONDS} s with one line; on one rank the losses of an undisturbed one to {RELATIVE:g}",
    count=20,
    prepare=prepare,
    attempt=attempt_lost,
)
