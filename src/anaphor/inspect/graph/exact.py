"""Exact values and gradients as fractions: every call is repeated in exact arithmetic, forward and backward.

Results of calls without a rule, and of numbers that are not simple fractions, are not exact, nor is what depends on
them. A result of a rule is kept only if floating point agrees with it.
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
from anaphor.inspect.graph.rules import Array, Backward, compute_exactly, fraction_array, zeros

MAX_NUMEL = 256
"""Largest tensor that is computed exactly."""
SIMPLE = {torch.float64: 1000, torch.float32: 64}
"""Largest denominator of a fraction that a float can stand for; with larger ones, random numbers would match."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(eq=False)
class Exact:
    """Arrays of fractions by the index of their tensor."""

    program: Program
    values: dict[int, Array] = field(default_factory=dict)
    gradients: dict[int, Array] = field(default_factory=dict)
    backwards: dict[int, Backward] = field(default_factory=dict)

    def jacobian(self, number: int, by: int, calls: Sequence[int], inputs: Iterable[int]) -> Array | None:
        """Jacobian of the calls between a tensor and an input. [entries of the tensor, entries of the input]"""
        if number not in self.values or by not in self.values or not self.values[number].size:
            return None
        shape, stops, found = self.values[number].shape, set(inputs), []
        for place in range(self.values[number].size):
            one = np.array([Fraction(int(place == other)) for other in range(self.values[number].size)], dtype=object)
            row = self._backward({number: one.reshape(shape)}, calls, stops).get(by)
            found.append(zeros(self.values[by].shape) if row is None else row)
        return np.stack([row.ravel() for row in found]) if all(row is not UNKNOWN for row in found) else None

    def share(self, number: int, by: int, calls: Sequence[int], inputs: Iterable[int]) -> Array | None:
        """Part of an input's gradient that comes through these calls."""
        if number not in self.gradients or by not in self.values:
            return None
        found = self._backward({number: self.gradients[number]}, calls, set(inputs)).get(by)
        return None if found is UNKNOWN else zeros(self.values[by].shape) if found is None else found

    def _backward(self, ends: Mapping[int, Array], calls: Sequence[int], stops: set[int]) -> dict[int, Any]:
        """Gradients by every tensor that the ends depend on; UNKNOWN if not exact."""
        found: dict[int, Any] = dict(ends)
        for index in reversed(calls):
            call = self.program.calls[index]
            for number in call.results:
                if number not in found or number in stops:
                    continue
                backward = self.backwards.get(number)
                parts = backward(found[number]) if backward is not None and found[number] is not UNKNOWN else None
                for place, source in enumerate(call.sources):
                    if parts is None or source not in self.values:
                        found[source] = UNKNOWN
                    elif found.get(source) is not UNKNOWN:
                        total = parts[place] if source not in found else found[source] + parts[place]
                        found[source] = fraction_array(total)
        return found


UNKNOWN = object()


def compute_exact(program: Program, of: Sequence[int], gradients: Mapping[int, Tensor]) -> Exact:
    """Exact values and gradients where possible; `gradients` are those of floating point."""
    exact = Exact(program)
    for number, traced in enumerate(program.tensors):
        if traced.call is None:
            value = traced.fractions if traced.fractions is not None else to_fractions(traced.tensor)
            if value is not None:
                exact.values[number] = value
    for call in program.calls:
        sizes = [program.tensors[number].tensor.numel() for number in (*call.sources, *call.results)]
        if max(sizes, default=0) > MAX_NUMEL or call.function is None:
            continue
        results = compute_exactly(call, exact.values, [program.tensors[number].tensor for number in call.sources])
        for number, result in zip(call.results, results or (), strict=results is not None):
            if result is not None and _agrees(result[0], program.tensors[number].tensor):
                exact.values[number], exact.backwards[number] = result
    if all(number in exact.values for number in of):
        ones = {number: fraction_array(np.ones(exact.values[number].shape, dtype=int)) for number in of}
        found = exact._backward(ones, range(len(program.calls)), set())
        for number, gradient in gradients.items():
            exact_gradient = found.get(
                number, zeros(tuple(gradient.shape)) if gradient.numel() <= MAX_NUMEL else UNKNOWN
            )
            if exact_gradient is not UNKNOWN and _agrees(exact_gradient, gradient):
                exact.gradients[number] = exact_gradient
    return exact


def to_fractions(tensor: Tensor) -> Array | None:
    """The simplest fractions that round to these numbers; None if one has no simple fraction."""
    if tensor.numel() > MAX_NUMEL or tensor.is_complex() or tensor.dtype == torch.bool:
        return None
    if not tensor.is_floating_point():
        return fraction_array(tensor.numpy(force=True))
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
