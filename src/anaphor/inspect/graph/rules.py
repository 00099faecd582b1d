"""Exact rules of single operations on arrays of fractions: forward result and backward function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphor.inspect.graph import program as operations
from anaphor.inspect.graph.program import Call, Ref, rerun, resolve_refs, tensors_in

Array = NDArray[Any]
"""Array of fractions."""
Backward = Callable[[Array], list[Array]]
"""From the gradient of a result to those of the tensors that the call reads, in order."""
ExactResult = tuple[Array, Backward]
Values = Mapping[int, Array]
Rule = Callable[[Call, Values], ExactResult | None]

JOINS = ("cat", "stack", "hstack", "vstack", "flip", "roll", "repeat", "tile", "diagonal", "gather", "embedding")
MOVES = operations.RESHAPING | operations.INDEXING | frozenset((*JOINS, "where"))
"""Operations whose results contain only numbers of the inputs."""


def fraction_array(values: Any) -> Array:
    """An array of fractions from integers or fractions, also for a scalar."""
    given = np.asarray(values, dtype=object)
    made = np.empty(given.size, dtype=object)
    made[:] = [Fraction(int(one)) if isinstance(one, int | np.integer) else one for one in given.ravel()]
    return made.reshape(given.shape)


def zeros(shape: int | tuple[int, ...]) -> Array:
    return fraction_array(np.zeros(shape, dtype=int))


def compute_exactly(call: Call, values: Values, sources: Sequence[Tensor]) -> list[ExactResult | None] | None:
    """Result and backward function for each result; None if there is no rule or an input is not exact."""
    name = operations.canonical_name(call.op)
    moving = name in MOVES or operations.is_identity(call)
    # Masks and indices need not be exact.
    needed = [n for n, tensor in zip(call.sources, sources, strict=True) if not moving or tensor.is_floating_point()]
    if any(number not in values for number in needed):
        return None
    if moving:
        plain = name == "where" and not all(isinstance(one, Ref) for one in call.arguments[1:])
        return None if plain else _move_exactly(call, values, sources)
    rule = _RULES.get(name)
    if rule is None:
        return None
    try:
        done = rule(call, values)
    except (TypeError, ValueError, ZeroDivisionError, IndexError):  # arguments that the rule does not support
        return None
    return None if done is None else [done]


def _move_exactly(call: Call, values: Values, sources: Sequence[Tensor]) -> list[ExactResult | None] | None:
    """Run the call on the positions of the numbers instead of the numbers, to see where they go."""
    offsets, flat, shapes, start = [], [], [], 0
    places: dict[int, Tensor] = {}
    for number, tensor in zip(call.sources, sources, strict=True):
        if number in places:
            return None  # the same tensor twice: positions would be ambiguous
        shapes.append(tuple(tensor.shape))
        offsets.append(start)
        if not tensor.is_floating_point():
            places[number] = tensor
            flat.append(zeros(tensor.numel()))
        else:
            places[number] = torch.arange(start, start + tensor.numel(), dtype=torch.float64).view(tensor.shape)
            flat.append(values[number].ravel())
        start += tensor.numel()
    if not any(tensor.is_floating_point() for tensor in sources):
        return None
    arguments, keywords = resolve_refs((call.arguments, call.keywords), places.__getitem__)
    try:
        made = tensors_in(rerun(call, arguments, keywords))
    except (RuntimeError, TypeError, KeyError, IndexError):
        return None
    if any(one.numel() and not 0 <= float(one.min()) <= float(one.max()) < start for one in made):
        return None  # more than moved
    everything = np.concatenate(flat) if flat else np.empty(0, dtype=object)
    done: list[ExactResult | None] = []
    for one in made:
        index = one.long().numpy(force=True)
        done.append((fraction_array(everything[index]), _scatter(index, offsets, shapes)))
    return done


def _scatter(index: Any, offsets: list[int], shapes: list[tuple[int, ...]]) -> Backward:
    total = offsets[-1] + int(np.prod(shapes[-1])) if offsets else 0

    def backward(gradient: Array) -> list[Array]:
        sums = zeros(total)
        np.add.at(sums, index.ravel(), gradient.ravel())
        ends = [*offsets[1:], total]
        return [sums[start:end].reshape(shape) for start, end, shape in zip(offsets, ends, shapes, strict=True)]

    return backward


def _sum_to_shape(gradient: Any, shape: tuple[int, ...]) -> Array:
    """Undo broadcasting by summing."""
    array = fraction_array(gradient)
    array = fraction_array(array.sum(axis=tuple(range(array.ndim - len(shape))))) if array.ndim > len(shape) else array
    stretched = tuple(place for place, length in enumerate(shape) if length == 1 and array.shape[place] != 1)
    return fraction_array(array.sum(axis=stretched, keepdims=True)) if stretched else array


def _operand(value: Any, values: Values) -> Array:
    if isinstance(value, Ref):
        return values[value.number]
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise TypeError(value)
    exact = value if isinstance(value, int | Fraction) else Fraction(value).limit_denominator(1000)
    if float(exact) != float(value):
        raise TypeError(value)
    return fraction_array(Fraction(exact))


def _binary(compute: Callable[[Any, Any], Any], gradients: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Rule:
    """Rule for two operands, each a tensor or a number; `gradients` are those before broadcasting is undone."""

    def rule(call: Call, values: Values) -> ExactResult | None:
        if len(call.arguments) != 2 or call.keywords:
            return None
        order = (1, 0) if call.op in operations.REVERSED else (0, 1)
        a, b = (_operand(call.arguments[place], values) for place in order)

        def backward(gradient: Array) -> list[Array]:
            parts = [
                _sum_to_shape(part, one.shape) for part, one in zip(gradients(gradient, a, b), (a, b), strict=True)
            ]
            both = parts if order == (0, 1) else parts[::-1]
            return [part for part, given in zip(both, call.arguments, strict=True) if isinstance(given, Ref)]

        return fraction_array(compute(a, b)), backward

    return rule


def _elementwise(compute: Callable[[Any], Any], derivative: Callable[[Any], Any]) -> Rule:
    """Rule for an elementwise function."""

    def rule(call: Call, values: Values) -> ExactResult | None:
        a = values[call.sources[0]]
        value, derivatives = zeros(a.shape), zeros(a.shape)
        for place in np.ndindex(a.shape):
            value[place], derivatives[place] = Fraction(compute(a[place])), Fraction(derivative(a[place]))
        return value, lambda gradient: [fraction_array(gradient * derivatives)]

    return rule


def _power(call: Call, values: Values) -> ExactResult | None:
    base, exponent = call.arguments[:2]
    if call.op in operations.REVERSED or not isinstance(base, Ref) or not isinstance(exponent, int | float):
        return None
    if exponent != int(exponent):
        return None
    whole = int(exponent)
    return _elementwise(lambda a: a**whole, lambda a: whole * a ** (whole - 1) if whole else 0)(call, values)


def _sum(call: Call, values: Values) -> ExactResult | None:
    a = values[call.sources[0]]
    named = dict(zip(("dim", "keepdim"), call.arguments[1:], strict=False)) | call.keywords
    dims = named.get("dim", named.get("axis"))
    axes = tuple(range(a.ndim)) if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    axes = tuple(axis % a.ndim for axis in axes) if a.ndim else ()
    count = int(np.prod([a.shape[axis] for axis in axes])) if call.op == "mean" else 1
    kept = fraction_array(fraction_array(a.sum(axis=axes, keepdims=True)) / Fraction(count))
    value = kept if named.get("keepdim") else kept.reshape([n for place, n in enumerate(a.shape) if place not in axes])

    def backward(gradient: Array) -> list[Array]:
        return [fraction_array(np.broadcast_to(gradient.reshape(kept.shape) / Fraction(count), a.shape))]

    return fraction_array(value), backward


def _product(a: Array, b: Array) -> ExactResult:
    wide_a = a[None, :] if a.ndim == 1 else a
    wide_b = b[:, None] if b.ndim == 1 else b

    def backward(gradient: Array) -> list[Array]:
        wide = gradient
        if b.ndim == 1:
            wide = wide[..., None]
        if a.ndim == 1:
            wide = np.expand_dims(wide, -2)
        by_a = np.matmul(wide, np.swapaxes(wide_b, -1, -2))
        by_b = np.matmul(np.swapaxes(wide_a, -1, -2), wide)
        return [_sum_to_shape(by_a, wide_a.shape).reshape(a.shape), _sum_to_shape(by_b, wide_b.shape).reshape(b.shape)]

    return fraction_array(np.matmul(a, b)), backward


def _matmul(call: Call, values: Values) -> ExactResult | None:
    a, b = (values[ref.number] for ref in call.arguments[:2])
    if call.op != "rmatmul":
        return _product(a, b)
    value, backward = _product(b, a)
    return value, lambda gradient: backward(gradient)[::-1]


def _linear(call: Call, values: Values) -> ExactResult | None:
    if call.keywords:
        return None
    x, weight = (values[ref.number] for ref in call.arguments[:2])
    bias = values[call.arguments[2].number] if len(call.arguments) > 2 and call.arguments[2] is not None else None
    value, backward = _product(x, np.swapaxes(weight, -1, -2))

    def linear_backward(gradient: Array) -> list[Array]:
        by_x, by_weight = backward(gradient)
        found = [by_x, fraction_array(np.swapaxes(by_weight, -1, -2))]
        return found if bias is None else [*found, _sum_to_shape(gradient, bias.shape)]

    return (value if bias is None else fraction_array(value + bias)), linear_backward


def _einsum(call: Call, values: Values) -> ExactResult | None:
    """The gradient is an einsum with the same letters; letters of a single operand were summed, so their gradient is
    broadcast."""
    equation, *refs = call.arguments
    if not isinstance(equation, str) or "." in equation or call.keywords:
        return None
    operands = [values[ref.number] for ref in (refs[0] if len(refs) == 1 and isinstance(refs[0], list) else refs)]
    left, _, right = equation.replace(" ", "").partition("->")
    if "->" not in equation:
        right = "".join(sorted(letter for letter in set(left) if letter.isalpha() and left.count(letter) == 1))
    letters = left.split(",")
    if any(len(set(one)) < len(one) for one in (*letters, right)):
        return None  # a diagonal: not supported
    lengths = {
        letter: n for one, a in zip(letters, operands, strict=True) for letter, n in zip(one, a.shape, strict=True)
    }

    def backward(gradient: Array) -> list[Array]:
        found = []
        for place, one in enumerate(letters):
            others = [(a, other) for at, (a, other) in enumerate(zip(operands, letters, strict=True)) if at != place]
            known = "".join(
                letter for letter in one if any(letter in part for part in (right, *(o for _, o in others)))
            )
            inner = ",".join((right, *(other for _, other in others)))
            back = fraction_array(np.einsum(f"{inner}->{known}", gradient, *(a for a, _ in others)))
            wide = [lengths[letter] if letter in known else 1 for letter in one]
            found.append(fraction_array(np.broadcast_to(back.reshape(wide), [lengths[letter] for letter in one])))
        return found

    return fraction_array(np.einsum(f"{left}->{right}", *operands)), backward


def _extreme_gradients(larger: bool) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Gradients of the larger (or smaller) of two; equal ones share it, as in torch."""

    def gradients(gradient: Any, a: Any, b: Any) -> tuple[Any, Any]:
        first = np.vectorize(
            lambda x, y: Fraction(1, 2) if x == y else Fraction(int((x > y) == larger)), otypes=[object]
        )
        share = first(a, b)
        return gradient * share, gradient * (Fraction(1) - share)

    return gradients


def _extreme(larger: bool) -> Rule:
    def rule(call: Call, values: Values) -> ExactResult | None:
        if len(call.sources) != 2:
            return None
        return _binary(np.maximum if larger else np.minimum, _extreme_gradients(larger))(call, values)

    return rule


_RULES: dict[str, Rule] = {
    "add": _binary(lambda a, b: a + b, lambda g, a, b: (g, g)),
    "sub": _binary(lambda a, b: a - b, lambda g, a, b: (g, -g)),
    "mul": _binary(lambda a, b: a * b, lambda g, a, b: (g * b, g * a)),
    "div": _binary(lambda a, b: a / b, lambda g, a, b: (g / b, -g * a / b / b)),
    "outer": _binary(np.multiply.outer, lambda g, a, b: (g @ b, g.T @ a)),
    "reciprocal": _elementwise(lambda a: 1 / a, lambda a: -1 / a**2),
    "neg": _elementwise(lambda a: -a, lambda a: -1),
    "abs": _elementwise(abs, lambda a: (a > 0) - (a < 0)),
    "relu": _elementwise(lambda a: max(a, Fraction(0)), lambda a: a > 0),
    "square": _elementwise(lambda a: a * a, lambda a: 2 * a),
    "detach": _elementwise(lambda a: a, lambda a: 0),
    "pow": _power,
    "sum": _sum,
    "mean": _sum,
    "matmul": _matmul,
    "dot": _matmul,
    "linear": _linear,
    "einsum": _einsum,
    "maximum": _extreme(True),
    "max": _extreme(True),
    "minimum": _extreme(False),
    "min": _extreme(False),
}
