"""Callbacks: what is called while a model trains, such as a progress bar."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Protocol

from anaphor.config import settings_of
from anaphor.errors import ConfigError
from anaphor.metrics.result import Result
from anaphor.registry import CALLBACKS, make_extras
from anaphor.training.experiment import Experiment
from anaphor.training.random_state import keep_random_state


class Callback(Protocol):
    """Called after each step and each validation."""

    def on_step(self, progress: float, loss: float, count: int) -> None:
        """After a step: the fraction of the budget that is spent, its mean loss, and the items trained on so far."""

    def on_evaluation(self, epoch: float, train_loss: float | None, result: Result, is_best: bool) -> None:
        """After a validation: epochs trained so far, mean training loss since the last one, and the result on valid."""


def check_callback(callback: Any, name: str = "callback") -> None:
    """Raise for what is not a callback."""
    is_one = all(callable(getattr(callback, method, None)) for method in ("on_step", "on_evaluation"))
    if isinstance(callback, type) or not is_one:
        raise ConfigError(f"{name}={repr(callback)[:80]}: it must be an object with on_step and on_evaluation")


class NullCallback:
    """A callback that does nothing; a base for those that need one of the two methods."""

    def on_step(self, progress: float, loss: float, count: int) -> None:
        pass

    def on_evaluation(self, epoch: float, train_loss: float | None, result: Result, is_best: bool) -> None:
        pass


def make_callbacks(experiment: Experiment, folder: Path) -> tuple[Callback, ...]:
    """The registered callbacks that the settings of a run ask for."""
    spec = experiment.spec
    with keep_random_state(experiment.device):  # a resumed run makes them again, with the generators restored
        callbacks = make_extras(CALLBACKS, spec.task, partial(settings_of, spec), experiment, folder)
    for callback in callbacks:
        check_callback(callback, "registered callback")
    return tuple(callbacks)
