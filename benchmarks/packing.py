"""Several runs of a study on one device against one at a time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from anaphor.errors import DataError
from anaphor.studies.axes import make_axis
from anaphor.studies.cell import Cell
from anaphor.studies.engines import LocalEngine, visible_gpus
from anaphor.studies.spec import StudySpec
from anaphor.studies.study import Study
from benchmarks.timing import Finding

PACKED = {"cuda": {1: 5, 8: 16, 16: 32}, "cpu": {1: 4, 2: 4}}
"""Processes, and the cells of each such study: a multiple of them, so that no process is idle at the end."""
MIN_RATIO = 2.0
BASE = {"data": "grammar", "model": "lstm", "width": 200, "layers": 2, "batch_size": 20, "bptt": 35, "dropout": 0.2}
"""A cell of a study of small models: the sizes of the recipe on an embedded text."""
BUDGET = {"cuda": {"epochs": 6}, "cpu": {"steps": 20}}


class _Silent:
    def __init__(self, tick: Callable[[str], None]) -> None:
        self.tick = tick

    def on_status(self, cell: Cell, status: str, reason: str = "") -> None:
        if status == "finished":
            self.tick("packing")

    def on_wait(self, running: list[Cell]) -> None:
        pass


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
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


def count_ticks(pairs: int, device: torch.device) -> int:
    return sum(PACKED[device.type].values())
