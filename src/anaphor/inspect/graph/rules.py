"""How single operations are done on fractions: their results, and how a gradient is pulled back through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphor.inspect.graph import operations
from anaphor.inspect.graph.program import Call, Ref, run_again, substituted, tensors_in

Array = NDArray[Any]
"""Of fractions."""
Pull = Callable[[Array], list[Array]]
"""From the gradient of a result to those of the tensors that a call reads, in the order in which it reads them."""
Done = tuple[Array, Pull]

JOINING = ("cat", "stack", "hstack", "vstack", "flip", "roll", "repeat", "tile", "diagonal", "gather", "embedding")
MOVING = operations.ARRANGING | operations.PICKING | frozenset((*JOINING, "where"))
"""Every number of the result is a number of an input."""


def of_fractions(values: Any) -> Array:
    """An array of fractions from whole numbers or fractions; numpy gives bare numbers for arrays without dimensions."""
    given = np.asarray(values, dtype=object)
    made = np.empty(given.size, dtype=object)
    made[:] = [Fraction(int(one)) if isinstance(one, int | np.integer) else one for one in given.ravel()]
    return made.reshape(given.shape)


def done_exactly(call: Call, values: Mapping[int, Array], sources: Sequence[Tensor]) -> list[Done | None] | None:
    """A result and a pull for each of its results; None where there is no rule or an input is not exact."""
    name = operations.canonical(call.op)
    moving = name in MOVING or operations.passes_on(call)
    # What says where numbers go, a mask or an index, need not be exact itself.
    needed = [n for n, tensor in zip(call.sources, sources, strict=True) if not moving or tensor.is_floating_point()]
    if any(number not in values for number in needed):
        return None
    if moving:
        plain = name == "where" and not all(isinstance(one, Ref) for one in call.arguments[1:])
        return None if plain else _moved(call, values, sources)
    rule = _RULES.get(name)
    if rule is None:
        return None
    try:
        done = rule(call, values)
    except (TypeError, ValueError, ZeroDivisionError, IndexError):  # called in a way that the rule does not know
        return None
    return None if done is None else [done]


def _moved(call: Call, values: Mapping[int, Array], sources: Sequence[Tensor]) -> list[Done | None] | None:
    """Run the call on the places of numbers in place of the numbers, and see where they go."""
    offsets, flat, shapes, start = [], [], [], 0
    places: dict[int, Tensor] = {}
    for number, tensor in zip(call.sources, sources, strict=True):
        if number in places:
            return None  # the same tensor twice, where places would not tell which
        shapes.append(tuple(tensor.shape))
        offsets.append(start)
        if not tensor.is_floating_point():
            places[number] = tensor
            flat.append(of_fractions(np.zeros(tensor.numel(), dtype=int)))
        else:
            places[number] = torch.arange(start, start + tensor.numel(), dtype=torch.float64).view(tensor.shape)
            flat.append(values[number].ravel())
        start += tensor.numel()
    if not any(tensor.is_floating_point() for tensor in sources):
        return None
    arguments, keywords = substituted((call.arguments, call.keywords), places.__getitem__)
    try:
        made = tensors_in(run_again(call, arguments, keywords))
    except (RuntimeError, TypeError, KeyError, IndexError):
        return None
    if any(one.numel() and not 0 <= float(one.min()) <= float(one.max()) < start for one in made):
        return None  # more than moved
    everything = np.concatenate(flat) if flat else np.empty(0, dtype=object)
    done: list[Done | None] = []
    for one in made:
        index = one.long().numpy(force=True)
        done.append((of_fractions(everything[index]), _scattering(index, offsets, shapes)))
    return done


def _scattering(index: Any, offsets: list[int], shapes: list[tuple[int, ...]]) -> Pull:
    total = offsets[-1] + int(np.prod(shapes[-1])) if offsets else 0

    def pull(gradient: Array) -> list[Array]:
        sums = of_fractions(np.zeros(total, dtype=int))
        np.add.at(sums, index.ravel(), gradient.ravel())
        ends = [*offsets[1:], total]
        return [sums[start:end].reshape(shape) for start, end, shape in zip(offsets, ends, shapes, strict=True)]

    return pull


def _summed_to(gradient: Any, shape: tuple[int, ...]) -> Array:
    """Undo broadcasting: what was used several times gets the sum."""
    array = of_fractions(gradient)
    array = of_fractions(array.sum(axis=tuple(range(array.ndim - len(shape))))) if array.ndim > len(shape) else array
    stretched = tuple(place for place, length in enumerate(shape) if length == 1 and array.shape[place] != 1)
    return of_fractions(array.sum(axis=stretched, keepdims=True)) if stretched else array


def _operand(value: Any, values: Mapping[int, Array]) -> Array:
    if isinstance(value, Ref):
        return values[value.number]
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise TypeError(value)
    exact = value if isinstance(value, int | Fraction) else Fraction(value).limit_denominator(1000)
    if float(exact) != float(value):
        raise TypeError(value)
    return of_fractions(Fraction(exact))


def _two(
    compute: Callable[[Any, Any], Any], pulls: Callable[[Any, Any, Any], tuple[Any, Any]]
) -> Callable[[Call, Mapping[int, Array]], Done | None]:
    """A rule for two operands, each a tensor or a plain number; `pulls` gives both gradients before broadcasting."""

    def rule(call: Call, values: Mapping[int, Array]) -> Done | None:
        if len(call.arguments) != 2 or call.keywords:
            return None
        order = (1, 0) if call.op in operations.TURNED else (0, 1)
        a, b = (_operand(call.arguments[place], values) for place in order)

        def pull(gradient: Array) -> list[Array]:
            parts = [_summed_to(part, one.shape) for part, one in zip(pulls(gradient, a, b), (a, b), strict=True)]
            both = parts if order == (0, 1) else parts[::-1]
            return [part for part, given in zip(both, call.arguments, strict=True) if isinstance(given, Ref)]

        return of_fractions(compute(a, b)), pull

    return rule


def _one(
    compute: Callable[[Any], Any], slope: Callable[[Any], Any]
) -> Callable[[Call, Mapping[int, Array]], Done | None]:
    """A rule for a function of each number by itself."""

    def rule(call: Call, values: Mapping[int, Array]) -> Done | None:
        a = values[call.sources[0]]
        value, slopes = of_fractions(np.zeros(a.shape, dtype=int)), of_fractions(np.zeros(a.shape, dtype=int))
        for place in np.ndindex(a.shape):
            value[place], slopes[place] = Fraction(compute(a[place])), Fraction(slope(a[place]))
        return value, lambda gradient: [of_fractions(gradient * slopes)]

    return rule


def _power(call: Call, values: Mapping[int, Array]) -> Done | None:
    base, exponent = call.arguments[:2]
    if (
        call.op in operations.TURNED
        or not isinstance(base, Ref)
        or not isinstance(exponent, int | float)
        or exponent != int(exponent)
    ):
        return None
    whole = int(exponent)
    return _one(lambda a: a**whole, lambda a: whole * a ** (whole - 1) if whole else 0)(call, values)


def _sum(call: Call, values: Mapping[int, Array]) -> Done | None:
    a = values[call.sources[0]]
    named = dict(zip(("dim", "keepdim"), call.arguments[1:], strict=False)) | call.keywords
    dims = named.get("dim", named.get("axis"))
    axes = tuple(range(a.ndim)) if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    axes = tuple(axis % a.ndim for axis in axes) if a.ndim else ()
    count = int(np.prod([a.shape[axis] for axis in axes])) if call.op == "mean" else 1
    kept = of_fractions(of_fractions(a.sum(axis=axes, keepdims=True)) / Fraction(count))
    value = kept if named.get("keepdim") else kept.reshape([n for place, n in enumerate(a.shape) if place not in axes])

    def pull(gradient: Array) -> list[Array]:
        return [of_fractions(np.broadcast_to(gradient.reshape(kept.shape) / Fraction(count), a.shape))]

    return of_fractions(value), pull


def _product(a: Array, b: Array) -> Done:
    wide_a = a[None, :] if a.ndim == 1 else a
    wide_b = b[:, None] if b.ndim == 1 else b

    def pull(gradient: Array) -> list[Array]:
        wide = gradient
        if b.ndim == 1:
            wide = wide[..., None]
        if a.ndim == 1:
            wide = np.expand_dims(wide, -2)
        by_a = np.matmul(wide, np.swapaxes(wide_b, -1, -2))
        by_b = np.matmul(np.swapaxes(wide_a, -1, -2), wide)
        return [_summed_to(by_a, wide_a.shape).reshape(a.shape), _summed_to(by_b, wide_b.shape).reshape(b.shape)]

    return of_fractions(np.matmul(a, b)), pull


def _matmul(call: Call, values: Mapping[int, Array]) -> Done | None:
    a, b = (values[ref.number] for ref in call.arguments[:2])
    if call.op != "rmatmul":
        return _product(a, b)
    value, pull = _product(b, a)
    return value, lambda gradient: pull(gradient)[::-1]


def _linear(call: Call, values: Mapping[int, Array]) -> Done | None:
    if call.keywords:
        return None
    x, weight = (values[ref.number] for ref in call.arguments[:2])
    bias = values[call.arguments[2].number] if len(call.arguments) > 2 and call.arguments[2] is not None else None
    value, pull = _product(x, np.swapaxes(weight, -1, -2))

    def pulled(gradient: Array) -> list[Array]:
        by_x, by_weight = pull(gradient)
        found = [by_x, of_fractions(np.swapaxes(by_weight, -1, -2))]
        return found if bias is None else [*found, _summed_to(gradient, bias.shape)]

    return (value if bias is None else of_fractions(value + bias)), pulled


def _einsum(call: Call, values: Mapping[int, Array]) -> Done | None:
    """A gradient goes back along the same letters. Letters that one operand has alone are summed there, so that each of
    its numbers along them gets the same."""
    equation, *refs = call.arguments
    if not isinstance(equation, str) or "." in equation or call.keywords:
        return None
    operands = [values[ref.number] for ref in (refs[0] if len(refs) == 1 and isinstance(refs[0], list) else refs)]
    left, _, right = equation.replace(" ", "").partition("->")
    if "->" not in equation:
        right = "".join(sorted(letter for letter in set(left) if letter.isalpha() and left.count(letter) == 1))
    letters = left.split(",")
    if any(len(set(one)) < len(one) for one in (*letters, right)):
        return None  # a diagonal
    lengths = {
        letter: n for one, a in zip(letters, operands, strict=True) for letter, n in zip(one, a.shape, strict=True)
    }

    def pull(gradient: Array) -> list[Array]:
        found = []
        for place, one in enumerate(letters):
            others = [(a, other) for at, (a, other) in enumerate(zip(operands, letters, strict=True)) if at != place]
            known = "".join(
                letter for letter in one if any(letter in part for part in (right, *(o for _, o in others)))
            )
            inner = ",".join((right, *(other for _, other in others)))
            back = of_fractions(np.einsum(f"{inner}->{known}", gradient, *(a for a, _ in others)))
            wide = [lengths[letter] if letter in known else 1 for letter in one]
            found.append(of_fractions(np.broadcast_to(back.reshape(wide), [lengths[letter] for letter in one])))
        return found

    return of_fractions(np.einsum(f"{left}->{right}", *operands)), pull


def _chosen(larger: bool) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Gradients of the larger (or smaller) of two; equal ones share it, as they do in torch."""

    def pulls(gradient: Any, a: Any, b: Any) -> tuple[Any, Any]:
        first = np.vectorize(
            lambda x, y: Fraction(1, 2) if x == y else Fraction(int((x > y) == larger)), otypes=[object]
        )
        share = first(a, b)
        return gradient * share, gradient * (Fraction(1) - share)

    return pulls


def _extreme(larger: bool) -> Callable[[Call, Mapping[int, Array]], Done | None]:
    def rule(call: Call, values: Mapping[int, Array]) -> Done | None:
        if len(call.sources) != 2:
            return None
        return _two(np.maximum if larger else np.minimum, _chosen(larger))(call, values)

    return rule


_RULES: dict[str, Callable[[Call, Mapping[int, Array]], Done | None]] = {
    "add": _two(lambda a, b: a + b, lambda g, a, b: (g, g)),
    "sub": _two(lambda a, b: a - b, lambda g, a, b: (g, -g)),
    "mul": _two(lambda a, b: a * b, lambda g, a, b: (g * b, g * a)),
    "div": _two(lambda a, b: a / b, lambda g, a, b: (g / b, -g * a / b / b)),
    "outer": _two(np.multiply.outer, lambda g, a, b: (g @ b, g.T @ a)),
    "reciprocal": _one(lambda a: 1 / a, lambda a: -1 / a**2),
    "neg": _one(lambda a: -a, lambda a: -1),
    "abs": _one(abs, lambda a: (a > 0) - (a < 0)),
    "relu": _one(lambda a: max(a, Fraction(0)), lambda a: a > 0),
    "square": _one(lambda a: a * a, lambda a: 2 * a),
    "detach": _one(lambda a: a, lambda a: 0),
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
