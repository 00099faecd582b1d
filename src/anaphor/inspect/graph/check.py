"""Gradients against finite differences: change one number, run what follows again in double precision, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anaphor.inspect.graph.graph import Graph, Node
from anaphor.inspect.graph.program import Program

STEP = 6e-6
"""Of a change, for numbers of size one: about the cube root of what double precision can tell apart."""
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}
FEW = 1000
"""Numbers in a graph that are all checked; in larger ones, some of every node."""
OF_EACH = 2


@dataclass(frozen=True)
class Check:
    """How far gradients are from finite differences, as a share of the larger of the gradient and one."""

    numbers: int
    """How many numbers were changed."""
    nodes: int
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
        kinks, left_out = list(self.kinks), list(self.left_out)
        return {**vars(self), "kinks": kinks, "left_out": left_out}

    def __str__(self) -> str:
        verdict = "agree" if self.agrees else "DO NOT agree"
        told = (
            f"finite differences {verdict}: {self.numbers} numbers at {self.nodes} nodes, "
            f"largest difference {self.worst:.1e}" + (f" at {self.where}" if self.where else "")
        )
        if self.kinks:
            told += f"; a kink at {', '.join(self.kinks)}"
        if self.left_out:
            told += f"; not checked: {', '.join(self.left_out)}"
        return told


def checked(graph: Graph) -> Check:
    """Every node that has a gradient is checked, in some of its numbers where there are many."""
    source = graph.source
    nodes = [node for node in graph.nodes if node.gradient is not None and node.value.numel()]
    many = sum(node.value.numel() for node in nodes) > FEW
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
            except NotImplementedError:
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
            if not off <= worst:
                worst, where = off, node.name
            agrees = agrees and off <= close
    return Check(count, len(nodes) - len(left_out), worst, where, tuple(kinks), tuple(left_out), agrees)


def _places(node: Node, many: bool) -> Sequence[int]:
    length = node.value.numel()
    if not many or length <= OF_EACH:
        return range(length)
    assert node.gradient is not None, "asked for such only"
    # The largest gradient says most, and the middle one is any other.
    return sorted({int(node.gradient.abs().argmax()), length // 2})


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
