"""The only loop. It knows steps, clipping, evaluation and checkpoints, and never asks which task it has.

Resuming is exact. What a step needs beyond weights and data (the carry, the optimizer's state, the position in the
epoch, the random generators, the schedule, the average) is all in a checkpoint, and the order of batches is a function
of seed and epoch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from anaphor.errors import CheckpointError, Diverged
from anaphor.metrics.perplexity import Score
from anaphor.tasks.base import Task
from anaphor.training import checkpoint
from anaphor.training.averaging import Average
from anaphor.training.budget import Budget
from anaphor.training.events import Events
from anaphor.training.progress import Progress
from anaphor.training.requirement import to_go_on
from anaphor.training.rundir import RunDir
from anaphor.training.schedule import Schedule
from anaphor.training.step import Report, Step, tellable
from anaphor.training.tree import flatten, unflatten


class Watcher(Protocol):
    """Somebody who is told how training goes: a progress bar, or nobody. `trained` is the mean loss of training since
    the last validation."""

    def stepped(self, progress: float, loss: float, tokens: int) -> None: ...

    def evaluated(self, epoch: float, trained: float | None, score: Score, best: bool) -> None: ...


class Nobody:
    """Hears it all and says nothing."""

    def stepped(self, progress: float, loss: float, tokens: int) -> None:
        pass

    def evaluated(self, epoch: float, trained: float | None, score: Score, best: bool) -> None:
        pass


@dataclass(frozen=True)
class Settings:
    """What the loop itself has to be told."""

    lr: float
    accumulate: int = 1
    eval_every: int | None = None
    patience: int | None = None
    average_from: float = 0.0
    """Share of the budget after which weights are averaged."""
    sample_seed: int = 0


@dataclass(frozen=True)
class Pending:
    """A step that was begun and whose report nobody has read."""

    step: int
    lr: float
    tokens: int
    report: Report


@dataclass
class Trainer:
    """Everything that takes part. `fit` runs until the budget is spent or `stop` says so."""

    model: nn.Module
    task: Task
    step: Step
    schedule: Schedule
    budget: Budget
    settings: Settings
    rundir: RunDir
    watcher: Watcher
    facts: dict[str, Any]
    """What must be the same when the run goes on: the spec, the data, the tokenizer."""
    average: Average | None = None
    events: Events = field(default_factory=Events)
    stop: Callable[[], bool] = lambda: False
    progress: Progress = field(default_factory=Progress)
    carry: Any = None
    pending: deque[Pending] = field(default_factory=deque)
    batches: int = 1
    """How many this epoch has."""

    def fit(self) -> None:
        """Train to the end of the budget. The last state is saved whatever ends it but a kill."""
        self.model.train()
        groups = self._groups()
        while not self.over():
            began = time.perf_counter()
            self._learn(next(groups))
            self._settle(keep=self.step.lag)
            self.progress.took(time.perf_counter() - began)
            if self._due() or self.over():
                self._validate()
            if self.stop():
                break
        self._settle()
        if self.progress.step and not (self.rundir.checkpoints / f"step-{self.progress.step}").exists():
            self.save()

    def _reached(self) -> float:
        """How often the data was read, and how far the last time; a whole number at the end of an epoch."""
        return self.progress.epoch + (round(self.progress.batch / self.batches, 4) if self.progress.batch else 0)

    def _spent(self) -> float:
        return self.budget.spent(self.progress.step, self.progress.seconds)

    def over(self) -> bool:
        """Whether the budget is spent, or patience at its end."""
        return self._spent() >= 1 or self.stopped_early()

    def stopped_early(self) -> bool:
        """Whether validation did not get better for as long as one is willing to wait, with budget left."""
        patience = self.settings.patience
        return patience is not None and self.progress.fruitless >= patience and self._spent() < 1

    def _due(self) -> bool:
        every = self.settings.eval_every
        return self.progress.batch == 0 if every is None else self.progress.step % every == 0

    def _groups(self) -> Iterator[list[Any]]:
        """The batches of one update at a time."""
        while True:
            batches = self.task.batches(self.progress.epoch)
            self.batches = len(batches)
            if self.progress.batch >= len(batches):  # of a run that goes on with larger batches, by force
                self.progress.batch = 0
                self.progress.epoch += 1
                continue
            while self.progress.batch < len(batches):
                take = min(self.settings.accumulate, len(batches) - self.progress.batch)
                group = [batches[self.progress.batch + place] for place in range(take)]
                last = self.progress.batch + take == len(batches)
                # Told before the group is given, so that whoever saves after its step saves where it stands.
                self.progress.batch = 0 if last else self.progress.batch + take
                self.progress.epoch += last
                yield group
                if last:
                    break

    def _learn(self, group: list[Any]) -> None:
        # The share at the end of the step: with a warm-up from zero the first one would otherwise be wasted.
        spent = self.budget.spent(self.progress.step + 1, self.progress.seconds)
        lr = self.settings.lr * self.schedule.factor(spent)
        self.step.optimizer.set_lr(lr)
        report, self.carry = self.step(group, self.carry)
        tokens = sum(batch.count for batch in group)
        self.progress.step += 1
        self.progress.tokens += tokens
        self.pending.append(Pending(self.progress.step, lr, tokens, report))
        if self.average is not None and self._spent() >= self.settings.average_from:
            self.average.update()

    def _settle(self, keep: int = 0) -> None:
        """Read the reports of all steps but the newest `keep`. A loss that is not finite ends the run."""
        while len(self.pending) > keep:
            pending = self.pending.popleft()
            reading = pending.report.read()
            if not reading.finite:
                bad = reading.first_bad
                beyond = " (no perplexity is that large)" if bad is None else ""
                where = "" if bad is None else f", first bad gradient in {bad}"
                raise Diverged(
                    f"training diverged at step {pending.step}: loss {reading.loss:.4g}{beyond}, gradient norm "
                    f"{reading.norm:.4g}{where}, learning rate {pending.lr:.4g}; {self._what_is_left()}"
                )
            self.progress.lost(reading.loss, pending.tokens)
            self.watcher.stepped(self._spent(), reading.loss, self.progress.tokens)

    def _what_is_left(self) -> str:
        kept = any(self.rundir.checkpoints.glob("step-*"))
        return "the last good checkpoint is kept" if kept else "there was no checkpoint yet"

    def scored(self) -> AbstractContextManager[None]:
        """The weights that are scored and kept: the average where there is one."""
        return nullcontext() if self.average is None else self.average.swapped_in()

    def _validate(self) -> None:
        self._settle()
        with self.scored():
            score = self.task.evaluate(self.model, "valid")
            # The step before it looked well: only what came of it does not.
            if not tellable(score.cost):
                raise Diverged(
                    f"training diverged at step {self.progress.step}: validation loss {score.cost:.4g}, learning rate "
                    f"{self.step.optimizer.lr:.4g}; {self._what_is_left()}"
                )
            sample = self.task.sample(self.model, self.settings.sample_seed)
        better = self.progress.best_cost is None or score.cost < self.progress.best_cost
        if better:
            self.progress.best_cost, self.progress.best_step = score.cost, self.progress.step
        self.progress.fruitless = 0 if better else self.progress.fruitless + 1
        lr = self.step.optimizer.lr
        self.schedule.report(score.cost)
        recent = self.progress.take_recent()
        line = {
            "epoch": self._reached(), "tokens": self.progress.tokens, "seconds": round(self.progress.seconds, 3),
            **recent, "lr": lr, "valid": score.to_plain(),
        }  # fmt: skip
        self.rundir.log(self.progress.step, **line)
        self.rundir.add_sample(self.progress.step, sample)
        # Before the checkpoint, so that whoever goes on from it need not tell this again.
        self.events.add(self.progress.step, line, sample)
        self.save()
        self.watcher.evaluated(self._reached(), recent["train_loss"], score, better)

    def save(self) -> None:
        """Write all that going on needs. The newest two and the best are kept."""
        parts = {"model": self.model.state_dict(), "optimizer": self.step.optimizer.state_dict()}
        parts["random"] = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            parts["random"]["cuda"] = torch.cuda.get_rng_state()
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        if self.carry is not None:
            parts["carry"] = flatten(self.carry)
        facts = {**self.facts, "progress": asdict(self.progress), "schedule": self.schedule.state_dict()}
        checkpoint.write(self.rundir.checkpoints, self.progress.step, parts, facts)
        best = [] if self.progress.best_step is None else [self.progress.best_step]
        checkpoint.prune(self.rundir.checkpoints, keep=2, also=best)

    def load(self, saved: checkpoint.Checkpoint) -> None:
        """Become what was saved. The random generators come last, so that nothing draws from them in between."""
        self.progress = to_go_on(saved)
        saved.give_weights(self.model)
        self.step.optimizer.load_state_dict(saved.parts["optimizer"])
        self.schedule.load_state_dict(saved.facts["schedule"])
        if self.average is not None:
            self.average.load_state_dict(saved.parts.get("average"))
        if "carry" in saved.parts:
            self.carry = unflatten(self.task.empty_carry(self.model), saved.parts["carry"])
        try:
            torch.set_rng_state(saved.parts["random"]["cpu"])
            if "cuda" in saved.parts["random"] and torch.cuda.is_available():
                torch.cuda.set_rng_state(saved.parts["random"]["cuda"])
        except (KeyError, RuntimeError, TypeError):
            raise CheckpointError(f"{saved.file('random')} holds no state of a random generator") from None
