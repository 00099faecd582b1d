"""Checks of what the methods of a task return, a user's own above all: used unchecked, it would fail later and look
like a fault of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anaphor.errors import ConfigError
from anaphor.metrics.result import Result
from anaphor.mixers.base import tensors_of
from anaphor.training.experiment import Experiment, Loss


def get_batches(experiment: Experiment, epoch: int) -> Sequence[Any]:
    """The training batches of an epoch, at least one."""
    batches: Any = experiment.batches(epoch)
    method = f"batches of {type(experiment).__name__}"
    if not (hasattr(batches, "__len__") and hasattr(batches, "__getitem__")):
        raise ConfigError(f"{method} must return a list of batches, not a {type(batches).__name__}")
    if not len(batches):
        raise ConfigError(f"{method} returns no batch for epoch {epoch}: there is nothing to train on")
    found: Sequence[Any] = batches
    return found


def check_batch(experiment: Experiment, batch: Any) -> None:
    """Raise for a batch without its two numbers."""
    if lacking := [name for name in ("count", "denominator") if not hasattr(batch, name)]:
        raise ConfigError(
            f"a batch of {type(experiment).__name__} is a {type(batch).__name__} without {' and '.join(lacking)}: give "
            f"the number of its items, and what the summed loss is divided by"
        )


def get_loss(experiment: Experiment, batch: Any, carry: Any) -> tuple[Loss, Any]:
    """Loss of a batch, and the state carried to the next one."""
    result: Any = experiment.loss(batch, carry)
    method = f"loss of {type(experiment).__name__}"
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Loss)):
        items = result if isinstance(result, tuple) else (result,)
        kinds = ", ".join(type(item).__name__ for item in items)
        raise ConfigError(f"{method} must return a Loss and a carry (None for none), not {kinds}")
    if result[0].total.ndim:
        raise ConfigError(f"{method} has a total {list(result[0].total.shape)}: give its sum, one number")
    if any(tensor.requires_grad for tensor in tensors_of(result[1])):
        raise ConfigError(f"{method} returns a carry with gradient: detach it")
    if carry is None and isinstance(result[1], tuple) and not isinstance(experiment.initial_carry(), tuple):
        raise ConfigError(f"{method} returns a carry, but initial_carry does not: a run could not be resumed")
    return result


def evaluate_split(experiment: Experiment, split: str) -> Result:
    """Result on a split while training."""
    result: Any = experiment.evaluate(split)
    method = f"evaluate of {type(experiment).__name__}"
    if not isinstance(result, Result):
        raise ConfigError(f"{method} must return a Result, not a {type(result).__name__}")
    for name, value in result.values.items():
        if value is not None and not isinstance(value, int | float):
            raise ConfigError(f"{method} returns {name} as a {type(value).__name__}: give a float")
    return result


def get_fingerprint(experiment: Experiment) -> dict[str, Any]:
    """Digests of the data and the preprocessing. Without those of the data a checkpoint could not be used."""
    found: Any = experiment.fingerprint()
    if not isinstance(found, dict) or not isinstance(found.get("data"), dict):
        raise ConfigError(
            f"fingerprint of {type(experiment).__name__} must return a dict with 'data', the digests of train and valid"
        )
    return found
