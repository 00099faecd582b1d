"""Trackers: programs that people have for curves of their runs. `--log NAME` hands them what the run's own files get.

Every validation and, every few seconds, a step: the lines of `metrics.jsonl` and `steps.jsonl`. So a tracker costs
nothing in between, and it cannot change a result. None of them is needed, and none gets an account or the network
unless the user has said so to it (`WANDB_MODE=online`, `MLFLOW_TRACKING_URI`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from anaphor.config import look_up
from anaphor.errors import AnaphorError, describe_exception
from anaphor.registry import TRACKERS, TrackerKind, import_object
from anaphor.training.random_state import keep_random_state

STEP_CURVES = {"loss": "loss", "lr": "learning-rate", "grad_norm": "gradient-norm", "throughput": "throughput"}
"""Names of the curves of steps, by the keys of `steps.jsonl`."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, for a tracker that is to log it."""

    folder: Path
    """Folder of the run, to write into."""
    id: str
    """Stays the same when the run is resumed."""
    settings: Mapping[str, Any]
    """Settings as in `spec.yaml`, without sections."""
    metrics: tuple[str, ...]
    """Names of the metrics of validation."""
    after: int
    """Step of the last validation that was logged; 0 at the start."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name


class Tracker(Protocol):
    """Logs one run while it trains."""

    def add_step(self, line: Mapping[str, Any], /) -> None:
        """Log a step: a line of `steps.jsonl`."""

    def add(self, step: int, line: Mapping[str, Any], sample: str, /) -> None:
        """Log a validation: a line of `metrics.jsonl`, and the sample beside it."""

    def close(self) -> None:
        """The command ends; the run may be resumed by another one."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise for an unknown name, and for one whose package is not installed."""
    for name in names:
        kind: TrackerKind = look_up(TRACKERS, name, "tracker")
        kind.refuse_missing(name)


class TrackerGroup:
    """The trackers of a run. One that fails is left out with a warning: training does not depend on it.

    Our own errors are raised, such as TensorBoard's about a full disk: checkpoints need the same disk.
    """

    def __init__(self, names: Sequence[str], run: TrackedRun, device: Any, warn: Callable[[str], None]) -> None:
        self.device, self.warn = device, warn
        self.trackers: dict[str, Tracker] = {}
        for name in names:
            with self._guarded(name):
                self.trackers[name] = import_object(TRACKERS[name].make)(run)

    def add_step(self, line: Mapping[str, Any]) -> None:
        """Log a line of `steps.jsonl`."""
        for name, tracker in list(self.trackers.items()):
            with self._guarded(name):
                tracker.add_step(line)

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None:
        """Log a line of `metrics.jsonl`."""
        for name, tracker in list(self.trackers.items()):
            with self._guarded(name):
                tracker.add(step, line, sample)

    def close(self) -> None:
        """Write what is buffered."""
        for name, tracker in list(self.trackers.items()):
            with self._guarded(name):
                tracker.close()
        self.trackers.clear()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        with keep_random_state(self.device):  # some draw names at random
            try:
                yield
            except AnaphorError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever a program of others raises
                self.trackers.pop(name, None)
                self.warn(f"--log {name} failed and logs no more: {describe_exception(error)}")


def scalars_of(line: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, float]:
    """The curves of a line of metrics: loss of training and its accuracy where it has one, learning rate, and every
    metric of validation."""
    found = {f"{name}/train": line.get(f"train_{name}") for name in ("loss", "accuracy")}
    found["learning-rate"] = line.get("lr")
    found |= {f"{name}/valid": line["valid"].get(name) for name in metrics}
    return {name: float(value) for name, value in found.items() if value is not None}


def step_scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The curves of a line of steps."""
    values = {f"step/{name}": line[key] for key, name in STEP_CURVES.items()}
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
