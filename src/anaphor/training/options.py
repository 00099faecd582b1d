"""Options of a training command: what is done with the folder of a run, and how it is saved. Imports no torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anaphor.config import look_up
from anaphor.errors import ConfigError, print_warning
from anaphor.imported_files import ImportedFile
from anaphor.registry import TRACKERS
from anaphor.training.launch import read_launch
from anaphor.typecheck import check_types

MAX_THREADS = 1024


def ignore_line(line: str) -> None:
    """Print nothing."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a run is trained and saved, whatever its settings; no part of its spec."""

    resume: bool = False
    """Resume the run in the folder from its newest checkpoint."""
    force: bool = False
    """With `resume`: although settings differ from the checkpoint."""
    trust: bool = False
    """With `resume`: train on the data that the run names, although they are not those of its checkpoint and the run
    was not trained here."""
    overwrite: bool = False
    """Replace the run in the folder, which is kept until the new one has a checkpoint."""
    test: bool = True
    """Score the test split at the end; otherwise it is not read."""
    tensorboard: bool = False
    """Write TensorBoard events, as `log=("tensorboard",)` does."""
    log: tuple[str, ...] = ()
    """Trackers that log the run: tensorboard, wandb, trackio or mlflow."""
    save_minutes: float = 5.0
    """Minutes between checkpoints, in addition to those at validations."""
    save_only_model: bool = False
    """Validations save the weights alone, and only if they are the best so far. What a resume needs, which is several
    times as large, is saved every `save_minutes`, and when training is stopped."""
    threads: int | None = None
    """CPU threads. None: those of the run that is resumed, or torch's own for a new one. The number never follows the
    load of the machine, because sums are rounded by it."""
    start: float = field(default_factory=lambda: time.monotonic())
    """When the command started, by `time.monotonic`: a budget in minutes counts from there."""
    imports: tuple[ImportedFile, ...] = ()
    """The user's files that were imported, whose parts the run may use."""
    callbacks: tuple[Any, ...] = ()
    """Called at every step and validation: objects, or "FILE.py:Class"."""
    inform: Callable[[str], None] = ignore_line
    """Called with a line about the run once its data and its model are there."""
    warn: Callable[[str], None] = print_warning
    """Called with each line that is not an error and that the user should read."""

    def on_rank(self, rank: int, *, can_resume: bool) -> TrainOptions:
        """The options in one of the processes that train a run: all but the first are silent. Where torchrun has
        started them again, a run that is there is resumed."""
        options = self
        if can_resume and read_launch().restarts:
            options = replace(options, resume=True, overwrite=False)
        if rank == 0:
            return options
        return replace(options, inform=ignore_line, warn=ignore_line, tensorboard=False, log=())

    def __post_init__(self) -> None:
        check_types(self)
        check_existing_run(resume=self.resume, force=self.force, overwrite=self.overwrite)
        check_threads(self.threads)
        for name in self.log:
            look_up(TRACKERS, name, "tracker")
        if not 0 < self.save_minutes < math.inf:
            raise ConfigError(f"save_minutes={self.save_minutes}: it must be above 0")

    @property
    def trackers(self) -> tuple[str, ...]:
        """All trackers that are asked for, each once."""
        return tuple(dict.fromkeys((*self.log, *(("tensorboard",) if self.tensorboard else ()))))


def check_threads(threads: int | None) -> None:
    """Refuse a number of CPU threads that torch cannot have; None leaves it as it is."""
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"threads={threads}: it must be from 1 to {MAX_THREADS}")


def check_existing_run(*, resume: bool, force: bool, overwrite: bool) -> None:
    """Raise for a combination of what is to be done with a run that is there already."""
    if force and overwrite:
        raise ConfigError("--force and --overwrite: one resumes the run, the other deletes it; give one of them")
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite: --overwrite deletes the run; give one of them")
    if force and not resume:
        raise ConfigError("--force belongs to --resume; use --overwrite to replace the run in --out")


def require_folder(out: Path | str | None, resume: bool) -> None:
    """Refuse to resume a run without its folder."""
    if resume and out is None:
        raise ConfigError("--resume needs --out: the folder of the run")
