"""Gradients of a program by autograd, local derivatives, and a check against finite differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anaphor.trace import formatting
from anaphor.trace.exact import Exact, compute_exact
from anaphor.trace.program import Program
from anaphor.trace.rounding import Errors, rounding_errors

if TYPE_CHECKING:
    from anaphor.trace.graph import Graph, Node


@dataclass(frozen=True, eq=False)
class ProgramGradients:
    """A program with the gradients of its outputs by every tensor."""

    program: Program
    of: tuple[int, ...]
    """Tensors whose sum is differentiated."""
    gradients: dict[int, Tensor]
    exact: Exact

    @cached_property
    def errors(self) -> tuple[Errors, Errors]:
        """Rounding errors of values and of gradients, by tensor."""
        return rounding_errors(self.program, self.gradients, self.of)


def differentiate(program: Program, of: tuple[int, ...]) -> ProgramGradients:
    """`of` are the tensors whose sum is differentiated; tensors it does not depend on have gradient zero."""
    ends = [program.tensors[number].tensor for number in of if program.tensors[number].differentiable]
    by = [number for number, traced in enumerate(program.tensors) if traced.differentiable]
    gradients: dict[int, Tensor] = {}
    if ends:
        total = sum((end.sum() for end in ends[1:]), start=ends[0].sum())
        found = torch.autograd.grad(total, [program.tensors[number].tensor for number in by], allow_unused=True)
        for number, gradient in zip(by, found, strict=True):
            gradients[number] = (
                torch.zeros_like(program.tensors[number].tensor) if gradient is None else gradient.detach()
            )
    return ProgramGradients(program, of, gradients, compute_exact(program, of, gradients))


@dataclass(frozen=True)
class LocalDerivative:
    """Derivative of a node by one of its inputs, with the other inputs fixed."""

    jacobian: Tensor | None
    """[entries of the node, entries of the input]; None if it is too large."""
    share: Tensor
    """Part of the input's gradient that comes through this node."""
    exact_jacobian: Any = None
    exact_share: Any = None


def local_derivative(
    source: ProgramGradients, number: int, by: int, calls: tuple[int, ...], inputs: tuple[int, ...], most: int
) -> LocalDerivative | None:
    """Derivative of tensor `number` by tensor `by`: the calls between them are run again on copies; None if that fails.
    The Jacobian is computed if it has at most `most` entries."""
    program = source.program
    gradient = source.gradients.get(number)
    if gradient is None or not program.tensors[by].differentiable:
        return None
    if gradient.is_complex() or program.tensors[by].tensor.is_complex():
        return None  # a complex derivative is not one number
    copies = {one: program.tensors[one].tensor.detach().clone() for one in inputs}
    copies[by].requires_grad_()
    try:
        with torch.enable_grad():
            result = program.replay(calls, copies, keep=inputs)[number]
    except (NotImplementedError, RuntimeError):  # a custom autograd function, or autograd inside the function
        return None
    if not result.requires_grad:
        return None

    def vjp(weights: Tensor) -> Tensor:
        found = torch.autograd.grad(result, copies[by], weights.to(result.dtype), retain_graph=True, allow_unused=True)[
            0
        ]
        return torch.zeros_like(copies[by]) if found is None else found

    share, jacobian, exact_jacobian = vjp(gradient), None, None
    if result.numel() * copies[by].numel() <= most:
        each = torch.eye(result.numel(), dtype=result.dtype).view(result.numel(), *result.shape)
        jacobian = torch.stack([vjp(one).flatten() for one in each]) if len(each) else None
        exact_jacobian = source.exact.jacobian(number, by, calls, inputs)
    return LocalDerivative(jacobian, share, exact_jacobian, source.exact.share(number, by, calls, inputs))


STEP = 6e-6
"""Relative step: about the cube root of the double-precision epsilon."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
MAX_ENTRIES = 1000
"""Graphs with at most so many numbers are checked completely; in larger ones some entries of every node."""
PER_NODE = 2
MAX_CALLS = 200_000
"""Calls that are run again in total. Longer graphs are checked at a sample of nodes."""


@dataclass(frozen=True)
class Check:
    """Errors of gradients against finite differences, relative to the larger of the gradient and one."""

    numbers: int
    """How many entries were checked."""
    nodes: int
    """At how many nodes."""
    of: int
    """Number of nodes that have a gradient."""
    worst: float
    where: str
    """The node with the largest error."""
    kinks: tuple[str, ...]
    """Nodes where left and right derivative differ, with the gradient between them."""
    left_out: tuple[str, ...]
    """Nodes that could not be checked: a call between them and the output cannot be run again."""
    agrees: bool

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        kinks, left_out, worst = list(self.kinks), list(self.left_out), formatting.json_number(self.worst)
        return {**vars(self), "worst": worst, "kinks": kinks, "left_out": left_out}

    def __str__(self) -> str:
        verdict = "agree" if self.agrees else "DO NOT agree"
        text = (
            f"finite differences {verdict}: {self.numbers} numbers at {self._share()} nodes, "
            f"largest difference {self.worst:.1e}" + (f" at {self.where}" if self.where else "")
        )
        if self.kinks:
            text += f"; a kink at {', '.join(self.kinks)}"
        if self.left_out:
            text += f"; not checked: {', '.join(self.left_out)}"
        return text

    def _share(self) -> str:
        return f"{self.nodes}" if self.nodes + len(self.left_out) == self.of else f"{self.nodes} of {self.of:,}"


def check_gradients(graph: Graph) -> Check:
    """Check every node that has a gradient, at some entries of large ones; in very long graphs a sample of the nodes,
    first and last included."""
    source = graph.source
    nodes = [node for node in graph.nodes if node.gradient is not None and node.value.numel()]
    of, is_large = len(nodes), sum(node.value.numel() for node in nodes) > MAX_ENTRIES
    nodes = _sample_nodes(nodes, len(source.program.calls))
    worst, where, count, agrees = 0.0, "", 0, True
    kinks: dict[str, None] = {}
    left_out: list[str] = []
    for node in nodes:
        assert node.gradient is not None, "nodes without gradient were filtered out"
        calls = _dependent_calls(source.program, node.number, source.of)
        if node.value.is_complex():
            left_out.append(node.name)
            continue
        tolerance = TOLERANCE.get(node.value.dtype, 1e-2)
        for place in _entries(node, is_large):
            try:
                left, middle, right = _finite_differences(source.program, node, place, calls, source.of)
            except (NotImplementedError, RuntimeError):  # also autograd inside the function
                left_out.append(node.name)
                break
            count += 1
            gradient = float(node.gradient.flatten()[place])
            size = max(1.0, abs(gradient))
            error = abs(gradient - middle) / size
            if (
                error > tolerance
                and min(left, right) - tolerance * size <= gradient <= max(left, right) + tolerance * size
            ):
                kinks[node.name] = None
                continue
            # NaN counts as the largest error.
            if not error <= worst and not math.isnan(worst):
                worst, where = error, node.name
            agrees = agrees and error <= tolerance
    return Check(count, len(nodes) - len(left_out), of, worst, where, tuple(kinks), tuple(left_out), agrees)


def _sample_nodes(nodes: list[Node], calls: int) -> list[Node]:
    """So many that about MAX_CALLS calls are run: each entry needs three runs of half the calls on average."""
    most = max(2, MAX_CALLS * 2 // (3 * PER_NODE * max(1, calls)))
    if len(nodes) <= most:
        return nodes
    return [nodes[round(place * (len(nodes) - 1) / (most - 1))] for place in range(most)]


def _entries(node: Node, is_large: bool) -> Sequence[int]:
    """Indices of the entries to check. Infinite ones (masked scores) are skipped."""
    assert node.gradient is not None, "nodes without gradient were filtered out"
    finite: list[int] = torch.nonzero(~node.value.flatten().isinf()).flatten().tolist()
    if not is_large or len(finite) <= PER_NODE:
        return finite
    # The entry with the largest gradient, and the middle one.
    sizes = node.gradient.flatten().abs()[finite]
    return sorted({finite[int(sizes.argmax())], finite[len(finite) // 2]})


def _dependent_calls(program: Program, number: int, of: Sequence[int]) -> list[int]:
    """Calls between a tensor and the outputs."""
    reached = {number}
    found = []
    _, needed = program.ancestors(of, ())
    for index in needed:
        call = program.calls[index]
        if reached.intersection(call.sources) and number not in call.results:
            reached.update(call.results)
            found.append(index)
    return found


def _finite_differences(
    program: Program, node: Node, place: int, calls: Sequence[int], of: Sequence[int]
) -> tuple[float, float, float]:
    """Left, central and right difference quotients."""
    start = node.value.detach().double()
    step = STEP * max(1.0, abs(float(start.flatten()[place])))

    def output_at(change: float) -> float:
        shifted = start.clone(memory_format=torch.contiguous_format)
        shifted.view(-1)[place] += change
        with torch.no_grad():
            values = program.replay(calls, {node.number: shifted}, keep=[node.number], precise=True)
        return sum(float(_output_value(program, values, number).sum()) for number in of)

    low, here, high = output_at(-step), output_at(0.0), output_at(step)
    return (here - low) / step, (high - low) / (2 * step), (high - here) / step


def _output_value(program: Program, values: dict[int, Tensor], number: int) -> Tensor:
    return values[number] if number in values else program.tensors[number].tensor.detach().double()
