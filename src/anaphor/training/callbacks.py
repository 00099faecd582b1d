"""Callbacks: what is called while a model trains, such as a progress bar or a logger.

A callback cannot change a result unless its class says so with `changes_training = True`: random generators and the
modes of modules are restored after each call, and changed weights are refused.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import nn

from anaphor.config import settings_of
from anaphor.deprecated import warn_deprecated
from anaphor.errors import ConfigError
from anaphor.imported_files import import_class
from anaphor.metrics.result import Result
from anaphor.registry import CALLBACKS, make_extras
from anaphor.training.experiment import Experiment
from anaphor.training.random_state import get_random_state, keep_random_state, set_random_state


@dataclass(frozen=True)
class StepInfo:
    """A step of training, for callbacks. Nothing here makes a GPU wait: its values were read for the loop anyway."""

    step: int
    """Number of the step, from 1."""
    epoch: float
    """Epochs trained after it, with a fraction."""
    progress: float
    """Fraction of the budget that is spent."""
    count: int
    """Items trained on so far: tokens, sentences, images, as the task counts them."""
    loss: float
    """Mean loss of its batches, before the update."""
    lr: float
    """Learning rate of the update."""
    gradient_norms: Mapping[str, float] = field(repr=False)
    """Norm of the gradient of each parameter, before clipping."""
    model: nn.Module = field(repr=False)
    """The model. With CUDA graphs the step after this one may have begun, unless the callback has `synchronize`."""
    folder: Path
    """Folder of the run, to write into."""

    @cached_property
    def gradient_norm(self) -> float:
        """Norm of all gradients together, before clipping."""
        return math.hypot(*self.gradient_norms.values())

    @cached_property
    def layer_gradient_norms(self) -> dict[str, float]:
        """The same for each layer by name (`layers.0`), and for each other part of the model (`embedder`, `head`)."""
        squares: dict[str, float] = {}
        for name, norm in self.gradient_norms.items():
            layer = _layer_name(name)
            squares[layer] = squares.get(layer, 0.0) + norm**2
        return {layer: math.sqrt(square) for layer, square in squares.items()}


@dataclass(frozen=True)
class EvaluationInfo:
    """A validation, for callbacks."""

    step: int
    """Steps trained so far."""
    epoch: float
    """Epochs trained so far, with a fraction."""
    train_loss: float | None
    """Mean training loss since the last validation; None where no step was trained."""
    result: Result
    """Result on valid."""
    is_best: bool
    """Whether it is the best one so far."""
    lr: float
    """Learning rate of the last step."""
    model: nn.Module = field(repr=False)
    """The model, without averaging."""
    folder: Path
    """Folder of the run, to write into."""


class Callback(Protocol):
    """Called after each step and each validation. `NullCallback` is a base class."""

    def on_step(self, info: StepInfo, /) -> None:
        """After a step."""

    def on_evaluation(self, info: EvaluationInfo, /) -> None:
        """After a validation."""


class NullCallback:
    """A callback that does nothing; a base class for those that need one of the two methods."""

    changes_training: ClassVar[bool] = False
    """Whether it may change weights, modes or random numbers. The run records it, and is resumed with it only."""
    synchronize: ClassVar[bool] = False
    """Whether it is called before the next step begins, so that `info.model` has the weights of its step also where
    steps are CUDA graphs. The GPU waits for it; without it there is nothing to wait for."""

    def on_step(self, info: StepInfo, /) -> None:
        pass

    def on_evaluation(self, info: EvaluationInfo, /) -> None:
        pass


def check_callback(callback: Any, name: str = "callback") -> None:
    """Raise for what is not a callback."""
    is_one = all(callable(getattr(callback, method, None)) for method in ("on_step", "on_evaluation"))
    if isinstance(callback, type) or not is_one:
        raise ConfigError(f"{name}={repr(callback)[:80]}: it must be an object with on_step and on_evaluation")


@dataclass(frozen=True)
class AttachedCallback:
    """A callback of a run, with what the run records of it."""

    callback: Any
    on_step: Callable[[StepInfo], None]
    on_evaluation: Callable[[EvaluationInfo], None]
    description: Mapping[str, Any]
    """Class, file and SHA-256 of the file where there is one; empty for those of the program."""

    @property
    def changes_training(self) -> bool:
        return bool(getattr(self.callback, "changes_training", False))

    @property
    def synchronizes(self) -> bool:
        return self.changes_training or bool(getattr(self.callback, "synchronize", False))


def attach_callback(given: Any, experiment: Experiment) -> AttachedCallback:
    """A callback that is to be called: an object, or "FILE.py:Class"."""
    source: Mapping[str, Any] | None = None
    if isinstance(given, str):
        kind, file = import_class(given)
        with keep_random_state(experiment.device):
            given = kind()
        source = {"file": str(file.path), "sha256": file.sha256}
    check_callback(given)
    steps: Callable[[StepInfo], None] = given.on_step
    evaluations: Callable[[EvaluationInfo], None] = given.on_evaluation
    if _takes_separate_values(steps):
        steps = _call_with_values(given, "on_step", "progress", "loss", "count")
    if _takes_separate_values(evaluations):
        evaluations = _call_with_values(given, "on_evaluation", "epoch", "train_loss", "result", "is_best")
    if getattr(given, "shows_values_only", False) or type(given) is NullCallback:
        return AttachedCallback(given, steps, evaluations, {})
    name = type(given).__qualname__
    if not getattr(given, "changes_training", False):
        guard = Guard(name, experiment)
        steps, evaluations = partial(guard.call, steps), partial(guard.call, evaluations)
    own = {"class": name, **(_source_of(type(given)) if source is None else source)}
    return AttachedCallback(given, steps, evaluations, own | _effect_of(given))


def make_callbacks(experiment: Experiment, folder: Path) -> tuple[AttachedCallback, ...]:
    """The registered callbacks that the settings of a run ask for."""
    spec = experiment.spec
    with keep_random_state(experiment.device):  # a resumed run makes them again, with the generators restored
        callbacks = make_extras(CALLBACKS, spec.task, partial(settings_of, spec), experiment, folder)
    for callback in callbacks:
        check_callback(callback, "registered callback")
    attached = [attach_callback(callback, experiment) for callback in callbacks]
    return tuple(replace(one, description={**one.description, "registered": True}) for one in attached)


def describe_callbacks(callbacks: Iterable[AttachedCallback]) -> list[dict[str, Any]]:
    """What a run records of its callbacks."""
    return [dict(one.description) for one in callbacks if one.description]


class Guard:
    """Keeps a callback from changing a result. Random generators and modes are restored; changed weights are refused.

    Changes are seen by the version counters of the weights, which torch counts up with every operation in place;
    writing through `.data` is not counted.
    """

    def __init__(self, name: str, experiment: Experiment) -> None:
        self.name, self.device = name, experiment.device
        self.modules = list(experiment.model.modules())
        self.weights = [*experiment.model.named_parameters(), *experiment.model.named_buffers()]

    def call(self, function: Callable[[Any], None], info: Any) -> None:
        random, modes = get_random_state(self.device), [module.training for module in self.modules]
        before = self._versions()
        try:
            function(info)
        finally:
            set_random_state(random, self.device)
            for module, mode in zip(self.modules, modes, strict=True):
                module.training = mode
        if before != (after := self._versions()):
            number = next(place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
            raise ConfigError(
                f"callback {self.name} changed {self.weights[number][0]}: a callback that changes training says so by "
                f"the class attribute changes_training = True"
            )

    def _versions(self) -> list[tuple[int, bool, int]]:
        return [(weight._version, weight.requires_grad, weight.data_ptr()) for _, weight in self.weights]


def _layer_name(parameter: str) -> str:
    """`layers.0` of `layers.0.mixer.out.weight`, also inside an encoder or a decoder; else the first part of a name."""
    parts = parameter.split(".")
    numbered = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbered[0] + 1]) if numbered else parts[0]


def _takes_separate_values(method: Callable[..., Any]) -> bool:
    """Whether a method has the form that callbacks had before 1.0."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is one.empty for one in parameters) > 1


def _call_with_values(callback: Any, method: str, *names: str) -> Callable[[Any], None]:
    function = getattr(callback, method)
    warn_deprecated(f"{method}({', '.join(names)}) of {type(callback).__name__}", f"{method}(info)", since="1.0")
    return lambda info: function(*(getattr(info, name) for name in names))


def _source_of(kind: type) -> dict[str, Any]:
    """The file of a class and its digest; empty for one that was written in a notebook."""
    try:
        path = Path(inspect.getfile(kind)).absolute()
        return {"file": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    except (OSError, TypeError):
        return {}


def _effect_of(callback: Any) -> dict[str, Any]:
    return {"changes_training": True} if getattr(callback, "changes_training", False) else {}
