"""SIGKILL at random moments of training, a third of them inside a write of a checkpoint."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture import children
from torture.fault import Fault, Outcome, failed
from torture.runs import RUNS, STEPS, command, write_inputs

KILLS = 4
"""Kills of one run before it is left to end."""


def prepare(place: Path) -> None:
    """Train each run undisturbed."""
    write_inputs(place)
    expected = {}
    for number, name in enumerate(RUNS):
        out = place / f"reference-{number}"
        began = time.perf_counter()
        writes = place / f"writes-{number}"
        done = children.checked(children.run(place, command(name, place, out), first=count_writes(writes)))
        result = json.loads(done.stdout)
        expected[name] = {
            "writes": writes.stat().st_size,
            "tensors": children.hash_tensors(out),
            "valid": result["valid"],
            "seconds": time.perf_counter() - began,
        }
    (place / "expected.json").write_text(json.dumps(expected), encoding="utf-8")


def attempt(place: Path, own: Path, seed: int) -> Outcome:
    draw = random.Random(seed)
    name = draw.choice(list(RUNS))
    expected = json.loads((place / "expected.json").read_text(encoding="utf-8"))[name]
    out, kills, inside = own / "run", 0, 0
    for _ in range(KILLS):
        left = 1 - saved_step(out) / STEPS
        is_inside = draw.random() < 0.4  # some are drawn for a life that has ended before
        first = kill_in_write(draw, 1 + int(left * expected["writes"])) if is_inside else children.skip_fsync
        process = children.start(place, command(name, place, out, *resume_if_begun(out)), first=first)
        try:
            process.wait(60 if is_inside else expected["seconds"] * left * draw.uniform(0.05, 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        kills += process.returncode == -signal.SIGKILL
        inside += is_inside and process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break  # the kill came too late
        if process.returncode != -signal.SIGKILL:
            return failed(f"exit code {process.returncode}", f"{name}, after {kills} kills")
    done = children.run(place, command(name, place, out, *resume_if_begun(out)), first=children.skip_fsync)
    if done.returncode:
        return failed("cannot be resumed", f"{name}: {done.stderr}")
    if children.hash_tensors(out) != expected["tensors"] or json.loads(done.stdout)["valid"] != expected["valid"]:
        return failed("other bits", name)
    return Outcome(True, f"the same bits ({task_of(name)})", count=kills, kinds={"inside a write": inside})


def task_of(name: str) -> str:
    return RUNS[name][0]


def resume_if_begun(out: Path) -> list[str]:
    return ["--resume"] if (out / "spec.yaml").exists() else []


def saved_step(out: Path) -> int:
    """The step from which the run goes on."""
    return max((int(path.name[5:]) for path in (out / "checkpoints").glob("step-*[0-9]")), default=0)


def kill_in_write(draw: random.Random, writes: int) -> Callable[[], None]:
    """Before the command begins: make it end by SIGKILL at one of its writes, before it, in it or after it."""
    number, moment, part = draw.randrange(writes), draw.choice(["before", "after"]), draw.random()
    there = itertools.count()

    def watch(function: Callable[..., Any], cut: Callable[..., None] | None = None) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            is_last = next(there) == number
            if is_last and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            value = function(*arguments, **options)
            if is_last:
                if cut is not None:
                    cut(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        return call

    def cut_file(tensors: object, path: str | Path) -> None:
        os.truncate(path, int(part * os.path.getsize(path)))

    return lambda: watch_writes(watch, cut_file)


def count_writes(file: Path) -> Callable[[], None]:
    """Before the command begins: make it append a byte to a file at each of its writes."""

    def watch(function: Callable[..., Any], *more: Any) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with file.open("ab") as count:
                count.write(b".")
            return function(*arguments, **options)

        return call

    return lambda: watch_writes(watch)


def watch_writes(watch: Callable[..., Callable[..., Any]], *more: Any) -> None:
    """Replace all that writes by what `watch` makes of it. `more`: given to it for files of tensors."""
    from anaphor.training import checkpoint

    children.skip_fsync()
    checkpoint.save_file = watch(checkpoint.save_file, *more)
    for name in ("rename", "replace", "write", "mkdir", "unlink", "rmdir"):
        setattr(os, name, watch(getattr(os, name)))


KILLED = Fault(
    name="SIGKILL",
    promise="resumed to the end, weights, optimizer and carried state have the bits of an undisturbed run",
    count=200,
    prepare=prepare,
    attempt=attempt,
    each=KILLS,
)
