"""The same numbers as fractions, where they can be: every call is done again on exact numbers, forward and backward.

Calls without a rule here, and numbers that are no simple fractions, end the exactness of all that depends on them. A
rule's result is kept only where floating point agrees with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anaphor.inspect.graph.program import Program
from anaphor.inspect.graph.rules import Array, Pull, done_exactly, of_fractions

LARGEST = 256
"""Numbers in a tensor that is still done exactly."""
SIMPLE = {torch.float64: 1000, torch.float32: 64}
"""Largest denominator of a fraction that a number is taken for. Among more of them, chance would find one."""
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(eq=False)
class Exact:
    """Fractions by the number of their tensor, in arrays of its shape."""

    program: Program
    values: dict[int, Array] = field(default_factory=dict)
    gradients: dict[int, Array] = field(default_factory=dict)
    pulls: dict[int, Pull] = field(default_factory=dict)

    def jacobian(self, number: int, by: int, calls: Sequence[int], inputs: Iterable[int]) -> Array | None:
        """[numbers of the tensor, numbers of the input] of the calls between them."""
        if number not in self.values or by not in self.values or not self.values[number].size:
            return None
        shape, stops, found = self.values[number].shape, set(inputs), []
        for place in range(self.values[number].size):
            one = np.array([Fraction(int(place == other)) for other in range(self.values[number].size)], dtype=object)
            row = self._backward({number: one.reshape(shape)}, calls, stops).get(by)
            found.append(_nothing(self.values[by].shape) if row is None else row)
        return np.stack([row.ravel() for row in found]) if all(row is not UNKNOWN for row in found) else None

    def share(self, number: int, by: int, calls: Sequence[int], inputs: Iterable[int]) -> Array | None:
        """The part of an input's gradient that comes through these calls."""
        if number not in self.gradients or by not in self.values:
            return None
        found = self._backward({number: self.gradients[number]}, calls, set(inputs)).get(by)
        return None if found is UNKNOWN else _nothing(self.values[by].shape) if found is None else found

    def _backward(self, ends: Mapping[int, Array], calls: Sequence[int], stops: set[int]) -> dict[int, Any]:
        """Gradients by every tensor that the ends depend on, UNKNOWN where they are not exact."""
        found: dict[int, Any] = dict(ends)
        for index in reversed(calls):
            call = self.program.calls[index]
            for number in call.results:
                if number not in found or number in stops:
                    continue
                pull = self.pulls.get(number)
                parts = pull(found[number]) if pull is not None and found[number] is not UNKNOWN else None
                for place, source in enumerate(call.sources):
                    if parts is None or source not in self.values:
                        found[source] = UNKNOWN
                    elif found.get(source) is not UNKNOWN:
                        total = parts[place] if source not in found else found[source] + parts[place]
                        found[source] = of_fractions(total)
        return found


UNKNOWN = object()


def exactly(program: Program, of: Sequence[int], gradients: Mapping[int, Tensor]) -> Exact:
    """Everything that can be exact; `gradients` are those of floating point."""
    exact = Exact(program)
    for number, held in enumerate(program.held):
        if held.call is None:
            value = held.fractions if held.fractions is not None else fractions_of(held.tensor)
            if value is not None:
                exact.values[number] = value
    for call in program.calls:
        sizes = [program.held[number].tensor.numel() for number in (*call.sources, *call.results)]
        if max(sizes, default=0) > LARGEST or call.function is None:
            continue
        results = done_exactly(call, exact.values, [program.held[number].tensor for number in call.sources])
        for number, result in zip(call.results, results or (), strict=results is not None):
            if result is not None and _agrees(result[0], program.held[number].tensor):
                exact.values[number], exact.pulls[number] = result
    if all(number in exact.values for number in of):
        ones = {number: of_fractions(np.ones(exact.values[number].shape, dtype=int)) for number in of}
        found = exact._backward(ones, range(len(program.calls)), set())
        for number, gradient in gradients.items():
            exactly_that = found.get(
                number, _nothing(tuple(gradient.shape)) if gradient.numel() <= LARGEST else UNKNOWN
            )
            if exactly_that is not UNKNOWN and _agrees(exactly_that, gradient):
                exact.gradients[number] = exactly_that
    return exact


def fractions_of(tensor: Tensor) -> Array | None:
    """The simplest fractions that round to these numbers, if all of them have simple ones."""
    if tensor.numel() > LARGEST or tensor.is_complex() or tensor.dtype == torch.bool:
        return None
    if not tensor.is_floating_point():
        return of_fractions(tensor.numpy(force=True))
    largest = SIMPLE.get(tensor.dtype)
    if largest is None or not bool(tensor.isfinite().all()):
        return None
    flat = tensor.detach().cpu().flatten()
    found = [Fraction(value).limit_denominator(largest) for value in flat.tolist()]
    if not torch.equal(torch.tensor([float(one) for one in found], dtype=torch.float64).to(flat.dtype), flat):
        return None
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array.reshape(tuple(tensor.shape))


def _nothing(shape: tuple[int, ...]) -> Array:
    return of_fractions(np.zeros(shape, dtype=int))


def _agrees(array: Array, tensor: Tensor) -> bool:
    if array.shape != tuple(tensor.shape):
        return False
    try:
        floats = array.astype(float)
    except OverflowError:  # a fraction has no largest number, and a float has
        return False
    close = CLOSE.get(tensor.dtype)
    if close is None:
        return bool(np.array_equal(floats, tensor.double().numpy(force=True)))
    return bool(np.allclose(floats, tensor.detach().double().numpy(force=True), rtol=close, atol=close))
