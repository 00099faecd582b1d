"""Fair sizes: the width, or another integer, with which every setting of a study has the same number of parameters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache, lru_cache
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from anaphor.config import section_of
from anaphor.errors import ConfigError
from anaphor.models.initialize import without_weights
from anaphor.registry import TASKS
from anaphor.studies.spec import find_support
from anaphor.training.build import build_experiment
from anaphor.training.spec import EvaluationSection, RunSpec, TrainingSection

TOLERANCE = 0.02  # largest difference, relative to the number that is asked for
MAX_VALUE = 1 << 20  # of what is varied
MAX_STEP = 256  # between two values that a model accepts: its width is a multiple of the number of its heads


@lru_cache(maxsize=1024)
def match_size(run: RunSpec, by: str, parameters: int) -> tuple[RunSpec, int]:
    """The run with the value of `by` whose number of parameters is nearest, and that number.

    Raises:
        ConfigError: No value comes within 2 %.
    """
    if (init := getattr(run, "init", None)) is not None:
        raise ConfigError(f"match: the size of a model with pretrained weights is that of init={init}")
    if type(getattr(run, by, 0)) not in (int, type(None)):
        raise ConfigError(f"match: by={by} is no setting that is an integer, such as width or layers")
    refused: list[ConfigError] = []
    check_model(run, names_only=True)
    fingerprint = _read_fingerprint(_DataKey(run, by))

    @cache
    def count(value: int) -> int | None:
        """Parameters at a value; None where the model does not accept it."""
        try:
            changed = _with(run, by, value)
            check_model(changed)
            return count_parameters(changed, fingerprint)
        except ConfigError as error:
            refused.append(error)
            return None

    below, above = _bracket(count, parameters)
    found = [(value, size) for value in (below, above) if value and (size := count(value)) is not None]
    if not found:
        raise refused[0] if refused else ConfigError(f"match: no {by} makes a model")
    value, size = min(found, key=lambda one: abs(one[1] - parameters))
    if abs(size - parameters) > TOLERANCE * parameters:
        near = [f"{by} {value} has {size:,} ({format_difference(size, parameters)})" for value, size in found]
        raise ConfigError(f"match: no {by} has {parameters:,} parameters within 2 %: {' and '.join(near)}")
    return _with(run, by, value), size


def format_difference(size: int, parameters: int) -> str:
    """`+0.3 %`: by how much a size differs from the one that is asked for."""
    return f"{100 * (size / parameters - 1):+.2f} %"


def check_model(run: RunSpec, *, names_only: bool = False) -> None:
    """Raise for a model that cannot be built, without opening its data."""
    definition = TASKS[run.task]
    find_support(definition).validate(run, definition.metrics[0], names_only=names_only)


def _bracket(count: Callable[[int], int | None], parameters: int) -> tuple[int, int]:
    """The largest accepted value with fewer parameters, and the smallest with as many or more; 0 where none is."""
    low, high = 0, 1
    while high <= MAX_VALUE and ((place := _next(count, high)) == 0 or (count(place) or 0) < parameters):
        low, high = place or low, max(2 * high, place + 1)
    above = _next(count, high) if high <= MAX_VALUE else 0
    below = low
    while above and above - below > 1:
        middle = _next(count, (below + above) // 2, above)
        if middle in (0, above):  # none is accepted from the middle on
            middle = _previous(count, (below + above) // 2, below)
            if middle == below:
                break
        if (count(middle) or 0) < parameters:
            below = middle
        else:
            above = middle
    return below, above


def _next(count: Callable[[int], int | None], value: int, end: int | None = None) -> int:
    """The first accepted value from this one on; 0 where there is none near."""
    last = min(value + MAX_STEP, value + MAX_STEP if end is None else end)
    return next((one for one in range(value, last + 1) if count(one) is not None), 0)


def _previous(count: Callable[[int], int | None], value: int, end: int) -> int:
    """The last accepted value before this one and after `end`; `end` where there is none."""
    return next((one for one in range(value - 1, end, -1) if count(one) is not None), end)


def _with(run: RunSpec, by: str, value: int) -> RunSpec:
    changes: dict[str, Any] = {by: value}
    return replace(run, **changes)


def count_parameters(run: RunSpec, fingerprint: dict[str, Any]) -> int:
    """The number of parameters of a run's model, built without memory or values for its weights. `fingerprint` has what
    the model must know of its data, such as the vocabulary, as a checkpoint has it."""
    with without_weights(), _StaysWithoutMemory():
        model = build_experiment(run, saved=fingerprint).model
    return sum(weight.numel() for weight in model.parameters())


class _DataKey:
    """A run, equal to others that read the same data for a model of the same kind."""

    def __init__(self, run: RunSpec, by: str) -> None:
        kind: Any = type(run)
        left_out = {TrainingSection.section, EvaluationSection.section}
        names = [field.name for field in fields(run) if section_of(kind, field.name) not in left_out]
        self.run, self.by = run, by
        self._key = (kind, by, *(repr(getattr(run, name)) for name in names if name != by))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _DataKey) and self._key == other._key


@lru_cache(maxsize=256)
def _read_fingerprint(key: _DataKey) -> dict[str, Any]:
    """The fingerprint of a run, for all its sizes: the only time that weights are drawn."""
    try:
        check_model(key.run)
        return dict(build_experiment(key.run).fingerprint())
    except ConfigError:
        for value in range(1, MAX_STEP + 1):  # the usual size may not go with the number of heads
            with suppress(ConfigError):
                check_model(changed := _with(key.run, key.by, value))
                return dict(build_experiment(changed).fingerprint())
        raise


class _StaysWithoutMemory(TorchFunctionMode):
    """Inside, a model without memory is not moved to a device, where it would need some."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
