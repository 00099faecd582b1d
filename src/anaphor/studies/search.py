"""Which setting comes next: from a list, or drawn by Optuna; and which running ones are pruned."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

import numpy as np

from anaphor.errors import ConfigError
from anaphor.studies.axes import Axis, Range, format_setting
from anaphor.studies.cell import Cell, data_digests
from anaphor.studies.spec import GOALS, Setting, StudySpec

WITHOUT_VALUE = "without value"  # attribute of a trial whose setting has no value, as opposed to an interrupted one
MIN_CELLS = 3  # of other settings at the same step before one is pruned

AxisType = tuple[tuple[Any, ...] | None, bool, bool]
"""What must not change along an axis: its values, or whether it has integers and a logarithmic scale."""


class Proposals(Protocol):
    """Settings to try, one after the other."""

    def next(self) -> Setting | None:
        """The next setting; None if there is none, at the moment or at all."""

    @property
    def left(self) -> int:
        """Number of settings that `next` may still give."""

    def report(self, setting: Setting, value: float | None) -> None:
        """Mean over seeds, infinitely bad where a run diverged, None where nothing is known."""


class ListProposals:
    """A list of settings, in order."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._left = deque(settings)

    def next(self) -> Setting | None:
        return self._left.popleft() if self._left else None

    @property
    def left(self) -> int:
        return len(self._left)

    def report(self, setting: Setting, value: float | None) -> None:
        pass


class OptunaProposals:
    """Settings drawn by Optuna. Its journal is in the study's folder, so that a search can be resumed."""

    def __init__(self, spec: StudySpec, folder: Path) -> None:
        optuna = import_optuna(spec)
        journal: Any = import_module("optuna.storages.journal")
        self._optuna, self.spec = optuna, spec
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / "search.journal")))
            self.study = optuna.create_study(
                storage=storage, study_name=spec.name, direction=spec.goal, load_if_exists=True
            )
        self._pending: list[tuple[Setting, Any]] = []
        self._interrupted: deque[Any] = deque()
        states = optuna.trial.TrialState
        trials = self.study.get_trials()
        self._check_metric(trials, folder)
        self._check_axes(trials, folder)
        sampler = {"random": optuna.samplers.RandomSampler, "bayes": optuna.samplers.TPESampler}[spec.method]
        self.study.sampler = sampler(seed=sampler_seed(spec.seeds[0], len(trials)))
        for trial in self.study.get_trials(states=(states.RUNNING,)):
            # The process was killed: the same setting again, unless a range was narrowed because of it.
            if WITHOUT_VALUE not in trial.user_attrs and self._is_in_ranges(trial.params):
                self._interrupted.append(trial.params)
            self.study.tell(trial.number, state=states.FAIL)
        done = [trial for trial in self.study.get_trials() if self._is_done(trial)]
        self._left = spec.trials - len(done)
        self.finished = [spec.setting_at(dict(trial.params)) for trial in done]

    def next(self) -> Setting | None:
        if self.finished:
            return self.finished.pop(0)
        if self._left <= 0:
            return None
        self._left -= 1
        if self._interrupted:
            self.study.enqueue_trial(self._interrupted.popleft())
        trial = self.study.ask()
        setting = draw_setting(trial, self.spec)
        self._pending.append((setting, trial))
        return setting

    @property
    def left(self) -> int:
        return len(self.finished) + max(self._left, 0)

    def report(self, setting: Setting, value: float | None) -> None:
        for index, (proposed, trial) in enumerate(self._pending):
            if proposed is setting:
                state = self._optuna.trial.TrialState
                if value is None:
                    trial.set_user_attr(WITHOUT_VALUE, True)
                self.study.tell(trial, value, state=state.FAIL if value is None else state.COMPLETE)
                del self._pending[index]
                return

    def _is_in_ranges(self, drawn: Mapping[str, Any]) -> bool:
        ranges = (axis for axis in self.spec.parameters if isinstance(axis, Range) and axis.name in drawn)
        return all(axis.low <= drawn[axis.name] <= axis.high for axis in ranges)

    def _is_done(self, trial: Any) -> bool:
        return trial.state == self._optuna.trial.TrialState.COMPLETE or WITHOUT_VALUE in trial.user_attrs

    def _check_metric(self, trials: Sequence[Any], folder: Path) -> None:
        """Raise if earlier trials have values of another metric, or of another goal."""
        before, goal = self.study.user_attrs.get("metric"), self.study.direction.name.lower()
        changed = ""
        if before not in (None, self.spec.metric):
            changed = f"by {before} and is by {self.spec.metric}"
        elif goal != self.spec.goal:
            changed = f"to {goal} and is to {self.spec.goal}"
        if changed and (trials or goal != self.spec.goal):  # Optuna keeps the goal, also of a search without trials
            raise ConfigError(f"the search in {folder} was {changed}: use another --out")
        self.study.set_user_attr("metric", self.spec.metric)

    def _check_axes(self, trials: Sequence[Any], folder: Path) -> None:
        """Raise if the axes have changed: earlier trials would not fit. A range may get other ends."""
        changed = list(dict.fromkeys(self._changes(trials)))
        if changed:
            raise ConfigError(f"the axes of the search in {folder} differ: {'; '.join(changed)}; use another --out")

    def _changes(self, trials: Sequence[Any]) -> Iterator[str]:
        axes = {axis.name: axis for axis in self.spec.parameters}
        for trial in trials:
            for name, before in trial.distributions.items():
                if name not in axes:
                    yield f"{name} was an axis and is none"
                elif (was := self._axis_type(before)) != (now := axis_type(axes[name])):
                    yield f"{name} was {describe_type(*was)} and is {describe_type(*now)}"
            if self._is_done(trial):
                yield from (f"{name} was no axis and is one" for name in axes if name not in trial.distributions)

    def _axis_type(self, distribution: Any) -> AxisType:
        if isinstance(distribution, self._optuna.distributions.CategoricalDistribution):
            return tuple(distribution.choices), False, False
        return None, isinstance(distribution, self._optuna.distributions.IntDistribution), distribution.log


def import_optuna(spec: StudySpec) -> Any:
    """The library that draws settings, without its messages."""
    try:
        optuna: Any = import_module("optuna")
    except ImportError:
        raise ConfigError(f"method {spec.method} needs Optuna: pip install 'anaphor[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def draw_setting(trial: Any, spec: StudySpec) -> Setting:
    """The setting of a trial of Optuna's."""
    return spec.setting_at({axis.name: suggest(trial, axis) for axis in spec.parameters})


def suggest(trial: Any, axis: Any) -> Any:
    """A value of an axis that varies."""
    if isinstance(axis, Axis):
        return trial.suggest_categorical(axis.name, list(axis.values))
    if axis.is_integer:
        return trial.suggest_int(axis.name, int(axis.low), int(axis.high), log=axis.is_log)
    return trial.suggest_float(axis.name, axis.low, axis.high, log=axis.is_log)


def draw_at_random(spec: StudySpec) -> list[Setting]:
    """All settings of a random search. They depend on no result: workers that share a folder draw the same, and those
    that a process alone draws."""
    optuna = import_optuna(spec)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=sampler_seed(spec.seeds[0], 0)))
    return [draw_setting(study.ask(), spec) for _ in range(spec.trials)]


def sampler_seed(seed: int, trials: int) -> int:
    """Seed of a sampler. A resumed search needs another one, because it would draw the same settings again."""
    seed %= 2**32  # the samplers take no larger ones
    return int(np.random.SeedSequence([seed, trials]).generate_state(1)[0]) if trials else seed


def axis_type(axis: Axis | Range) -> AxisType:
    return (axis.values, False, False) if isinstance(axis, Axis) else (None, axis.is_integer, axis.is_log)


def describe_type(values: tuple[Any, ...] | None, is_integer: bool, is_log: bool) -> str:
    if values is not None:
        return f"one of {', '.join(map(str, values))}"
    return f"{'an integer' if is_integer else 'a number'} {'on a logarithmic scale' if is_log else 'from a range'}"


def make_proposals(spec: StudySpec, folder: Path, *, is_shared: bool = False) -> Proposals:
    """The settings of a study in this folder, which workers may share."""
    if is_shared and spec.is_search:
        return ListProposals(draw_at_random(spec))
    return OptunaProposals(spec, folder) if spec.is_search else ListProposals(spec.settings())


@dataclass(frozen=True)
class Curve:
    """Validation values of one cell so far."""

    costs: Mapping[int, float]
    """By step; smaller is better, whatever the goal."""
    unit: Hashable = None
    """Only curves with the same unit are compared."""

    @property
    def last_step(self) -> int:
        return max(self.costs, default=0)

    def covers(self, step: int) -> bool:
        return bool(self.costs) and min(self.costs) <= step <= self.last_step

    def best_until(self, step: int) -> float:
        return min(cost for at, cost in self.costs.items() if at <= step)


def read_curve(cell: Cell, spec: StudySpec) -> Curve:
    """Empty where the validations during training do not measure the study's metric."""
    sign = 1 if spec.goal == GOALS["min"] else -1
    lines = cell.read_validations()
    values = {line["step"]: spec.support.value(line["valid"], spec.target) for line in lines}
    costs = {step: sign * value for step, value in values.items() if value is not None}
    if not costs:
        return Curve({})
    run = cell.setting.run
    unit = spec.support.unit(run, data_digests(spec.task, run), lines[-1]["valid"], spec.target)
    among = format_setting(cell.setting.parameters) if spec.tune else ""  # values to tune, of the same setting
    return Curve(costs, (unit, spec.support.exclusion(run, spec.target), among))


def find_pruned(running: Sequence[Cell], cells: Iterable[Cell], spec: StudySpec) -> list[Cell]:
    """Running cells of settings whose mean is worse than the median of the other settings at the same step.

    Optuna's MedianPruner judges single runs, and a setting without one of its seeds cannot be selected any more. In
    600 simulated studies (8 settings, 3 seeds, 20 validations, 4 at a time) it kept the best setting in 40 to 64 % and
    trained 43 % of all steps; this rule kept it in 57 to 69 % with 38 %.
    """
    curves: dict[Hashable, dict[str, Curve]] = {}
    for cell in cells:
        curves.setdefault(cell.setting.run, {})[cell.key] = read_curve(cell, spec)
    pruned = []
    for run in dict.fromkeys(cell.setting.run for cell in running):
        own = [cell for cell in running if cell.setting.run == run]
        step = min(curves[run][cell.key].last_step for cell in own)
        if not step:
            continue  # one of them has no validation yet
        unit = curves[run][own[0].key].unit
        costs = {
            other: [one.best_until(step) for one in of.values() if one.covers(step) and one.unit == unit]
            for other, of in curves.items()
        }
        mine, others = costs.pop(run), [values for values in costs.values() if values]
        if sum(map(len, others)) >= MIN_CELLS and fmean(mine) > median(map(fmean, others)):
            pruned += own
    return pruned
