"""Where a study goes next: through a list of settings, or wherever a search sees promise."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anaphor.errors import ConfigError
from anaphor.studies.axes import Axis, Range
from anaphor.studies.spec import Setting, StudySpec

OVER = "over"  # what a trial is called that failed because its setting has no value, not because it was interrupted

Kind = tuple[tuple[Any, ...] | None, bool, bool]
"""What may not change along an axis: its values, or whether its numbers are whole and whether their scale is
logarithmic."""


class Proposals(Protocol):
    """Settings to be tried, one after the other."""

    def next(self) -> Setting | None:
        """The next one; None when there is none, for now or for good."""

    def report(self, setting: Setting, value: float | None) -> None:
        """What came of it: the mean over seeds, infinitely bad where it went wrong, or None where nothing is known."""


class Listed:
    """All settings that are known beforehand, in order."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._left = deque(settings)

    def next(self) -> Setting | None:
        return self._left.popleft() if self._left else None

    def report(self, setting: Setting, value: float | None) -> None:
        pass


class Searched:
    """Optuna chooses. Its journal lies beside the study, so that a search goes on where it was interrupted."""

    def __init__(self, spec: StudySpec, folder: Path) -> None:
        try:
            optuna: Any = import_module("optuna")
            journal: Any = import_module("optuna.storages.journal")
        except ImportError:
            raise ConfigError(f"method {spec.method} needs Optuna: pip install 'anaphor[search]'") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self.spec = optuna, spec
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / "search.journal")))
            self.study = optuna.create_study(
                storage=storage, study_name=spec.name, direction=spec.goal, load_if_exists=True
            )
        self._open: list[tuple[Setting, Any]] = []
        self._again: deque[Any] = deque()
        states = optuna.trial.TrialState
        begun = self.study.get_trials()
        self._require_same(begun, folder)
        sampler = {"random": optuna.samplers.RandomSampler, "bayes": optuna.samplers.TPESampler}[spec.method]
        self.study.sampler = sampler(seed=seed_of(spec.seeds[0], len(begun)))
        for trial in self.study.get_trials(states=(states.RUNNING,)):
            if OVER not in trial.user_attrs:
                self._again.append(trial.params)  # its process was killed: the same setting once more
            self.study.tell(trial.number, state=states.FAIL)
        over = [
            trial for trial in self.study.get_trials() if trial.state == states.COMPLETE or OVER in trial.user_attrs
        ]
        self._left = spec.trials - len(over)
        self.finished = [spec.at(dict(trial.params)) for trial in over]

    def next(self) -> Setting | None:
        if self.finished:
            return self.finished.pop(0)
        if self._left <= 0:
            return None
        self._left -= 1
        if self._again:
            self.study.enqueue_trial(self._again.popleft())
        trial = self.study.ask()
        chosen = {axis.name: self._suggest(trial, axis) for axis in self.spec.parameters}
        setting = self.spec.at(chosen)
        self._open.append((setting, trial))
        return setting

    def report(self, setting: Setting, value: float | None) -> None:
        for place, (asked, trial) in enumerate(self._open):
            if asked is setting:
                state = self._optuna.trial.TrialState
                if value is None:
                    trial.set_user_attr(OVER, True)
                self.study.tell(trial, value, state=state.FAIL if value is None else state.COMPLETE)
                del self._open[place]
                return

    def _suggest(self, trial: Any, axis: Any) -> Any:
        if isinstance(axis, Axis):
            return trial.suggest_categorical(axis.name, list(axis.values))
        if axis.whole:
            return trial.suggest_int(axis.name, int(axis.low), int(axis.high), log=axis.logarithmic)
        return trial.suggest_float(axis.name, axis.low, axis.high, log=axis.logarithmic)

    def _require_same(self, trials: Sequence[Any], folder: Path) -> None:
        """Refuse to go on along other axes: what was tried would have no place there. A range may get other ends."""
        changed = list(dict.fromkeys(self._changes(trials)))
        if changed:
            raise ConfigError(f"the search in {folder} was begun otherwise: {'; '.join(changed)}; choose another --out")

    def _changes(self, trials: Sequence[Any]) -> Iterator[str]:
        axes = {axis.name: axis for axis in self.spec.parameters}
        for trial in trials:
            for name, before in trial.distributions.items():
                if name not in axes:
                    yield f"{name} was varied and is not"
                elif (was := self._kind(before)) != (now := kind_of(axes[name])):
                    yield f"{name} was {in_words(*was)} and is {in_words(*now)}"
            if trial.state == self._optuna.trial.TrialState.COMPLETE or OVER in trial.user_attrs:
                yield from (f"{name} was not varied and is" for name in axes if name not in trial.distributions)

    def _kind(self, distribution: Any) -> Kind:
        if isinstance(distribution, self._optuna.distributions.CategoricalDistribution):
            return tuple(distribution.choices), False, False
        return None, isinstance(distribution, self._optuna.distributions.IntDistribution), distribution.log


def seed_of(seed: int, begun: int) -> int:
    """What a sampler starts from: the seed, and where a search goes on another one, or it would draw the same again."""
    seed %= 2**32  # more the samplers do not take
    return int(np.random.SeedSequence([seed, begun]).generate_state(1)[0]) if begun else seed


def kind_of(axis: Axis | Range) -> Kind:
    return (axis.values, False, False) if isinstance(axis, Axis) else (None, axis.whole, axis.logarithmic)


def in_words(values: tuple[Any, ...] | None, whole: bool, logarithmic: bool) -> str:
    """What an axis takes, to be told in an error."""
    if values is not None:
        return f"one of {', '.join(map(str, values))}"
    return f"a {'whole ' if whole else ''}number {'on a logarithmic scale' if logarithmic else 'from a range'}"


def proposals(spec: StudySpec, folder: Path) -> Proposals:
    return Searched(spec, folder) if spec.searches else Listed(spec.settings())
