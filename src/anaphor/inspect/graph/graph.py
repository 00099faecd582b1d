"""A computation graph as data: nodes with a value and a gradient, and the edges between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anaphor.config import look_up
from anaphor.inspect.graph import numbers

if TYPE_CHECKING:
    from anaphor.inspect.graph.check import Check
    from anaphor.inspect.graph.differentiate import Differentiated


@dataclass(frozen=True)
class Edge:
    """From a node into one that reads it. The label tells what happened on the way: `ᵀ`, `[0]`."""

    source: int
    target: int
    label: str = ""


@dataclass(frozen=True, eq=False)
class Node:
    """One tensor, and the operation that made it."""

    id: int
    name: str
    """Of its variable where it has one; otherwise after its operation. No two nodes have the same."""
    op: str
    """input, parameter, constant, or what made it: mul, relu, Linear."""
    label: str
    """What a drawing shows for the operation: `×`, `× 2`, `ReLU`."""
    formula: str
    """How it is made: `w1 × x`, `ReLU(z2)`."""
    inputs: tuple[int, ...]
    value: Tensor
    gradient: Tensor | None
    """Of what is differentiated, by this tensor. None where there is no gradient: whole numbers, detached tensors."""
    exact_value: Any = None
    """Fractions in an array, where all that led here is exact."""
    exact_gradient: Any = None
    named: bool = True
    """Whether the name is somebody's choice."""
    module: str = ""
    """Path of the innermost module it was made in."""
    where: str = ""
    """file:line."""
    number: int = field(default=-1, repr=False)
    """Of the tensor in the program."""
    calls: tuple[int, ...] = field(default=(), repr=False)
    """Numbers of the calls from its inputs to it."""

    @property
    def is_leaf(self) -> bool:
        return self.op in ("input", "parameter", "constant")

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "id": self.id,
            "name": self.name,
            "op": self.op,
            "inputs": list(self.inputs),
            "value": numbers.plain(self.value, self.exact_value),
            "gradient": None if self.gradient is None else numbers.plain(self.gradient, self.exact_gradient),
        }


@dataclass(frozen=True, eq=False)
class Graph:
    """What `trace` gives. Nodes stand in the order in which they were computed."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[int, ...]
    differentiated: str
    """What the gradients are of, in words."""
    level: str
    notes: tuple[str, ...]
    source: Differentiated = field(repr=False)
    """All that ran, for other levels and for local derivatives."""

    def __getitem__(self, key: str | int) -> Node:
        """A node by its name or id."""
        if isinstance(key, int):
            return self.nodes[key]
        return look_up({node.name: node for node in self.nodes}, key, "node")

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def output(self) -> Node:
        """What is differentiated; the first of them where there are several."""
        return self.nodes[self.outputs[0]]

    def at(self, level: str) -> Graph:
        """The same run in more or less detail: everything, operations, names or modules."""
        from anaphor.inspect.graph.levels import at_level

        return at_level(self.source, level)

    def collapsed(self, *modules: str) -> Graph:
        """With each of these modules as one node. `layers.*` means every layer."""
        from anaphor.inspect.graph.levels import at_level

        return at_level(self.source, self.level, modules)

    def plain(self) -> dict[str, Any]:
        """As JSON holds it: `nodes`, and as `output` the id of one. A function that returns several tensors has their
        ids as `outputs` too, and in words what is differentiated as `gradients_of`; `notes` are there if any are."""
        several = len(self.outputs) > 1
        return {
            "nodes": [node.plain() for node in self.nodes],
            "output": self.output.id,
            **({"outputs": list(self.outputs), "gradients_of": self.differentiated} if several else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def text(self) -> str:
        """A line for each node."""
        from anaphor.inspect.graph.text import text_of

        return text_of(self)

    def draw(self, *paths: Path | str) -> Sequence[Path]:
        """Draw it into files; their endings choose PNG, SVG, PDF or, for the interactive page, HTML."""
        from anaphor.inspect.graph.drawing import draw_graph

        return draw_graph(self, [Path(path) for path in paths])

    def page(self) -> str:
        """The interactive page: one file that needs nothing else."""
        from anaphor.inspect.graph.page import page_of

        return page_of(self)

    def check(self) -> Check:
        """Compare the gradients with finite differences, in double precision."""
        from anaphor.inspect.graph.check import checked

        return checked(self)

    def __str__(self) -> str:
        return self.text()
