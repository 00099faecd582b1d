"""Where nodes and edges go. Graphviz decides; what a box holds, and therefore its size, is decided here.

Boxes are measured in letters of a fixed width, so that one layout serves the drawing and the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from anaphor.inspect.graph import numbers
from anaphor.inspect.graph.graph import Graph, Node

LETTER, LINE, MARGIN = 6.1, 13.0, 6.0
"""Points: a letter's width, a line's height, and the space round the text, at a size of ten."""
PICTURE = 54.0
"""Points: the side of a thumbnail."""
ACROSS = 14
"""A chain of at most so many nodes goes from left to right; a longer one from top to bottom."""


@dataclass(frozen=True)
class Box:
    """A node in the drawing: its middle and its size in points from the top left, and what is written in it."""

    x: float
    y: float
    wide: float
    high: float
    title: str
    value: tuple[str, ...]
    gradient: tuple[str, ...]
    picture: float
    """Height of the thumbnail below the text; nothing where there is none."""


@dataclass(frozen=True)
class Curve:
    """An edge: the points of its Bézier curve, the tip of its arrow, and where its label stands."""

    points: tuple[tuple[float, float], ...]
    tip: tuple[float, float]
    label: str
    label_at: tuple[float, float] | None


@dataclass(frozen=True)
class Frame:
    """The box round a module."""

    title: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Layout:
    wide: float
    high: float
    boxes: tuple[Box, ...]
    """One for each node."""
    curves: tuple[Curve, ...]
    """One for each edge."""
    frames: tuple[Frame, ...]
    """From the outside in."""


def title_of(node: Node, frames: Collection[str]) -> str:
    """Name and sign: `z1  ×`. An operation whose result nobody named has its sign alone, and a name does not repeat
    what the frame round it says."""
    if not node.is_leaf and not node.named:
        return node.label
    around = node.module
    while around and around not in frames:
        around = around.rpartition(".")[0]
    name = node.name.removeprefix(f"{around}.") if around else node.name
    told = node.is_leaf or name == node.label or node.label.startswith(("[", "ᵀ"))  # or by the edge
    return name if told else f"{name}  {node.label}"


def laid_out(graph: Graph) -> Layout:
    import pygraphviz

    drawing = pygraphviz.AGraph(directed=True, strict=False)
    direction = "LR" if _longest_chain(graph) <= ACROSS else "TB"
    drawing.graph_attr.update(
        rankdir=direction, newrank="true", nodesep="0.22", ranksep="0.4", outputorder="edgesfirst"
    )
    # Without text of its own the layout needs no fonts, and is the same on every machine.
    drawing.node_attr.update(label="", shape="box", fixedsize="true")
    frames = _frames(graph)
    sizes = [_contents(node, frames) for node in graph.nodes]
    for node, size in zip(graph.nodes, sizes, strict=True):
        drawing.add_node(node.id, width=size.wide / 72, height=size.high / 72)
    for place, edge in enumerate(graph.edges):
        drawing.add_edge(edge.source, edge.target, key=place, comment=place, **_room(edge.label))
    _add_frames(drawing, frames)
    found = json.loads(drawing.draw(format="json0", prog="dot"))
    return _read(graph, found, sizes)


def _longest_chain(graph: Graph) -> int:
    length: dict[int, int] = {}
    for node in graph.nodes:
        length[node.id] = 1 + max((length[one] for one in node.inputs), default=0)
    return max(length.values())


def _contents(node: Node, frames: Collection[str]) -> Box:
    value = tuple(numbers.rows(node.value, node.exact_value))
    gradient: tuple[str, ...] = ()
    if node.gradient is not None:
        gradient = tuple(numbers.rows(node.gradient, node.exact_gradient))
        if not numbers.is_small(node.gradient):
            gradient = gradient[1:]  # its shape is that of the value
    title = title_of(node, frames)
    picture = picture_height(node)
    lines = [title, *value, *gradient]
    wide = max(max(map(len, lines)) * LETTER, PICTURE if picture else 0.0) + 2 * MARGIN
    return Box(0, 0, max(wide, 34.0), len(lines) * LINE + MARGIN + picture, title, value, gradient, picture)


def picture_height(node: Node) -> float:
    """Points that the thumbnail of a large tensor takes; nothing where all numbers are written."""
    if numbers.is_small(node.value) or not node.value.numel() or not node.value.ndim:
        return 0.0
    rows = node.value.numel() // node.value.shape[-1]
    return min(PICTURE, 12.0 + 3.0 * rows)


def _room(label: str) -> dict[str, str]:
    return {"label": _empty(len(label) * LETTER + 4, LINE)} if label else {}


def _empty(wide: float, high: float) -> str:
    """A table of a label's size keeps its place free."""
    size = f'FIXEDSIZE="TRUE" WIDTH="{round(wide)}" HEIGHT="{round(high)}"'
    return f'<<TABLE BORDER="0" {size}><TR><TD></TD></TR></TABLE>>'


def _frames(graph: Graph) -> dict[str, list[int]]:
    """Paths of modules that get a frame, from the outside in, and the nodes inside."""
    members: dict[str, list[int]] = {}
    for node in graph.nodes:
        parts = node.module.split(".") if node.module else []
        for depth in range(1, len(parts) + 1):
            members.setdefault(".".join(parts[:depth]), []).append(node.id)
    kept: dict[str, list[int]] = {}
    for path, inside in sorted(members.items(), key=lambda one: one[0].count(".")):
        # A frame round one node says no more than the node, and two round the same nodes no more than the inner one.
        within = [other for other in members.items() if other[0].startswith(f"{path}.") and other[1] == inside]
        if len(inside) > 1 and not within:
            kept[path] = inside
    return kept


def _add_frames(drawing: Any, frames: dict[str, list[int]]) -> None:
    made: dict[str, Any] = {}
    for path, inside in frames.items():
        outer = path.rpartition(".")[0]
        while outer and outer not in made:
            outer = outer.rpartition(".")[0]
        room = _empty(len(path) * LETTER + 8, 12)
        parent = made.get(outer, drawing)
        made[path] = parent.add_subgraph(inside, name=f"cluster {path}", label=room, labeljust="l", comment=path)


def _read(graph: Graph, found: dict[str, Any], sizes: list[Box]) -> Layout:
    left, bottom, right, top = map(float, found["bb"].split(","))
    high = top - bottom

    def at(text: str) -> tuple[float, float]:
        x, y = map(float, text.split(",")[-2:])
        return x - left, high - (y - bottom)

    places: dict[int, tuple[float, float]] = {}
    frames = []
    for one in found.get("objects", ()):
        if one["name"].startswith("cluster "):
            x0, y0, x1, y1 = map(float, one["bb"].split(","))
            frames.append(Frame(one["comment"], x0 - left, high - (y1 - bottom), x1 - left, high - (y0 - bottom)))
        else:
            places[int(one["name"])] = at(one["pos"])
    boxes = tuple(
        Box(*places[node.id], size.wide, size.high, size.title, size.value, size.gradient, size.picture)
        for node, size in zip(graph.nodes, sizes, strict=True)
    )
    curves: dict[int, Curve] = {}
    for one in found.get("edges", ()):
        edge = graph.edges[int(one["comment"])]
        words = one.get("pos", "").split()
        points = tuple(at(word) for word in words if not re.match(r"[es],", word))
        tip = next((at(word) for word in words if word.startswith("e,")), points[-1] if points else (0.0, 0.0))
        if not points:  # very rarely graphviz finds no way round everything else
            start, tip = places[edge.source], places[edge.target]
            points = (start, start, tip, tip)
        curves[int(one["comment"])] = Curve(points, tip, edge.label, at(one["lp"]) if "lp" in one else None)
    ordered = tuple(curves[place] for place in range(len(graph.edges)))
    frames.sort(key=lambda frame: frame.title.count("."))
    return Layout(right - left, high, boxes, ordered, tuple(frames))
