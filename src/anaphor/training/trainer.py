"""The training loop: steps, validation, checkpoints. It never asks which task it has.

Resuming is exact. What a step needs beyond weights and data (the carry, the optimizer's state, the position in the
epoch, the random generators, the schedule, the average) is in the checkpoint, and the order of batches is a function of
seed and epoch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from anaphor.errors import CheckpointError, ConfigError, Diverged
from anaphor.metrics.result import Metric, Result
from anaphor.training import checkpoint
from anaphor.training.averaging import Average
from anaphor.training.experiment import Experiment, evaluate_split, get_batches
from anaphor.training.run_folder import RunFolder
from anaphor.training.schedule import Budget, Progress, Schedule
from anaphor.training.state_dicts import flatten, unflatten
from anaphor.training.step import Step, StepReport


class Callback(Protocol):
    """Called while a model trains, for example by a progress bar. `count` is the number of items trained on so far."""

    def on_step(self, progress: float, loss: float, count: int) -> None: ...

    def on_evaluation(self, epoch: float, train_loss: float | None, result: Result, is_best: bool) -> None: ...


class NullCallback:
    """A callback that does nothing; a base for those that need one of the two."""

    def on_step(self, progress: float, loss: float, count: int) -> None:
        pass

    def on_evaluation(self, epoch: float, train_loss: float | None, result: Result, is_best: bool) -> None:
        pass


class OnceCallback:
    """Calls a callback once for each step and validation, also where a run starts again and repeats some."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.count, self.repeated_count = 0, 0
        self.epoch, self.repeated_epoch = -1.0, -1.0

    def restart(self) -> None:
        """Steps and validations up to now will be repeated."""
        self.repeated_count, self.repeated_epoch = self.count, self.epoch

    def on_step(self, progress: float, loss: float, count: int) -> None:
        self.count = count
        if count > self.repeated_count:
            self.callback.on_step(progress, loss, count)

    def on_evaluation(self, epoch: float, train_loss: float | None, result: Result, is_best: bool) -> None:
        self.epoch = epoch
        if epoch > self.repeated_epoch:
            self.callback.on_evaluation(epoch, train_loss, result, is_best)


class Events(Protocol):
    """A log of validations beside the run folder's own, such as TensorBoard's."""

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop itself."""

    lr: float
    metric: Metric
    """Selects the best checkpoint."""
    counted: str = "tokens"
    """What throughput counts."""
    accumulate: int = 1
    eval_every: int | None = None
    patience: int | None = None
    average_from: float = 0.0
    """Fraction of the budget after which weights are averaged."""
    sample_seed: int = 0
    save_seconds: float = 300.0
    """Seconds between checkpoints, beside those of validations."""
    save_only_model: bool = False
    """Validations save the weights alone, and only if they are the best so far. What a resume needs, which is several
    times as large, is saved every `save_seconds`, and when training is stopped."""


@dataclass(frozen=True)
class PendingStep:
    """A step whose report has not been read."""

    step: int
    lr: float
    count: int
    report: StepReport


@dataclass
class Trainer:
    """All parts of a training run. `fit` runs until the budget is spent or `stop` says so."""

    experiment: Experiment
    step: Step
    schedule: Schedule
    budget: Budget
    settings: LoopSettings
    folder: RunFolder
    callback: Callback
    facts: dict[str, Any]
    """What must be the same when the run is resumed: the settings, the data, the environment."""
    average: Average | None = None
    events: Events | None = None
    stop: Callable[[], bool] = lambda: False
    progress: Progress = field(default_factory=Progress)
    carry: Any = None
    pending: deque[PendingStep] = field(default_factory=deque)
    batches_per_epoch: int = 1
    last_save: float = field(default_factory=time.monotonic)
    resumable: tuple[int | None, int | None] = (None, None)
    """Steps of the last checkpoint that can be resumed, and of the best one at that time."""
    start: float = field(default_factory=time.monotonic)
    """When the command started; earlier by the time of those that it resumes."""
    best_signature: str | None = None
    """How the best value was measured, where settings have changed since."""
    loaded_average: Mapping[str, torch.Tensor] | None = None
    """Of the checkpoint that was loaded, until it is saved again: its weights may be the best by this average."""
    reserve: Callable[[float], float] = lambda validating: 0.0
    """From the seconds of a validation to those of all that comes after the last step."""

    def fit(self) -> None:
        """Train to the end of the budget. The last state is saved, whatever ends it but a kill."""
        self.experiment.model.train()
        self.last_save = time.monotonic()
        self.measure_time()
        groups = self._groups()
        if self._validation_is_missing():
            self.batches_per_epoch = len(get_batches(self.experiment, self.progress.epoch))
            self._validate()
        while not self.is_over():
            start = time.perf_counter()
            self._train_on(next(groups))
            self._flush(keep=self.step.lag)
            self.progress.add_time(time.perf_counter() - start)
            self.measure_time()
            if self._is_due() or self.is_over():
                self._validate()
            elif time.monotonic() - self.last_save >= self.settings.save_seconds:
                self._flush()
                self.save()
            if self.stop():
                break
        self._flush()
        if self.settings.save_only_model:
            is_saved = self.progress.step == self.resumable[0] or (self.is_over() and not self.stop())
        else:
            is_saved = (self.folder.checkpoints / f"step-{self.progress.step}").exists()
        if self.progress.step and not is_saved:
            self.save()

    def _validation_is_missing(self) -> bool:
        """Whether a resumed run was stopped before the validation of its last step was saved. The log does not decide:
        it may have a line of a validation that the checkpoint knows nothing of, and it may have lost lines."""
        return self.progress.recent_count > 0 and (self._is_due() or self.is_over())

    def _epochs(self) -> float:
        """Epochs trained, with a fraction; a whole number at the end of an epoch."""
        fraction = round(self.progress.batch / self.batches_per_epoch, 4) if self.progress.batch else 0
        return self.progress.epoch + fraction

    def measure_time(self) -> float:
        """Seconds of the whole command so far."""
        self.progress.elapsed = time.monotonic() - self.start
        return self.progress.elapsed

    def training_time(self) -> float:
        """Seconds of training that a budget in minutes leaves, in all."""
        return max(self.budget.available(self.progress.elapsed - self.progress.seconds, self.progress.reserve), 0.0)

    def _spent(self, more: int = 0) -> float:
        done = self.progress
        # Steps to come are expected to take as long as those before.
        seconds = done.seconds + more * done.seconds / max(done.step, 1)
        return self.budget.spent(done.step + more, seconds, done.elapsed - done.seconds, done.reserve)

    def is_over(self) -> bool:
        """Whether the budget is spent, or training stopped early."""
        return self._spent() >= 1 or self.stopped_early()

    def stopped_early(self) -> bool:
        """Whether validation did not improve for `patience` evaluations, with budget left."""
        patience, without = self.settings.patience, self.progress.evaluations_without_improvement
        return patience is not None and without >= patience and self._spent() < 1

    def _is_due(self) -> bool:
        every = self.settings.eval_every
        return self.progress.batch == 0 if every is None else self.progress.step % every == 0

    def _groups(self) -> Iterator[list[Any]]:
        """The batches of one update at a time."""
        while True:
            batches = get_batches(self.experiment, self.progress.epoch)
            self.batches_per_epoch = len(batches)
            if self.progress.batch >= len(batches):  # of a run that is resumed with larger batches, by --force
                self.progress.batch = 0
                self.progress.epoch += 1
                continue
            while self.progress.batch < len(batches):
                size = min(self.settings.accumulate, len(batches) - self.progress.batch)
                group = [batches[self.progress.batch + place] for place in range(size)]
                is_last = self.progress.batch + size == len(batches)
                # Counted before the group is yielded, so that a checkpoint after its step has the right position.
                self.progress.batch = 0 if is_last else self.progress.batch + size
                self.progress.epoch += is_last
                yield group
                if is_last:
                    break

    def _train_on(self, group: list[Any]) -> None:
        # The fraction at the end of the step: with a warmup from zero the first step would otherwise be wasted.
        lr = self.settings.lr * self.schedule.factor(self._spent(more=1))
        self.step.optimizer.set_lr(lr)
        report, self.carry = self.step(group, self.carry)
        count = sum(batch.count for batch in group)
        self.progress.step += 1
        self.progress.count += count
        self.pending.append(PendingStep(self.progress.step, lr, count, report))
        if self.average is not None and self.is_averaging():
            self.average.update()

    def is_averaging(self) -> bool:
        """Whether weights are averaged by now; a larger budget may begin a tail average later than it was begun."""
        return self._spent() >= self.settings.average_from

    def forget_best(self) -> None:
        """The next validation is the best: earlier values cannot be compared with it."""
        self.progress.forget_best()
        self.schedule.forget_best()

    def _flush(self, keep: int = 0) -> None:
        """Read the reports of all steps but the newest `keep`. A loss that is not finite ends the run."""
        while len(self.pending) > keep:
            pending = self.pending.popleft()
            metrics = pending.report.read()
            if not metrics.is_finite(self.experiment.largest_loss):
                bad = metrics.first_nonfinite
                beyond = " (too large to be a loss)" if bad is None else ""
                where = "" if bad is None else f", first non-finite gradient in {bad}"
                raise Diverged(
                    f"training diverged at step {pending.step}: loss {metrics.loss:.4g}{beyond}, gradient norm "
                    f"{metrics.norm:.4g}{where}, learning rate {pending.lr:.4g}; {self._last_checkpoint()}"
                )
            self.progress.add_loss(metrics.loss, pending.count, metrics.correct)
            self.callback.on_step(self._spent(), metrics.loss, self.progress.count)

    def _last_checkpoint(self) -> str:
        saved = any(self.folder.checkpoints.glob("step-*"))
        return "the last good checkpoint is kept" if saved else "there was no checkpoint yet"

    def averaged_weights(self) -> AbstractContextManager[None]:
        """The weights that are evaluated: the average where there is one."""
        return nullcontext() if self.average is None else self.average.swapped_in()

    def _select(self, result: Result) -> float:
        """The value of the selecting metric, which must be finite."""
        metric = self.settings.metric
        if metric.name not in result.values:
            raise ConfigError(
                f"the result on valid has no metric {metric.name!r} to select by (it has: {', '.join(result.values)})"
            )
        value = result.values[metric.name]
        if value is None:
            raise ConfigError(f"{metric.name} has no value on valid: select by another metric with --select")
        loss = result.values.get("loss")
        bad_loss = loss is not None and not loss < self.experiment.largest_loss
        if not math.isfinite(value) or bad_loss:
            shown = f"loss {loss:.4g}" if bad_loss else f"{metric.label} {value:.4g}"
            raise Diverged(
                f"training diverged at step {self.progress.step}: validation {shown}, learning rate "
                f"{self.step.optimizer.lr:.4g}; {self._last_checkpoint()}"
            )
        return value

    def _validate(self) -> None:
        self._flush()
        start = time.perf_counter()
        metric, progress = self.settings.metric, self.progress
        with self.averaged_weights():
            result = evaluate_split(self.experiment, "valid")
            value = self._select(result)
            sample = self.experiment.sample(self.settings.sample_seed)
        self.experiment.model.train()  # a user's own task may leave it in evaluation mode
        if self.best_signature not in (None, result.signature):
            self.forget_best()
        self.best_signature = None
        is_best = metric.is_better(value, progress.best_value)
        if is_best:
            progress.best_value, progress.best_step = value, progress.step
        progress.evaluations_without_improvement = 0 if is_best else progress.evaluations_without_improvement + 1
        self.schedule.report(value if metric.goal == "min" else -value)
        recent = progress.pop_recent(self.settings.counted)
        line = {
            "epoch": self._epochs(), self.settings.counted: progress.count, "seconds": round(progress.seconds, 3),
            **recent, "lr": self.step.optimizer.lr, "valid": result.to_plain(),
        }  # fmt: skip
        self.folder.log(progress.step, **line)
        if sample:
            self.folder.add_sample(progress.step, sample)
        # Before the checkpoint, so that a run that is resumed from it does not log this again.
        if self.events is not None:
            self.events.add(progress.step, line, sample)
        progress.reserve = self.reserve(time.perf_counter() - start)
        if not self.settings.save_only_model or time.monotonic() - self.last_save >= self.settings.save_seconds:
            self.save()
        elif is_best:
            # A resumed run may validate the step that it was resumed from: that checkpoint is not to lose its parts.
            self.save(only_model=progress.step != self.resumable[0])
        self.measure_time()
        self.callback.on_evaluation(self._epochs(), recent["train_loss"], result, is_best)

    def save(self, *, only_model: bool = False) -> None:
        """Write a checkpoint, which can be resumed unless it has the weights alone. The newest two and the best are
        kept; with `save_only_model`, the best and the last that can be resumed."""
        parts = {"model": self.experiment.model.state_dict()}
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        if self.loaded_average is not None and self.progress.step == self.resumable[0]:
            parts["average"] = dict(self.loaded_average)
        self.loaded_average = None
        if not only_model:
            parts["optimizer"] = self.step.optimizer.state_dict()
            parts["random"] = {"cpu": torch.get_rng_state()}
            if torch.cuda.is_available():
                parts["random"]["cuda"] = torch.cuda.get_rng_state()
            if self.carry is not None:
                parts["carry"] = flatten(self.carry)
        self.measure_time()
        facts = {**self.facts, "progress": asdict(self.progress), "schedule": self.schedule.state_dict()}
        if only_model:
            facts[checkpoint.ONLY_MODEL] = True
        checkpoint.write(self.folder.checkpoints, self.progress.step, parts, facts)
        if not only_model:
            self.resumable, self.last_save = (self.progress.step, self.progress.best_step), time.monotonic()
        self._prune()
        self.folder.delete_previous()

    def _prune(self) -> None:
        also = [step for step in (self.progress.best_step, *self.resumable) if step is not None]
        checkpoint.prune(self.folder.checkpoints, keep=0 if self.settings.save_only_model else 2, also=also)

    def load(self, saved: checkpoint.Checkpoint) -> None:
        """Restore a checkpoint. The random generators come last, so that nothing draws from them in between."""
        self.progress = saved.validate_for_resume()
        self.resumable = (saved.step, self.progress.best_step)
        if self.settings.save_only_model:
            self._prune()  # weights of later steps, which will be trained again
        self.start -= self.progress.elapsed
        saved.load_into(self.experiment.model)
        self.step.optimizer.load_state_dict(saved.parts["optimizer"])
        self.schedule.load_state_dict(saved.facts["schedule"])
        # As the last step had it: a validation that is missing logs it.
        self.step.optimizer.set_lr(self.settings.lr * self.schedule.factor(self._spent()))
        self.loaded_average = saved.parts.get("average")
        if self.average is not None:
            self.average.load_state_dict(self.loaded_average if self.is_averaging() else None)
        if "carry" in saved.parts:
            self.carry = unflatten(self.experiment.initial_carry(), saved.parts["carry"])
        try:
            torch.set_rng_state(saved.parts["random"]["cpu"])
            if "cuda" in saved.parts["random"] and torch.cuda.is_available():
                torch.cuda.set_rng_state(saved.parts["random"]["cuda"])
        except (KeyError, RuntimeError, TypeError):
            raise CheckpointError(f"{saved.file('random')} does not hold the state of a random generator") from None

    def best_checkpoint(self, warn: Callable[[str], None]) -> checkpoint.Checkpoint | None:
        """The best checkpoint so far. Where it is damaged or missing, the next validation is the best."""
        step = self.progress.best_step
        if step is None:
            return None
        try:
            saved = checkpoint.read(self.folder.checkpoints / f"step-{step}", ("model", "average"))
            saved.validate_for_inference()
        except CheckpointError as error:
            warn(f"{error}; the best checkpoint is lost")
            self.progress.forget_best()
            return None
        return saved
