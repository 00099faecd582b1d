"""Fair sizes: the width, or another integer, with which every setting of a study has the same number of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from anaphor.config import section_of
from anaphor.errors import ConfigError
from anaphor.models.initialize import without_weights
from anaphor.registry import TASKS
from anaphor.studies.spec import SizeMismatch, find_support
from anaphor.training.build import build_experiment
from anaphor.training.spec import EvaluationSection, RunSpec, TrainingSection

TOLERANCE = 0.02  # largest difference, relative to the number that is asked for
MAX_VALUE = 1 << 20  # of what is varied
MAX_STEP = 256  # between two values that a model accepts: its width is a multiple of the number of its heads
SUGGESTED = 4  # values on each side that are tried, to suggest a size that all settings can have


@lru_cache(maxsize=1024)
def match_size(run: RunSpec, by: str, parameters: int, same: tuple[str, ...] = ()) -> tuple[RunSpec, int]:
    """The run with the value of `by` whose number of parameters is nearest, and that number. Settings in `same` have
    the same value.

    Raises:
        SizeMismatch: No value comes within 2 %.
    """
    if (init := getattr(run, "init", None)) is not None:
        raise ConfigError(f"match: the size of a model with pretrained weights is that of init={init}")
    if type(getattr(run, by, 0)) not in (int, type(None)):
        raise ConfigError(f"match: by={by} is no setting that is an integer, such as width or layers")
    sizes = _sizes_of(run, by, same)
    found = sizes.around(parameters)
    if not found:
        raise sizes.refused[0] if sizes.refused else ConfigError(f"match: no {by} makes a model")
    value, size = min(found, key=lambda one: abs(one[1] - parameters))
    if not _is_near(size, parameters):
        near = [f"{by} {value} has {size:,} ({format_difference(size, parameters)})" for value, size in found]
        raise SizeMismatch(f"match: no {by} has {parameters:,} parameters within 2 %: {' and '.join(near)}")
    return sizes.run_at(value), size


def suggest_size(runs: Iterable[tuple[RunSpec, tuple[str, ...]]], by: str, parameters: int) -> str:
    """What to do where one of these runs cannot have so many parameters: the nearest number that all can have. Each
    comes with the settings that have the value of `by`."""
    all_sizes = [_sizes_of(run, by, same) for run, same in runs]
    near = {size for sizes in all_sizes for size in sizes.near(parameters)}
    for size in sorted(near, key=lambda size: abs(size - parameters)):
        if all(any(_is_near(other, size) for _, other in sizes.around(size)) for sizes in all_sizes):
            return f"all settings can have about {size:,}: write `parameters: {size}`"
    return f"no size near it fits all settings: with fewer heads {by} comes in smaller steps"


def _is_near(size: int, parameters: int) -> bool:
    return abs(size - parameters) <= TOLERANCE * parameters


class _Sizes:
    """The number of parameters of a run at each value of a setting, counted once."""

    def __init__(self, run: RunSpec, by: str, same: tuple[str, ...]) -> None:
        check_model(run, names_only=True)
        self._run, self._names = run, (by, *same)
        self._fingerprint = _read_fingerprint(_DataKey(run, by))
        self._counted: dict[int, int | None] = {}
        self.refused: list[ConfigError] = []
        """Why values were refused that make no model."""

    def run_at(self, value: int) -> RunSpec:
        changes: dict[str, Any] = dict.fromkeys(self._names, value)
        return replace(self._run, **changes)

    def count(self, value: int) -> int | None:
        """Parameters at a value; None where the model does not accept it."""
        if value not in self._counted:
            try:
                check_model(changed := self.run_at(value))
                self._counted[value] = count_parameters(changed, self._fingerprint)
            except ConfigError as error:
                self.refused.append(error)
                self._counted[value] = None
        return self._counted[value]

    def around(self, parameters: int) -> list[tuple[int, int]]:
        """The two values on both sides of a number of parameters, each with its own number; fewer at an end."""
        values = _bracket(self.count, parameters)
        return [(value, size) for value in values if value and (size := self.count(value)) is not None]

    def near(self, parameters: int) -> list[int]:
        """Sizes of the values around a number of parameters, some on each side."""
        found = dict(self.around(parameters))
        for _ in range(SUGGESTED if found else 0):
            for value in (_previous(self.count, min(found) - 1, 0), _next(self.count, max(found) + 1)):
                if value and (size := self.count(value)) is not None:
                    found[value] = size
        return list(found.values())


@lru_cache(maxsize=256)
def _sizes_of(run: RunSpec, by: str, same: tuple[str, ...]) -> _Sizes:
    return _Sizes(run, by, same)


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
                changes: dict[str, Any] = {key.by: value}
                check_model(changed := replace(key.run, **changes))
                return dict(build_experiment(changed).fingerprint())
        raise


class _StaysWithoutMemory(TorchFunctionMode):
    """Inside, a model without memory is not moved to a device, where it would need some."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
