"""A graph as lines of text."""

from __future__ import annotations

from anaphor.inspect.graph import numbers
from anaphor.inspect.graph.graph import Graph, Node


def text_of(graph: Graph) -> str:
    """A table with a line for each node, in the order of computation, and what the gradients are of."""
    cells = [("node", "computed as", "value", "gradient"), *(_line(node) for node in graph.nodes)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([*lines, f"gradients of {graph.differentiated}", *graph.notes])


def _line(node: Node) -> tuple[str, str, str, str]:
    gradient = "–" if node.gradient is None else numbers.line(node.gradient, node.exact_gradient)
    return node.name, node.formula, numbers.line(node.value, node.exact_value), gradient
