"""How large the rounding error of every value and gradient is, so that what is zero up to rounding is shown as 0.

Every call is repeated with its inputs changed by random signs times their own rounding error. The change of the result,
together with the error of its own rounding, is the error of the result. It is relative to the numbers that were added,
not to their sum: 1 − 1 has the error of 1. Gradients go the same way through the derivative of each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anaphor.trace.program import Program, rerun, resolve_refs, tensors_in

PROBES = 4
FACTOR = 16.0
"""A number counts as zero if it is at most so many rounding errors."""
SCALE = 2.0**20
"""Errors are enlarged for repeating a call, so that the change is not rounded away itself."""
MAX_CALLS = 2000
"""Programs with more calls are shown as computed: repeating them would take longer than computing them."""
MAX_NUMEL = 4096

Errors = dict[int, Tensor]


def zero_if_rounding(tensor: Tensor, error: Tensor | None) -> Tensor:
    """The tensor with 0 where it is zero up to rounding."""
    if error is None or not tensor.is_floating_point():
        return tensor
    return tensor.masked_fill(tensor.abs() <= FACTOR * error.to(tensor.dtype), 0.0)


def rounding_errors(program: Program, gradients: Mapping[int, Tensor], of: Sequence[int]) -> tuple[Errors, Errors]:
    """Typical rounding errors of values and of gradients, by tensor; none where a call cannot be repeated."""
    values: Errors = {}
    slopes: Errors = {number: torch.zeros_like(gradients[number]) for number in of if number in gradients}
    if len(program.calls) > MAX_CALLS:
        return {}, {}
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        for index in range(len(program.calls)):
            _add_value_errors(program, index, values, generator)
        unknown: set[int] = set()
        for index in reversed(range(len(program.calls))):
            _add_gradient_errors(program, index, gradients, slopes, unknown, generator)
    return values, {number: error for number, error in slopes.items() if number not in unknown}


def _is_measurable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and 0 < tensor.numel() <= MAX_NUMEL and tensor.device.type == "cpu"


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, like.shape, generator=generator).to(like.dtype) * 2 - 1


def _add_value_errors(program: Program, index: int, errors: Errors, generator: torch.Generator) -> None:
    call = program.calls[index]
    before = {number: program.tensors[number].tensor.detach() for number in set(call.sources)}
    results = {number: program.tensors[number].tensor.detach() for number in call.results}
    if call.function is None or not all(map(_is_measurable, [*before.values(), *results.values()])):
        return
    inputs = {
        number: errors.get(number, torch.zeros_like(tensor)) + torch.finfo(tensor.dtype).eps / 2 * tensor.abs()
        for number, tensor in before.items()
    }
    squares = {number: torch.zeros_like(tensor) for number, tensor in results.items()}
    for _ in range(PROBES):
        changed = {n: tensor + SCALE * inputs[n] * _signs(tensor, generator) for n, tensor in before.items()}
        try:
            with torch.no_grad():
                arguments, keywords = resolve_refs((call.arguments, call.keywords), changed.__getitem__)
                again = tensors_in(rerun(call, arguments, keywords))
        except (NotImplementedError, RuntimeError, ValueError, IndexError, KeyError):  # not a function of these alone
            return
        for (number, tensor), one in zip(results.items(), again, strict=True):
            if one.shape != tensor.shape:
                return
            squares[number] += ((one.detach() - tensor) / SCALE).square() / PROBES
    for number, square in squares.items():
        errors[number] = square.sqrt().nan_to_num(0.0, 0.0, 0.0)


def _add_gradient_errors(
    program: Program,
    index: int,
    gradients: Mapping[int, Tensor],
    errors: Errors,
    unknown: set[int],
    generator: torch.Generator,
) -> None:
    """Add to the error of each input what comes through one call: from errors of the gradients of its results, and from
    rounding the products with them."""
    call = program.calls[index]
    sources = [number for number in dict.fromkeys(call.sources) if number in gradients]
    results = [number for number in call.results if number in gradients and bool(gradients[number].any())]
    if not sources or not results:
        return
    tensors = [program.tensors[number].tensor for number in (*sources, *results)]
    if call.function is None or unknown.intersection(results) or not all(map(_is_measurable, tensors)):
        unknown.update(sources)
        return
    copies = {number: program.tensors[number].tensor.detach().clone().requires_grad_() for number in sources}
    try:
        with torch.enable_grad():
            replayed = program.replay([index], copies, keep=sources)
            ends = {number: replayed[number] for number in results if replayed[number].requires_grad}
        if not ends:
            return
        squares = {number: torch.zeros_like(copies[number]) for number in sources}
        for _ in range(PROBES):
            weights = []
            for number in ends:
                error = errors.get(number, torch.zeros_like(gradients[number]))
                rounded = error + torch.finfo(error.dtype).eps / 2 * gradients[number].abs()
                weights.append(rounded * _signs(rounded, generator))
            found = torch.autograd.grad(
                list(ends.values()), list(copies.values()), weights, retain_graph=True, allow_unused=True
            )
            for number, one in zip(sources, found, strict=True):
                if one is not None:
                    squares[number] += one.square() / PROBES
    except (NotImplementedError, RuntimeError, KeyError):  # a custom autograd function, or autograd inside
        unknown.update(sources)
        return
    for number, square in squares.items():
        through = square.sqrt().nan_to_num(0.0, 0.0, 0.0)
        errors[number] = errors[number] + through if number in errors else through
