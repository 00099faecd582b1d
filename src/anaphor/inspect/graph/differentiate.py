"""Gradients of a program: all at once from autograd, exact ones where fractions allow, local ones by request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anaphor.inspect.graph.exact import Exact, exactly
from anaphor.inspect.graph.program import Program


@dataclass(frozen=True, eq=False)
class Differentiated:
    """A program with the gradient of some outputs by every tensor."""

    program: Program
    of: tuple[int, ...]
    """Tensors whose sum is differentiated."""
    gradients: dict[int, Tensor]
    exact: Exact


def differentiated(program: Program, of: tuple[int, ...]) -> Differentiated:
    """`of` are the tensors whose sum is differentiated; what the sum does not depend on has gradient zero."""
    ends = [program.held[number].tensor for number in of if program.held[number].differentiable]
    asked = [number for number, held in enumerate(program.held) if held.differentiable]
    gradients: dict[int, Tensor] = {}
    if ends:
        total = sum((end.sum() for end in ends[1:]), start=ends[0].sum())
        found = torch.autograd.grad(total, [program.held[number].tensor for number in asked], allow_unused=True)
        for number, gradient in zip(asked, found, strict=True):
            gradients[number] = torch.zeros_like(program.held[number].tensor) if gradient is None else gradient.detach()
    return Differentiated(program, of, gradients, exactly(program, of, gradients))


@dataclass(frozen=True)
class Local:
    """What one input does to a node, all other inputs held fixed."""

    jacobian: Tensor | None
    """[numbers of the node, numbers of the input]; None where there are too many."""
    share: Tensor
    """The part of the input's gradient that comes through this node."""
    exact_jacobian: Any = None
    exact_share: Any = None


def local(
    source: Differentiated, number: int, by: int, calls: tuple[int, ...], inputs: tuple[int, ...], most: int
) -> Local | None:
    """Derivative of tensor `number` by tensor `by`, found by running the calls between them again on tensors of their
    own; None where they cannot be. The Jacobian is written out where it has at most `most` numbers."""
    program = source.program
    gradient = source.gradients.get(number)
    if gradient is None or not program.held[by].differentiable:
        return None
    if gradient.is_complex() or program.held[by].tensor.is_complex():
        return None  # a complex slope is not one number
    given = {one: program.held[one].tensor.detach().clone() for one in inputs}
    given[by].requires_grad_()
    try:
        with torch.enable_grad():
            made = program.replay(calls, given, keep=inputs)[number]
    except (NotImplementedError, RuntimeError):  # it has a backward of its own, or differentiates inside
        return None
    if not made.requires_grad:
        return None

    def pulled(weights: Tensor) -> Tensor:
        found = torch.autograd.grad(made, given[by], weights.to(made.dtype), retain_graph=True, allow_unused=True)[0]
        return torch.zeros_like(given[by]) if found is None else found

    share, jacobian, exact_jacobian = pulled(gradient), None, None
    if made.numel() * given[by].numel() <= most:
        each = torch.eye(made.numel(), dtype=made.dtype).view(made.numel(), *made.shape)
        jacobian = torch.stack([pulled(one).flatten() for one in each]) if len(each) else None
        exact_jacobian = source.exact.jacobian(number, by, calls, inputs)
    return Local(jacobian, share, exact_jacobian, source.exact.share(number, by, calls, inputs))
