"""What a function is called with, made into tensors that gradients can reach."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError


@dataclass
class Leaf:
    """A tensor that a parameter of the function holds, under the parameter's name."""

    name: str
    tensor: Tensor
    fractions: Any = None


def bound_arguments(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Every parameter's value, defaults included, by name."""
    signature = signature_of(function)
    if signature is None:
        return {**{f"x{place}": value for place, value in enumerate(arguments, 1)}, **keywords}
    try:
        bound = signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise ConfigError(f"{name_of(function)}{signature} cannot be called with this: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except ValueError:  # some of torch's own have none
        return None


def name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


class Preparation:
    """Turns numbers into tensors, and tensors into leaves of their own, and remembers them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.leaves: list[Leaf] = []

    def prepared(self, name: str, value: Any, annotation: Any = None) -> Any:
        """Plain text, truth values and what is annotated as `int`, `bool` or `str` stay what they are."""
        if annotation in (int, bool, str, "int", "bool", "str") or isinstance(value, bool):
            return value
        if isinstance(value, Tensor):
            # Not the caller's own tensor: it shall neither gather gradients nor be changed.
            own = value.detach().clone()
            return self._leaf(name, own.requires_grad_() if own.is_floating_point() else own)
        if isinstance(value, int | float | Fraction):
            return self._leaf(name, self._tensor(value), np.array(_exact(value), dtype=object))
        if isinstance(value, np.ndarray):
            return self.prepared(name, torch.from_numpy(value.copy()))
        if isinstance(value, list | tuple) and not hasattr(value, "_fields") and value:
            return self._sequence(name, value)
        if isinstance(value, dict):
            return {key: self.prepared(f"{name}[{key}]", part) for key, part in value.items()}
        return value

    def _sequence(self, name: str, value: Any) -> Any:
        flat = list(_flat(value))
        if not all(isinstance(part, int | float | Fraction) and not isinstance(part, bool) for part in flat):
            return type(value)(self.prepared(f"{name}[{place}]", part) for place, part in enumerate(value))
        shape = _shape(value)
        if shape is None:
            raise ConfigError(f"{name}={value!r} is no table of numbers: its rows have different lengths")
        exact = np.empty(len(flat), dtype=object)
        exact[:] = [_exact(part) for part in flat]
        numbers = torch.tensor([float(part) for part in flat], dtype=self.dtype).reshape(shape)
        return self._leaf(name, numbers.requires_grad_(), exact.reshape(shape))

    def _tensor(self, value: Any) -> Tensor:
        return torch.tensor(float(value), dtype=self.dtype, requires_grad=True)

    def _leaf(self, name: str, tensor: Tensor, fractions: Any = None) -> Tensor:
        if fractions is not None and any(part is None for part in fractions.ravel()):
            fractions = None
        self.leaves.append(Leaf(name, tensor, fractions))
        return tensor


def common_dtype(values: Iterable[Any]) -> torch.dtype:
    """The floating type of the first tensor or module there is, so that numbers fit to it; else float64."""
    for value in values:
        parts: Iterable[Any] = ()
        if isinstance(value, Tensor):
            parts = (value,)
        elif isinstance(value, nn.Module):
            parts = value.parameters()
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Tensor | nn.Module):
            return common_dtype(value)
        found: list[torch.dtype] = [tensor.dtype for tensor in parts if tensor.is_floating_point()]
        if found:
            return found[0]
    return torch.float64


def _exact(value: Any) -> Fraction | None:
    """The fraction that was meant. A float means the simplest fraction that rounds to it, if there is a simple one."""
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if not np.isfinite(value):
        return None
    simple = Fraction(value).limit_denominator(1000)
    return simple if float(simple) == value else None


def _flat(value: Any) -> Iterable[Any]:
    for part in value:
        if isinstance(part, list | tuple):
            yield from _flat(part)
        else:
            yield part


def _shape(value: Any) -> tuple[int, ...] | None:
    """Lengths from the outside in; None where rows differ."""
    if not isinstance(value, list | tuple):
        return ()
    shapes = {_shape(part) for part in value}
    if len(shapes) != 1 or None in shapes:
        return None if value else (0,)
    return (len(value), *(shapes.pop() or ()))
