"""Whole processes: the start of the command against `import torch`, and several runs of a study on one device."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from anaphor.bench.timing import Finding, time_alternately
from anaphor.errors import DataError
from anaphor.studies.axes import make_axis
from anaphor.studies.cell import Cell
from anaphor.studies.engines import LocalEngine, visible_gpus
from anaphor.studies.spec import StudySpec
from anaphor.studies.study import Study

MAX_SECONDS = 1.5
COMMAND = "train lm --data grammar --model lstm --width 16 --steps 1 --no-test --device cpu"
MAX_OUTSIDE_SECONDS = 8.0
GPU_COMMAND = "train lm --data grammar --model lstm --width 200 --epochs 4 --device cuda"


def run_python(*words: str) -> str:
    """What it prints."""
    # Modules are compiled once and for all, as those of an installed package are.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, *words], check=True, capture_output=True, env={**kept, "PYTHONSAFEPATH": "1"}
    )
    return done.stdout.decode()


def measure_start(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """What a command takes beyond the import of torch; with a GPU what it takes beyond training, all included."""
    return [_measure_time_outside(pairs, tick) if device.type == "cuda" else _measure_time_beyond_import(pairs, tick)]


def _measure_time_outside(pairs: int, tick: Callable[[str], None]) -> Finding:
    """Import, data, validations, test, figures and files. The first run fills the caches and does not count."""
    outside = []
    with tempfile.TemporaryDirectory() as folder:
        words = [*GPU_COMMAND.split(), "--out", str(Path(folder) / "run"), "--overwrite", "--json"]
        for _ in range(pairs + 1):
            start = time.perf_counter()
            output = run_python("-m", "anaphor.cli.main", *words)
            outside.append(time.perf_counter() - start - json.loads(output)["seconds"])
            tick("start")
    peer = "none: by the clock, less the seconds of training"
    detail = f"`{GPU_COMMAND}`, caches warm; {pairs} runs"
    return _describe(
        "seconds of the command outside training, on a GPU", peer, outside[1:], MAX_OUTSIDE_SECONDS, detail
    )


def _describe(what: str, peer: str, seconds: Sequence[float], most: float, detail: str) -> Finding:
    """The mean, with two standard errors around it: there is no ratio whose interval could be taken."""
    mean = statistics.fmean(seconds)
    error = 2 * statistics.stdev(seconds) / math.sqrt(len(seconds)) if len(seconds) > 1 else math.inf
    return Finding(
        what, peer, mean, mean - error, mean + error, promise=f"at most {most:g} s", kept=mean <= most, detail=detail
    )


def _measure_time_beyond_import(pairs: int, tick: Callable[[str], None]) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        words = [*COMMAND.split(), "--out", str(Path(folder) / "run"), "--overwrite"]
        train = partial(run_python, "-m", "anaphor.cli.main", *words)
        times = time_alternately(train, partial(run_python, "-c", "import torch"), pairs, partial(tick, "start"))
    beyond = [ours - theirs for ours, theirs in times]
    ours, theirs = (statistics.fmean(column) for column in zip(*times, strict=True))
    detail = f"`{COMMAND}`: {ours:.2f} s against {theirs:.2f} s; {len(times)} pairs, alternately"
    return _describe("seconds of the command beyond `import torch`", "import torch", beyond, MAX_SECONDS, detail)


# Processes, and the cells of each such study: a multiple of them, so that no process is idle at the end.
PACKED = {"cuda": {1: 5, 8: 16, 16: 32}, "cpu": {1: 4, 2: 4}}
MIN_RATIO = 2.0
# A cell of a study of small models: the sizes of the recipe on an embedded text.
BASE = {"data": "grammar", "model": "lstm", "width": 200, "layers": 2, "batch_size": 20, "bptt": 35, "dropout": 0.2}
BUDGET = {"cuda": {"epochs": 6}, "cpu": {"steps": 20}}


class _Silent:
    def __init__(self, tick: Callable[[str], None]) -> None:
        self.tick = tick

    def on_status(self, cell: Cell, status: str, reason: str = "") -> None:
        if status == "finished":
            self.tick("packing")

    def on_wait(self, running: list[Cell]) -> None:
        pass


def measure_packing(device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """Finished cells per hour with several processes against one."""
    rates = {packed: cells_per_hour(device, packed, count, tick) for packed, count in PACKED[device.type].items()}
    best = max(rates, key=rates.__getitem__)
    detail = ", ".join(f"{packed} at a time {rate:,.0f} cells/hour" for packed, rate in rates.items())
    ratio = rates[best] / rates[1]
    return [
        Finding(
            what=f"a study with {best} processes on one device ({device.type})",
            peer="the same study with one process",
            value=ratio,
            low=None,
            high=None,
            promise=f"at least {MIN_RATIO:g} x on a GPU" if device.type == "cuda" else "not slower",
            kept=ratio >= (MIN_RATIO if device.type == "cuda" else 1.0),
            detail=detail,
        )
    ]


def cells_per_hour(device: torch.device, packed: int, count: int, tick: Callable[[str], None]) -> float:
    """A whole study, including the start of its processes."""
    devices: Sequence[str] = visible_gpus()[:1] if device.type == "cuda" else ()
    spec = StudySpec(
        name="packing",
        base={**BASE, **BUDGET[device.type], "device": device.type},
        parameters=(make_axis("lr", [0.002]),),
        seeds=tuple(range(count)),
        test="none",
    )
    with tempfile.TemporaryDirectory(prefix="anaphor-packing-") as folder:
        engine = LocalEngine(devices=devices, per_device=packed, slots=packed)
        with engine:
            study = Study(spec, Path(folder), engine, _Silent(tick))
            start = time.perf_counter()
            study.run()
            seconds = time.perf_counter() - start
        done = sum(cell.status(spec) == "finished" for cell in study.cells)
        if done < count:
            raise DataError(f"{count - done} of {count} cells did not finish: {study.reason(study.cells[0], 'failed')}")
    return 3600 * count / seconds


def count_packing_ticks(device: torch.device) -> int:
    return sum(PACKED[device.type].values())
