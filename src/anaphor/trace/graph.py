"""Computation graphs of functions on tensors, with a value and a gradient at every node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from anaphor.config import look_up
from anaphor.trace import formatting
from anaphor.trace.drawing import draw_graph
from anaphor.trace.gradients import Check, ProgramGradients, check_gradients
from anaphor.trace.rounding import zero_if_rounding


@dataclass(frozen=True)
class Edge:
    """From a node to one that reads it. The label shows a view on the way: `ᵀ`, `[0]`."""

    source: int
    target: int
    label: str = ""


@dataclass(frozen=True, eq=False)
class Node:
    """A tensor and the operation that produced it."""

    id: int
    name: str
    """Its variable, or else its operation; unique in the graph."""
    op: str
    """input, parameter, constant, or the operation: mul, relu, Linear."""
    label: str
    """The operation in a drawing: `×`, `× 2`, `ReLU`."""
    formula: str
    """How it is computed: `w1 × x`, `ReLU(z2)`."""
    inputs: tuple[int, ...]
    value: Tensor
    gradient: Tensor | None
    """Gradient of the output with respect to this tensor; None for integer and detached tensors."""
    exact_value: Any = None
    """Array of fractions, if the value is exact."""
    exact_gradient: Any = None
    named: bool = True
    """Whether the name is a variable."""
    module: str = ""
    """Path of the innermost module that computed it."""
    where: str = ""
    """file:line."""
    number: int = field(default=-1, repr=False)
    """Index of the tensor in the program."""
    calls: tuple[int, ...] = field(default=(), repr=False)
    """Indices of the calls between its inputs and it."""

    @property
    def is_leaf(self) -> bool:
        return self.op in ("input", "parameter", "constant")

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "op": self.op,
            "inputs": list(self.inputs),
            "value": formatting.to_json(self.value, self.exact_value),
            "gradient": None if self.gradient is None else formatting.to_json(self.gradient, self.exact_gradient),
        }


@dataclass(frozen=True, eq=False)
class Graph:
    """Result of `trace`. Nodes are in order of computation."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[int, ...]
    differentiated: str
    """Which outputs the gradients belong to, in words."""
    level: str
    notes: tuple[str, ...]
    source: ProgramGradients = field(repr=False)
    """The recorded program with its gradients, for other levels and local derivatives."""

    def __getitem__(self, key: str | int) -> Node:
        """A node by its name or id."""
        if isinstance(key, int):
            return self.nodes[key]
        return look_up({node.name: node for node in self.nodes}, key, "node")

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def output(self) -> Node:
        """The differentiated output; the first one if there are several."""
        return self.nodes[self.outputs[0]]

    def at(self, level: str) -> Graph:
        """The same run at another level of detail: everything, operations, names or modules."""
        from anaphor.trace.levels import graph_at_level

        return graph_at_level(self.source, level)

    def collapsed(self, *modules: str) -> Graph:
        """The graph with each of these modules as one node. `layers.*` means every layer."""
        from anaphor.trace.levels import graph_at_level

        return graph_at_level(self.source, self.level, modules)

    def shown(self, node: Node) -> tuple[Tensor, Tensor | None]:
        """Value and gradient of a node with 0 for what is zero up to rounding."""
        values, gradients = self.source.errors
        gradient = None if node.gradient is None else zero_if_rounding(node.gradient, gradients.get(node.number))
        return zero_if_rounding(node.value, values.get(node.number)), gradient

    def plain(self) -> dict[str, Any]:
        """For JSON: `nodes`, `output` (an id), `notes` if there are any and, if the function returns several tensors,
        `outputs` (their ids) and `gradients_of` (in words)."""
        several = len(self.outputs) > 1
        return {
            "nodes": [node.plain() for node in self.nodes],
            "output": self.output.id,
            **({"outputs": list(self.outputs), "gradients_of": self.differentiated} if several else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def text(self) -> str:
        """A table with one row per node, and which outputs the gradients belong to."""
        cells = [("node", "computed as", "value", "gradient"), *(self._format_node(node) for node in self.nodes)]
        widths = [max(len(row[column]) for row in cells) for column in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([*map(str.rstrip, lines), f"gradients of {self.differentiated}", *self.notes])

    def draw(self, *paths: Path | str, digits: int = formatting.DIGITS) -> Sequence[Path]:
        """Draw into files; the suffix chooses PNG, SVG, PDF or HTML (the interactive page). Figures of large tensors
        are narrower with fewer significant digits."""
        return draw_graph(self, [Path(path) for path in paths], digits)

    def page(self) -> str:
        """The interactive page as one self-contained HTML file."""
        from anaphor.trace.page import build_page

        return build_page(self)

    def check(self) -> Check:
        """Compare the gradients with finite differences in double precision."""
        return check_gradients(self)

    def __str__(self) -> str:
        return self.text()

    def _format_node(self, node: Node) -> tuple[str, str, str, str]:
        value, gradient = self.shown(node)
        slope = "–" if gradient is None else formatting.format_line(gradient, node.exact_gradient)
        return node.name, node.formula, formatting.format_line(value, node.exact_value), slope
