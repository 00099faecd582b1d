"""A run while a command trains it: its parts, the state that a checkpoint holds, what only this command knows, and how
far it is.

The loop makes one, in `build_run`, and hands it from function to function.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from anaphor.metrics.result import Metric
from anaphor.training.averaging import Average
from anaphor.training.budget import Budget
from anaphor.training.build import task_of
from anaphor.training.callbacks import AttachedCallback
from anaphor.training.distributed import Ranks, join_state
from anaphor.training.experiment import Experiment
from anaphor.training.optimizers import Optimizer
from anaphor.training.options import TrainOptions
from anaphor.training.progress import Progress
from anaphor.training.random_state import get_random_state
from anaphor.training.run_folder import RunFolder
from anaphor.training.schedule import Schedule
from anaphor.training.signals import Interruption
from anaphor.training.spec import RunSpec
from anaphor.training.step import Step, StepReport
from anaphor.training.step_log import StepLog
from anaphor.training.task import TaskDefinition
from anaphor.training.time_limit import Reserve
from anaphor.training.trackers import TrackedRun, TrackerGroup

TAIL_START = 0.5
"""Fraction of the budget after which a tail average begins."""


@dataclass
class TrainState:
    """What training changes. A checkpoint holds all of it, and the random generators, so that a run that is resumed
    continues bit by bit."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Schedule
    average: Average | None
    """The running average of the weights, where one is asked for: it is then what is validated and scored."""
    carry: Any = None
    """What a batch hands to the next one, such as a recurrent state."""
    progress: Progress = field(default_factory=Progress)
    """Steps, position in the data, times, and the best validation so far."""

    def averaged_weights(self) -> AbstractContextManager[None]:
        """The weights that are evaluated: inside the block the average, where there is one."""
        return nullcontext() if self.average is None else self.average.swapped_in()


@dataclass(frozen=True)
class WholeStep:
    """What a step has changed, besides weights and what belongs to them."""

    progress: Progress
    random: dict[str, Tensor]


@dataclass(frozen=True)
class PendingStep:
    """A step whose metrics have not been read."""

    step: int
    epoch: float
    lr: float
    count: int
    """Items trained on."""
    report: StepReport


@dataclass
class TrainingRun:
    """A run while a command trains it: its parts, its state, and what only this command has to know."""

    # Parts, which stay as they are.
    experiment: Experiment
    folder: RunFolder
    options: TrainOptions
    interruption: Interruption
    step: Step
    budget: Budget
    peak_lr: float
    metric: Metric
    """Selects the best checkpoint."""
    metadata: dict[str, Any]
    """What must be the same when the run is resumed: settings, data, environment. Every checkpoint repeats it, with
    `test`, whether the test split is scored."""
    state: TrainState

    # This command.
    out: str
    """The folder as the user wrote it."""
    callbacks: tuple[AttachedCallback, ...]
    start: float
    """When the command started; earlier by the time of those that it resumes."""
    trackers: TrackerGroup | None = None
    step_log: StepLog | None = None
    limit: float | None = None
    """Seconds after which validation and scoring are given up."""
    reserve: Reserve = field(default_factory=Reserve)
    """Time for what comes after the last step, where the budget is in minutes."""
    batches_per_epoch: int = 1
    """Of the present epoch; a task may have more in one epoch than in another."""
    first_step: int = 0
    """The step from which this command trains on."""
    logged: hashlib._Hash = field(default_factory=hashlib.sha256)
    """Hash of all lines of the metrics: a checkpoint has it, so that altered ones are noticed when it is resumed."""
    last_save: float = 0.0
    """Seconds of the whole command at which the last checkpoint that can be resumed was written."""
    ranks: Ranks = field(default_factory=Ranks)
    """The processes that train the run together."""
    whole: WholeStep | None = None
    """Of several processes, what the last whole step left, for the case that one is lost in the next."""

    # The checkpoint that was loaded or written last.
    resumable_step: int | None = None
    """Step of the last checkpoint that can be resumed."""
    resumable_best: int | None = None
    """The best step at that time: a run that is resumed from there needs its weights."""
    loaded_average: Mapping[str, Tensor] | None = None
    """Of the checkpoint that was loaded, until it is saved again: its weights may be the best by this average."""
    best_signature: str | None = None
    """How the best value was measured, where settings have changed since."""
    earlier_test: dict[str, Any] | None = None
    """The score of test of an earlier command, which is kept where this one trains no step."""

    @property
    def spec(self) -> RunSpec:
        return self.experiment.spec

    @property
    def task(self) -> TaskDefinition:
        return task_of(self.spec)

    @property
    def epochs(self) -> float:
        """Epochs trained, with a fraction; a whole number at the end of an epoch."""
        progress = self.state.progress
        return progress.epoch + (round(progress.batch / self.batches_per_epoch, 4) if progress.batch else 0)

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent, or training stopped early."""
        return self.budget.spent(self.state.progress) >= 1 or self.has_stopped_early

    @property
    def has_stopped_early(self) -> bool:
        """Whether validation did not improve for `patience` evaluations, with budget left."""
        patience, progress = self.spec.patience, self.state.progress
        is_out = patience is not None and progress.evaluations_without_improvement >= patience
        return is_out and self.budget.spent(progress) < 1

    @property
    def is_validation_due(self) -> bool:
        """Whether a validation follows the present step: every `--eval-every` steps, else at the end of each epoch."""
        every, progress = self.spec.eval_every, self.state.progress
        return progress.batch == 0 if every is None else progress.step % every == 0

    @property
    def is_validation_missing(self) -> bool:
        """Whether a resumed run was stopped before the validation of its last step was saved. The log does not decide:
        it may have a line of a validation that the checkpoint knows nothing of, and it may have lost lines."""
        return self.state.progress.recent_count > 0 and (self.is_validation_due or self.is_over)

    @property
    def is_averaging(self) -> bool:
        """Whether weights are averaged by now; a larger budget may begin a tail average later than it was begun."""
        begin = TAIL_START if self.spec.average == "tail" else 0.0
        return self.budget.spent(self.state.progress) >= begin

    @property
    def is_save_due(self) -> bool:
        """Whether it is time for a checkpoint that can be resumed."""
        return self.state.progress.elapsed - self.last_save >= 60 * self.options.save_minutes

    @property
    def is_saved(self) -> bool:
        """Whether the last step needs no further checkpoint when training ends."""
        step = self.state.progress.step
        if self.options.save_only_model:  # a run that is over is not resumed
            return step == self.resumable_step or (self.is_over and not self.interruption.is_requested())
        return (self.folder.checkpoints / f"step-{step}").exists()

    def open_trackers(self) -> TrackerGroup:
        """What `--log` names, which gets the lines that the files of the run get."""
        names, options = self.options.trackers, self.options
        tracked = TrackedRun(
            folder=self.folder.folder,
            id=self.folder.tracker_id(resume=options.resume) if names else "",
            settings=self.metadata["spec"],
            metrics=tuple(metric.name for metric in self.task.metrics),
            after=self.state.progress.last_logged,
        )
        return TrackerGroup(names, tracked, self.experiment.device, options.warn)

    def join_carry(self) -> Any:
        """The carried state of all rows of the batch."""
        if self.ranks.count == 1 or self.state.carry is None:
            return self.state.carry
        return join_state(self.state.carry, self.experiment.initial_carry(), self.ranks)

    def measure_time(self) -> None:
        """Note the seconds of the whole command so far, those of the first rank on all of them; and signals."""
        progress = self.state.progress
        progress.elapsed = time.monotonic() - self.start
        if self.ranks.count > 1:
            self.whole = WholeStep(replace(progress), get_random_state(self.experiment.device))
            times = (progress.elapsed, progress.seconds, progress.reserve)
            progress.elapsed, progress.seconds, progress.reserve = self.ranks.share_values(times)
            self.ranks.agree_on_signal(self.interruption)
