"""Layout of a graph by Graphviz, and the graph as a figure: values in blue, gradients in orange.

Boxes are measured in characters of a fixed width, so that figure and page share one layout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anaphor.draw import COLORS
from anaphor.errors import ConfigError
from anaphor.files import open_file, write_file
from anaphor.trace import formatting

if TYPE_CHECKING:
    from anaphor.trace.graph import Graph, Node

LETTER, LINE, MARGIN = 6.1, 13.0, 6.0
"""In points at font size 10: width of a character, height of a line, margin around the text."""
KEY_LETTER = 5.2
"""Width of a character of the key, at font size 8.5."""
PICTURE = 54.0
"""Side of a thumbnail in points."""
ACROSS = 14
"""Graphs up to this depth are drawn from left to right, deeper ones from top to bottom."""
PAGE_WIDTH = 900.0
"""Graphs that would be wider, in points, are drawn from top to bottom if that is narrower: text stays readable."""


@dataclass(frozen=True)
class Box:
    """A node in the drawing: center and size in points from the top left, and its text."""

    x: float
    y: float
    wide: float
    high: float
    title: str
    value: tuple[str, ...]
    gradient: tuple[str, ...]
    picture: float
    """Height of the thumbnail below the text; 0 without one."""


@dataclass(frozen=True)
class Curve:
    """An edge: points of its Bézier curve, tip of its arrow, position of its label."""

    points: tuple[tuple[float, float], ...]
    tip: tuple[float, float]
    label: str
    label_at: tuple[float, float] | None


@dataclass(frozen=True)
class Frame:
    """The frame around a module."""

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
    """Outermost first."""


def node_title(node: Node, frames: Collection[str]) -> str:
    """Name and symbol: `z1  ×`. An unnamed result has only its symbol, and a name does not repeat the frame's."""
    if not node.is_leaf and not node.named:
        return node.label
    around = node.module
    while around and around not in frames:
        around = around.rpartition(".")[0]
    name = node.name.removeprefix(f"{around}.") if around else node.name
    name_only = node.is_leaf or name == node.label or node.label.startswith(("[", "ᵀ"))  # the edge shows it
    return name if name_only else f"{name}  {node.label}"


def compute_layout(graph: Graph, digits: int = formatting.DIGITS) -> Layout:
    if _depth(graph) > ACROSS:
        return _layout(graph, "TB", digits)
    across = _layout(graph, "LR", digits)
    if across.wide <= PAGE_WIDTH:
        return across
    down = _layout(graph, "TB", digits)
    return down if down.wide < across.wide else across


def _layout(graph: Graph, direction: str, digits: int) -> Layout:
    import pygraphviz

    drawing = pygraphviz.AGraph(directed=True, strict=False)
    spacing = {"nodesep": "0.22", "ranksep": "0.4"}
    drawing.graph_attr.update(rankdir=direction, newrank="true", outputorder="edgesfirst", **spacing)
    if direction == "LR":
        drawing.graph_attr["ordering"] = "out"  # what reads a node is drawn in the order of the code
    # Without text the layout needs no fonts and is the same on every machine.
    drawing.node_attr.update(label="", shape="box", fixedsize="true")
    frames = _frames(graph)
    sizes = [_measure_box(graph, node, frames, digits) for node in graph.nodes]
    for node, size in zip(graph.nodes, sizes, strict=True):
        drawing.add_node(node.id, width=size.wide / 72, height=size.high / 72)
    for place, edge in enumerate(graph.edges):
        label = {"label": _spacer(len(edge.label) * LETTER + 4, LINE)} if edge.label else {}
        drawing.add_edge(edge.source, edge.target, key=place, comment=place, **label)
    _add_frames(drawing, frames)
    found = json.loads(drawing.draw(format="json0", prog="dot"))
    return _read(graph, found, sizes)


def _depth(graph: Graph) -> int:
    length: dict[int, int] = {}
    for node in graph.nodes:
        length[node.id] = 1 + max((length[one] for one in node.inputs), default=0)
    return max(length.values())


def _measure_box(graph: Graph, node: Node, frames: Collection[str], digits: int) -> Box:
    shown_value, shown_gradient = graph.shown(node)
    value = tuple(formatting.format_rows(shown_value, node.exact_value, digits))
    gradient: tuple[str, ...] = ()
    if node.gradient is not None and shown_gradient is not None:
        gradient = tuple(formatting.format_rows(shown_gradient, node.exact_gradient, digits))
        if not formatting.is_small(node.gradient):
            gradient = gradient[1:]  # its shape is that of the value
    title = node_title(node, frames)
    picture = thumbnail_height(node)
    lines = [title, *value, *gradient]
    wide = max(max(map(len, lines)) * LETTER, PICTURE if picture else 0.0) + 2 * MARGIN
    return Box(0, 0, max(wide, 34.0), len(lines) * LINE + MARGIN + picture, title, value, gradient, picture)


def thumbnail_height(node: Node) -> float:
    """Height of the thumbnail of a large tensor in points; 0 if all numbers are shown."""
    if formatting.is_small(node.value) or not node.value.numel() or not node.value.ndim:
        return 0.0
    rows = node.value.numel() // node.value.shape[-1]
    return min(PICTURE, 12.0 + 3.0 * rows)


def _spacer(wide: float, high: float) -> str:
    """An empty table of the label's size, which reserves its space."""
    size = f'FIXEDSIZE="TRUE" WIDTH="{round(wide)}" HEIGHT="{round(high)}"'
    return f'<<TABLE BORDER="0" {size}><TR><TD></TD></TR></TABLE>>'


def _frames(graph: Graph) -> dict[str, list[int]]:
    """Paths of modules with a frame, outermost first, and the nodes inside."""
    members: dict[str, list[int]] = {}
    for node in graph.nodes:
        parts = node.module.split(".") if node.module else []
        for depth in range(1, len(parts) + 1):
            members.setdefault(".".join(parts[:depth]), []).append(node.id)
    kept: dict[str, list[int]] = {}
    for path, inside in sorted(members.items(), key=lambda one: one[0].count(".")):
        # No frame around a single node, and only the inner one of two around the same nodes.
        within = [other for other in members.items() if other[0].startswith(f"{path}.") and other[1] == inside]
        if len(inside) > 1 and not within:
            kept[path] = inside
    return kept


def _add_frames(drawing: Any, frames: dict[str, list[int]]) -> None:
    clusters: dict[str, Any] = {}
    for path, inside in frames.items():
        outer = path.rpartition(".")[0]
        while outer and outer not in clusters:
            outer = outer.rpartition(".")[0]
        options = {"name": f"cluster {path}", "label": _spacer(len(path) * LETTER + 8, 12), "comment": path}
        clusters[path] = clusters.get(outer, drawing).add_subgraph(inside, labeljust="l", **options)


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
    centers = (places[node.id] for node in graph.nodes)
    boxes = tuple(replace(size, x=x, y=y) for (x, y), size in zip(centers, sizes, strict=True))
    curves: dict[int, Curve] = {}
    for one in found.get("edges", ()):
        edge = graph.edges[int(one["comment"])]
        words = one.get("pos", "").split()
        points = tuple(at(word) for word in words if not re.match(r"[es],", word))
        tip = next((at(word) for word in words if word.startswith("e,")), points[-1] if points else (0.0, 0.0))
        if not points:  # very rarely Graphviz finds no route
            start, tip = places[edge.source], places[edge.target]
            points = (start, start, tip, tip)
        curves[int(one["comment"])] = Curve(points, tip, edge.label, at(one["lp"]) if "lp" in one else None)
    ordered = tuple(curves[place] for place in range(len(graph.edges)))
    frames.sort(key=lambda frame: frame.title.count("."))
    return Layout(right - left, high, boxes, ordered, tuple(frames))


VALUE, GRADIENT = COLORS[0], "#B84A00"
FILLS = {"input": "#EAF3FA", "parameter": "#F3EEF7", "constant": "#F1F1EF"}
ROUNDED = "round,pad=0,rounding_size=5"
ARROW = {"arrowstyle": "-|>,head_length=0.35,head_width=0.16", "color": "0.45", "shrinkA": 0, "shrinkB": 0}
SUFFIXES = (".png", ".svg", ".pdf", ".html")
EDGE = 12.0
"""Outer margin in points."""
MAX_PIXELS = 9_000
"""Largest side of a PNG in pixels; viewers fail on larger ones."""


def draw_graph(graph: Graph, paths: Sequence[Path], digits: int = formatting.DIGITS) -> list[Path]:
    """Write a figure, whose numbers have this many significant digits, or a page to each path."""
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise ConfigError(f"{path} has the suffix {path.suffix or '(none)'}: use {', '.join(SUFFIXES)}")
    figure = None
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".html":
            write_file(path, graph.page().encode())
            continue
        figure = figure or _figure(graph, digits)
        _save(figure, path)
    return list(paths)


def _save(figure: Any, path: Path) -> None:
    import matplotlib

    dpi = min(160, MAX_PIXELS / max(figure.get_size_inches()))
    # Text stays text: searchable, and a tenth of the file size. The salt makes repeated drawings identical.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "anaphor", "image.composite_image": False}):
        more: dict[str, dict[str, Any]] = {
            ".svg": {"metadata": {"Date": None}},
            ".pdf": {"metadata": {"CreationDate": None}},
            ".png": {"pil_kwargs": {"compress_level": 4}},
        }
        with open(open_file(path), "wb") as file:
            figure.savefig(file, dpi=dpi, format=path.suffix[1:].lower(), **more[path.suffix.lower()])


def _figure(graph: Graph, digits: int) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layout = compute_layout(graph, digits)
    key = _key(graph, layout)
    wide = max(layout.wide, sum(len(words) for words, _ in key) * KEY_LETTER) + 2 * EDGE
    high = layout.high + 2 * EDGE + LINE
    figure = Figure(figsize=(wide / 72, high / 72), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(-EDGE, wide - EDGE), ylim=(high - EDGE, -EDGE))
    _draw_frames(axes, layout)
    _draw_edges(axes, layout)
    for node, box in zip(graph.nodes, layout.boxes, strict=True):
        _draw_node(axes, node, box, node.id in graph.outputs)
    x = 0.0
    for words, color in key:
        axes.text(x, layout.high + LINE, words, **{**_text_style(color, 8.5), "ha": "left"})
        x += len(words) * KEY_LETTER
    return figure


def _key(graph: Graph, layout: Layout) -> list[tuple[str, str]]:
    """What is written below the graph, and in which color: the colors of numbers and of pictures."""
    key = [("values   ", VALUE), (f"gradients of {graph.differentiated}   ", GRADIENT)]
    if any(box.picture for box in layout.boxes):
        key.append(("pictures: purple is negative, orange positive", "0.35"))
    return key


def _draw_frames(axes: Any, layout: Layout) -> None:
    from matplotlib.patches import FancyBboxPatch

    for frame in layout.frames:
        style: dict[str, Any] = {"boxstyle": ROUNDED, "edgecolor": "0.72", "facecolor": (0, 0, 0, 0.025)}
        size = frame.right - frame.left, frame.bottom - frame.top
        axes.add_patch(FancyBboxPatch((frame.left, frame.top), *size, linewidth=0.8, zorder=0, **style))
        axes.text(frame.left + 5, frame.top + 9, frame.title, fontsize=8, color="0.4", va="center", parse_math=False)


def _draw_edges(axes: Any, layout: Layout) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    for curve in layout.curves:
        codes = [Outline.MOVETO, *[Outline.CURVE4] * (len(curve.points) - 1)]
        outline = Outline(curve.points, codes)
        axes.add_patch(PathPatch(outline, facecolor="none", edgecolor="0.45", linewidth=0.9, zorder=1))
        axes.annotate("", xy=curve.tip, xytext=curve.points[-1], arrowprops=ARROW)
        if curve.label_at is not None:
            axes.text(*curve.label_at, curve.label.replace("ᵀ", "T"), **_text_style("0.25", 9))


def _text_style(color: str, size: float = 10.0, weight: str = "normal") -> dict[str, Any]:
    family = ["DejaVu Sans Mono", "monospace"]
    return {"fontsize": size, "family": family, "color": color, "weight": weight, "ha": "center", "va": "center",
            "parse_math": False, "zorder": 4}  # fmt: skip


def _draw_node(axes: Any, node: Node, box: Box, is_output: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, top = box.x - box.wide / 2, box.y - box.high / 2
    style: dict[str, Any] = (
        {"edgecolor": "black", "linewidth": 1.8} if is_output else {"edgecolor": "0.35", "linewidth": 0.9}
    )
    color = FILLS.get(node.op, "white")
    axes.add_patch(
        FancyBboxPatch((left, top), box.wide, box.high, boxstyle=ROUNDED, facecolor=color, zorder=2, **style)
    )
    y = top + 3 + LINE / 2
    axes.text(box.x, y, box.title, **_text_style("black", weight="bold"))
    for lines, color in ((box.value, VALUE), (box.gradient, GRADIENT)):
        for text in lines:
            y += LINE
            axes.text(box.x, y, text, **_text_style(color))
    if box.picture:
        _draw_picture(axes, node.value, box, y + LINE / 2 + 1)


def _draw_picture(axes: Any, value: Tensor, box: Box, top: float) -> None:
    from matplotlib.patches import Rectangle

    picture = thumbnail(value)
    high, wide = picture.shape
    side = PICTURE - 4
    half, tall = side * min(1.0, wide / high) / 2, min(side * high / wide, side)
    tall = min(max(tall, 5.0), box.picture - 4)
    middle = top + (box.picture - 4) / 2
    peak = float(picture.abs().max()) or 1.0
    extent = (box.x - half, box.x + half, middle + tall / 2, middle - tall / 2)
    style: dict[str, Any] = {
        "cmap": "PuOr_r",
        "vmin": -peak,
        "vmax": peak,
        "aspect": "auto",
        "interpolation": "nearest",
    }
    axes.imshow(picture.numpy(), extent=extent, zorder=3, **style)
    corner = (box.x - half, middle - tall / 2)
    axes.add_patch(Rectangle(corner, 2 * half, tall, fill=False, edgecolor="0.6", linewidth=0.6, zorder=3.5))


def thumbnail(value: Tensor, side: int = 32) -> Tensor:
    """A tensor as a small matrix: leading dimensions flattened, average-pooled to at most `side` rows and columns."""
    from torch.nn import functional as F

    matrix = (value.detach().abs() if value.is_complex() else value.detach()).double().cpu()
    matrix = matrix.reshape(-1, matrix.shape[-1]) if matrix.ndim > 1 else matrix[None]
    matrix = matrix.nan_to_num(0.0, 0.0, 0.0)
    size = min(side, matrix.shape[0]), min(side, matrix.shape[1])
    return F.adaptive_avg_pool2d(matrix[None], size)[0]
