"""Exact values and gradients as fractions: every call is repeated in exact arithmetic, forward and backward.

Results of calls without a rule, and of numbers that are not simple fractions, are not exact, nor is what depends on
them. A result of a rule is kept only if floating point agrees with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphor.trace import program as operations
from anaphor.trace.program import Call, Program, Ref, rerun, resolve_refs, tensors_in

Array = NDArray[Any]
"""Of fractions, or of `Dual` numbers."""
MAX_NUMEL = 256
"""Largest tensor that is computed exactly."""
SIMPLE = {torch.float64: 1000, torch.float32: 64}
"""Largest denominator of a fraction that a float can stand for; with larger ones, random numbers would match."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
UNKNOWN = object()


@dataclass(eq=False)
class Exact:
    """Arrays of fractions by the index of their tensor."""

    program: Program
    values: dict[int, Array] = field(default_factory=dict)
    gradients: dict[int, Array] = field(default_factory=dict)
    duals: dict[int, Array] = field(default_factory=dict)
    """Results with their derivatives with respect to the tensors that their call reads."""

    def jacobian(self, number: int, by: int, calls: Sequence[int], inputs: Iterable[int]) -> Array | None:
        """Jacobian of the calls between a tensor and an input. [entries of the tensor, entries of the input]"""
        if number not in self.values or by not in self.values or not self.values[number].size:
            return None
        shape, size, stops = self.values[number].shape, self.values[number].size, set(inputs)
        units = [to_array(row).reshape(shape) for row in np.eye(size, dtype=int)]
        rows = [self._gradient(unit, number, by, calls, stops) for unit in units]
        return np.stack([row.ravel() for row in rows]) if all(row is not UNKNOWN for row in rows) else None

    def share(self, number: int, by: int, calls: Sequence[int], inputs: Iterable[int]) -> Array | None:
        """Part of an input's gradient that comes through these calls."""
        if number not in self.gradients or by not in self.values:
            return None
        share = self._gradient(self.gradients[number], number, by, calls, set(inputs))
        return None if share is UNKNOWN else share

    def _gradient(self, start: Array, number: int, by: int, calls: Sequence[int], stops: set[int]) -> Any:
        return self.backward({number: start}, calls, stops).get(by, zeros(self.values[by].shape))

    def backward(self, ends: Mapping[int, Array], calls: Sequence[int], stops: set[int]) -> dict[int, Any]:
        """Gradients by every tensor that the ends depend on; UNKNOWN if not exact."""
        gradients: dict[int, Any] = {number: gradient.copy() for number, gradient in ends.items()}
        for index in reversed(calls):
            call = self.program.calls[index]
            for number in call.results:
                if number not in gradients or number in stops:
                    continue
                is_exact = number in self.duals and gradients[number] is not UNKNOWN
                for source in set(call.sources):
                    if not is_exact or source not in self.values:
                        gradients[source] = UNKNOWN
                    else:
                        gradients.setdefault(source, zeros(self.values[source].shape))
                if is_exact:
                    self._add_gradients(gradients, number)
        return gradients

    def _add_gradients(self, gradients: dict[int, Any], number: int) -> None:
        for dual, gradient in zip(self.duals[number].flat, gradients[number].flat, strict=True):
            for (source, position), slope in dual.slopes.items():
                if gradient and gradients[source] is not UNKNOWN:
                    gradients[source].flat[position] += gradient * slope


def compute_exact(program: Program, of: Sequence[int], gradients: Mapping[int, Tensor]) -> Exact:
    """Exact values and gradients where possible; `gradients` are those of floating point."""
    exact = Exact(program)
    for number, traced in enumerate(program.tensors):
        if traced.call is None:
            value = traced.fractions if traced.fractions is not None else to_fractions(traced.tensor)
            if value is not None:
                exact.values[number] = value
    for call in program.calls:
        sources, results = ([program.tensors[n].tensor for n in numbers] for numbers in (call.sources, call.results))
        if max((tensor.numel() for tensor in (*sources, *results)), default=0) > MAX_NUMEL or call.function is None:
            continue
        duals = _repeat_exactly(call, exact.values, dict(zip(call.sources, sources, strict=True)))
        for number, tensor, result in zip(call.results, results, duals or (), strict=duals is not None):
            value = to_array([dual.value for dual in result.flat]).reshape(result.shape)
            if _agrees(value, tensor):
                exact.values[number], exact.duals[number] = value, result
    if all(number in exact.values for number in of):
        ones = {number: to_array(np.ones(exact.values[number].shape, dtype=int)) for number in of}
        found = exact.backward(ones, range(len(program.calls)), set())
        for number, gradient in gradients.items():
            default = zeros(tuple(gradient.shape)) if gradient.numel() <= MAX_NUMEL else UNKNOWN
            exact_gradient = found.get(number, default)
            if exact_gradient is not UNKNOWN and _agrees(exact_gradient, gradient):
                exact.gradients[number] = exact_gradient
    return exact


# ---- rules


class Dual:
    """A fraction with its derivatives with respect to entries (tensor, position) of a call's inputs (forward mode)."""

    __slots__ = ("slopes", "value")

    def __init__(self, value: Any, slopes: dict[tuple[int, int], Fraction] | None = None) -> None:
        self.value, self.slopes = Fraction(value), slopes or {}

    def chain(self, value: Any, slope: Any) -> Dual:
        """A function of this number with the given value and derivative."""
        return Dual(value, {key: one * slope for key, one in self.slopes.items()})

    def _combine(self, other: Dual, value: Fraction, slope: Any, other_slope: Any) -> Dual:
        result = self.chain(value, slope)
        for key, one in other.slopes.items():
            result.slopes[key] = result.slopes.get(key, 0) + one * other_slope
        return result

    def __add__(self, other: Any) -> Dual:
        other = _dual(other)
        return self._combine(other, self.value + other.value, 1, 1)

    def __mul__(self, other: Any) -> Dual:
        other = _dual(other)
        return self._combine(other, self.value * other.value, other.value, self.value)

    def __truediv__(self, other: Any) -> Dual:
        divisor = _dual(other)
        return self * divisor.chain(1 / divisor.value, -1 / divisor.value**2)

    def __pow__(self, power: int) -> Dual:
        return self.chain(self.value**power, power * self.value ** (power - 1) if power else 0)

    def __neg__(self) -> Dual:
        return self.chain(-self.value, -1)

    def __sub__(self, other: Any) -> Dual:
        return self + -_dual(other)

    def __rsub__(self, other: Any) -> Dual:
        return _dual(other) - self

    def __rtruediv__(self, other: Any) -> Dual:
        return _dual(other) / self

    __radd__, __rmul__ = __add__, __mul__


def _dual(value: Any) -> Dual:
    return value if isinstance(value, Dual) else Dual(value)


def to_array(values: Any) -> Array:
    """An object array of fractions; also for a scalar, where numpy returns a bare number."""
    given = np.asarray(values, dtype=object)
    array = np.empty(given.size, dtype=object)
    array[:] = [Fraction(int(one)) if isinstance(one, int | np.integer) else one for one in given.ravel()]
    return array.reshape(given.shape)


def zeros(shape: int | tuple[int, ...]) -> Array:
    return to_array(np.zeros(shape, dtype=int))


def _repeat_exactly(call: Call, values: Mapping[int, Array], sources: Mapping[int, Tensor]) -> list[Array] | None:
    """The results of a call as arrays of dual numbers; None if there is no rule or an input is not exact."""
    name = operations.canonical_name(call.op)
    moves = name in MOVES or operations.is_identity(call)
    # Masks and indices need not be exact.
    exact = [number for number, tensor in sources.items() if not moves or tensor.is_floating_point()]
    if not exact or any(number not in values for number in exact) or (not moves and name not in RULES):
        return None
    duals = {
        number: to_array(
            [Dual(value, {(number, place): Fraction(1)}) for place, value in enumerate(values[number].flat)]
        )
        for number in exact
    }
    try:
        if moves:
            return _move(call, duals, sources)
        shaped = {number: array.reshape(values[number].shape) for number, array in duals.items()}
        arguments, keywords = resolve_refs((call.arguments, call.keywords), shaped.__getitem__)
        result = RULES[name](*(arguments[::-1] if call.op in operations.REVERSED else arguments), **keywords)
    except (ArithmeticError, IndexError, KeyError, RuntimeError, TypeError, ValueError):  # not supported by the rule
        return None
    return None if result is None else [to_array(np.vectorize(_dual, otypes=[object])(result))]


def _move(call: Call, duals: Mapping[int, Array], sources: Mapping[int, Tensor]) -> list[Array] | None:
    """Run the call on positions instead of numbers, to see where the numbers go."""
    if call.op == "where" and not all(isinstance(one, Ref) for one in call.arguments[1:]):
        return None
    everything = np.concatenate(list(duals.values()))
    starts = dict(zip(duals, np.cumsum([0, *(len(array) for array in duals.values())]), strict=False))

    def positions(number: int) -> Tensor:
        if number not in duals:
            return sources[number]
        numel = sources[number].numel()
        return torch.arange(starts[number], starts[number] + numel, dtype=torch.float64).view(sources[number].shape)

    results = tensors_in(rerun(call, *resolve_refs((call.arguments, call.keywords), positions)))
    if any(one.numel() and not 0 <= float(one.min()) <= float(one.max()) < len(everything) for one in results):
        return None  # more than moved
    return [to_array(everything[one.long().numpy(force=True)]) for one in results]


def _operands(*values: Any) -> list[Any]:
    """Two arrays or numbers; a float stands for a simple fraction."""
    operands = []
    for value in values:
        if isinstance(value, float) and float(Fraction(value).limit_denominator(1000)) == value:
            value = Fraction(value).limit_denominator(1000)
        if isinstance(value, bool) or not isinstance(value, int | Fraction | np.ndarray):
            raise TypeError(value)
        operands.append(value)
    return operands


def _binary(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: compute(*_operands(a, b))


def _elementwise(function: Callable[[Dual], Dual]) -> Callable[..., Any]:
    return np.vectorize(function, otypes=[object])


def _select(larger: bool) -> Callable[[Array, Array], Any]:
    """The larger (or smaller) of two; equal ones share the gradient, as in torch."""

    def select(a: Dual, b: Dual) -> Dual:
        if a.value == b.value:
            return (a + b) * Fraction(1, 2)
        return a if (a.value > b.value) == larger else b

    return lambda a, b: np.vectorize(select, otypes=[object])(a, b) if isinstance(b, np.ndarray) else None


def _power(base: Array, exponent: Any) -> Any:
    return base ** int(exponent) if isinstance(exponent, int | float) and exponent == int(exponent) else None


def _sum(a: Array, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Any:
    dims = axis if dim is None else dim
    return a.sum(axis=tuple(dims) if isinstance(dims, list | tuple) else dims, keepdims=keepdim)


def _mean(a: Array, *arguments: Any, **keywords: Any) -> Any:
    total = np.asarray(_sum(a, *arguments, **keywords), dtype=object)
    return total * Fraction(max(total.size, 1), max(a.size, 1))


def _linear(x: Array, weight: Array, bias: Array | None = None) -> Any:
    product = np.matmul(x, weight.swapaxes(-1, -2))
    return product if bias is None else product + bias


def _einsum(equation: Any, *operands: Any) -> Any:
    if not isinstance(equation, str) or "." in equation:
        return None
    return np.einsum(equation, *(operands[0] if isinstance(operands[0], list) else operands))


JOINS = ("cat", "stack", "hstack", "vstack", "flip", "roll", "repeat", "tile", "diagonal", "gather", "embedding")
MOVES = operations.RESHAPING | operations.INDEXING | frozenset((*JOINS, "where"))
"""Operations whose results contain only numbers of the inputs."""
RULES: dict[str, Callable[..., Any]] = {
    "add": _binary(lambda a, b: a + b),
    "sub": _binary(lambda a, b: a - b),
    "mul": _binary(lambda a, b: a * b),
    "div": _binary(lambda a, b: a / b),
    "outer": _binary(np.multiply.outer),
    "reciprocal": lambda a: 1 / a,
    "neg": lambda a: -a,
    "abs": _elementwise(lambda a: a.chain(abs(a.value), (a.value > 0) - (a.value < 0))),
    "relu": _elementwise(lambda a: a.chain(max(a.value, Fraction(0)), int(a.value > 0))),
    "square": lambda a: a**2,
    "detach": _elementwise(lambda a: Dual(a.value)),
    "pow": _power,
    "sum": _sum,
    "mean": _mean,
    "matmul": np.matmul,
    "dot": np.matmul,
    "linear": _linear,
    "einsum": _einsum,
    "maximum": _select(larger=True),
    "max": _select(larger=True),
    "minimum": _select(larger=False),
    "min": _select(larger=False),
}


def to_fractions(tensor: Tensor) -> Array | None:
    """The simplest fractions that round to these numbers; None if one has no simple fraction."""
    if tensor.numel() > MAX_NUMEL or tensor.is_complex() or tensor.dtype == torch.bool:
        return None
    if not tensor.is_floating_point():
        return to_array(tensor.numpy(force=True))
    largest = SIMPLE.get(tensor.dtype)
    if largest is None or not bool(tensor.isfinite().all()):
        return None
    flat = tensor.detach().cpu().flatten()
    found = [Fraction(value).limit_denominator(largest) for value in flat.tolist()]
    if not torch.equal(torch.tensor([float(one) for one in found], dtype=torch.float64).to(flat.dtype), flat):
        return None
    return to_array(found).reshape(tuple(tensor.shape))


def _agrees(array: Array, tensor: Tensor) -> bool:
    if array.shape != tuple(tensor.shape):
        return False
    try:
        floats = array.astype(float)
    except OverflowError:  # too large for a float
        return False
    close = TOLERANCE.get(tensor.dtype)
    if close is None:
        return bool(np.array_equal(floats, tensor.double().numpy(force=True)))
    return bool(np.allclose(floats, tensor.detach().double().numpy(force=True), rtol=close, atol=close))
