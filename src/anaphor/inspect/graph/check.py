"""Gradients against finite differences: change one number, run what follows again in double precision, and compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anaphor.inspect.graph import numbers
from anaphor.inspect.graph.graph import Graph, Node
from anaphor.inspect.graph.program import Program

STEP = 6e-6
"""Of a change, for numbers of size one: about the cube root of what double precision can tell apart."""
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}
FEW = 1000
"""Numbers in a graph that are all checked; in larger ones, some of every node."""
OF_EACH = 2
LONG = 200_000
"""Calls that are run again, over all checks. In graphs that need more, some nodes stand for the others."""


@dataclass(frozen=True)
class Check:
    """How far gradients are from finite differences, as a share of the larger of the gradient and one."""

    numbers: int
    """How many numbers were changed."""
    nodes: int
    """At how many nodes."""
    of: int
    """Nodes that have a gradient."""
    worst: float
    where: str
    """The node that is off the most."""
    kinks: tuple[str, ...]
    """Nodes where the slope to the left is not the slope to the right, with the gradient between them."""
    left_out: tuple[str, ...]
    """Nodes that could not be checked: something between them and the output cannot be run again."""
    agrees: bool

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        kinks, left_out, worst = list(self.kinks), list(self.left_out), numbers.finite(self.worst)
        return {**vars(self), "worst": worst, "kinks": kinks, "left_out": left_out}

    def __str__(self) -> str:
        verdict = "agree" if self.agrees else "DO NOT agree"
        told = (
            f"finite differences {verdict}: {self.numbers} numbers at {self._share()} nodes, "
            f"largest difference {self.worst:.1e}" + (f" at {self.where}" if self.where else "")
        )
        if self.kinks:
            told += f"; a kink at {', '.join(self.kinks)}"
        if self.left_out:
            told += f"; not checked: {', '.join(self.left_out)}"
        return told

    def _share(self) -> str:
        return f"{self.nodes}" if self.nodes + len(self.left_out) == self.of else f"{self.nodes} of {self.of:,}"


def checked(graph: Graph) -> Check:
    """Every node that has a gradient is checked, in some of its numbers where there are many; in very long graphs only
    some nodes are, spread over all, the first and the last among them."""
    source = graph.source
    nodes = [node for node in graph.nodes if node.gradient is not None and node.value.numel()]
    of, many = len(nodes), sum(node.value.numel() for node in nodes) > FEW
    nodes = _some(nodes, len(source.program.calls))
    worst, where, count, agrees = 0.0, "", 0, True
    kinks: dict[str, None] = {}
    left_out: list[str] = []
    for node in nodes:
        assert node.gradient is not None, "chosen so"
        calls = _following(source.program, node.number, source.of)
        if node.value.is_complex():
            left_out.append(node.name)
            continue
        close = CLOSE.get(node.value.dtype, 1e-2)
        for place in _places(node, many):
            try:
                left, middle, right = _slopes(source.program, node, place, calls, source.of)
            except (NotImplementedError, RuntimeError):  # also what differentiates inside
                left_out.append(node.name)
                break
            count += 1
            gradient = float(node.gradient.flatten()[place])
            size = max(1.0, abs(gradient))
            off = abs(gradient - middle) / size
            if off > close and min(left, right) - close * size <= gradient <= max(left, right) + close * size:
                kinks[node.name] = None
                continue
            # What is not a number differs from everything, and is told as such.
            if not off <= worst and not math.isnan(worst):
                worst, where = off, node.name
            agrees = agrees and off <= close
    return Check(count, len(nodes) - len(left_out), of, worst, where, tuple(kinks), tuple(left_out), agrees)


def _some(nodes: list[Node], calls: int) -> list[Node]:
    """So many of them that about LONG calls are run: three times all that follow, half of them on average."""
    most = max(2, LONG * 2 // (3 * OF_EACH * max(1, calls)))
    if len(nodes) <= most:
        return nodes
    return [nodes[round(place * (len(nodes) - 1) / (most - 1))] for place in range(most)]


def _places(node: Node, many: bool) -> Sequence[int]:
    """Numbers to change. A masked score is infinite, and more or less of that is the same."""
    assert node.gradient is not None, "asked for such only"
    finite: list[int] = torch.nonzero(~node.value.flatten().isinf()).flatten().tolist()
    if not many or len(finite) <= OF_EACH:
        return finite
    # The largest gradient says most, and the middle one is any other.
    sizes = node.gradient.flatten().abs()[finite]
    return sorted({finite[int(sizes.argmax())], finite[len(finite) // 2]})


def _following(program: Program, number: int, of: Sequence[int]) -> list[int]:
    """Calls that a tensor has an influence on, and that have one on the result."""
    reached = {number}
    found = []
    _, needed = program.before(of, ())
    for index in needed:
        call = program.calls[index]
        if reached.intersection(call.sources) and number not in call.results:
            reached.update(call.results)
            found.append(index)
    return found


def _slopes(
    program: Program, node: Node, place: int, calls: Sequence[int], of: Sequence[int]
) -> tuple[float, float, float]:
    """To the left, through both sides, and to the right."""
    start = node.value.detach().double()
    step = STEP * max(1.0, abs(float(start.flatten()[place])))

    def result(change: float) -> float:
        moved = start.clone(memory_format=torch.contiguous_format)
        moved.view(-1)[place] += change
        with torch.no_grad():
            values = program.replay(calls, {node.number: moved}, keep=[node.number], precise=True)
        return sum(float(_end(program, values, number).sum()) for number in of)

    low, here, high = result(-step), result(0.0), result(step)
    return (here - low) / step, (high - low) / (2 * step), (high - here) / step


def _end(program: Program, values: dict[int, Tensor], number: int) -> Tensor:
    return values[number] if number in values else program.held[number].tensor.detach().double()
