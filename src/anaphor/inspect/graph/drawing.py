"""A graph as a figure: names and signs, values in blue, gradients in orange."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from anaphor.draw import COLORS
from anaphor.errors import ConfigError
from anaphor.inspect.graph.graph import Graph, Node
from anaphor.inspect.graph.layout import LINE, PICTURE, Box, Layout, laid_out

VALUE, GRADIENT = COLORS[0], "#B84A00"
FILLS = {"input": "#EAF3FA", "parameter": "#F3EEF7", "constant": "#F1F1EF"}
ENDINGS = (".png", ".svg", ".pdf", ".html")
EDGE = 12.0
"""Points left free round everything."""
MOST_DOTS = 9_000
"""Along one side of a PNG: viewers give up on larger ones."""


def draw_graph(graph: Graph, paths: Sequence[Path]) -> list[Path]:
    """Write a figure or a page to each path."""
    for path in paths:
        if path.suffix.lower() not in ENDINGS:
            raise ConfigError(f"{path} ends in {path.suffix or 'nothing'}: a drawing ends in {', '.join(ENDINGS)}")
    figure = None
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".html":
            path.write_text(graph.page(), encoding="utf-8")
            continue
        figure = figure or _figure(graph)
        _save(figure, path)
    return list(paths)


def _save(figure: Any, path: Path) -> None:
    import matplotlib

    dots = min(160, MOST_DOTS / max(figure.get_size_inches()))
    # Text stays text: it can be searched for, and the file is a tenth as large. The salt keeps repeated drawings equal.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "anaphor", "image.composite_image": False}):
        more: dict[str, dict[str, Any]] = {
            ".svg": {"metadata": {"Date": None}},
            ".pdf": {"metadata": {"CreationDate": None}},
            ".png": {"pil_kwargs": {"compress_level": 4}},
        }
        figure.savefig(path, dpi=dots, **more[path.suffix.lower()])


def _figure(graph: Graph) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layout = laid_out(graph)
    caption = f"gradients of {graph.differentiated}"
    wide = max(layout.wide, len(caption) * 5.2) + 2 * EDGE
    high = layout.high + 2 * EDGE + LINE
    figure = Figure(figsize=(wide / 72, high / 72), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(-EDGE, wide - EDGE), ylim=(high - EDGE, -EDGE))
    _frames(axes, layout)
    _edges(axes, layout)
    for node, box in zip(graph.nodes, layout.boxes, strict=True):
        _node(axes, node, box, node.id in graph.outputs)
    axes.text(0, layout.high + LINE, caption, fontsize=8.5, color="0.35", va="center", parse_math=False)
    return figure


def _frames(axes: Any, layout: Layout) -> None:
    from matplotlib.patches import FancyBboxPatch

    for frame in layout.frames:
        style: dict[str, Any] = {
            "boxstyle": "round,pad=0,rounding_size=5",
            "edgecolor": "0.72",
            "facecolor": (0, 0, 0, 0.025),
        }
        size = frame.right - frame.left, frame.bottom - frame.top
        axes.add_patch(FancyBboxPatch((frame.left, frame.top), *size, linewidth=0.8, zorder=0, **style))
        axes.text(frame.left + 5, frame.top + 9, frame.title, fontsize=8, color="0.4", va="center", parse_math=False)


def _edges(axes: Any, layout: Layout) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    for curve in layout.curves:
        codes = [Outline.MOVETO, *[Outline.CURVE4] * (len(curve.points) - 1)]
        axes.add_patch(
            PathPatch(Outline(curve.points, codes), facecolor="none", edgecolor="0.45", linewidth=0.9, zorder=1)
        )
        axes.annotate(
            "",
            xy=curve.tip,
            xytext=curve.points[-1],
            arrowprops={
                "arrowstyle": "-|>,head_length=0.35,head_width=0.16",
                "color": "0.45",
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
        if curve.label_at is not None:
            axes.text(*curve.label_at, curve.label.replace("ᵀ", "T"), **_writing("0.25", 9))


def _writing(colour: str, size: float = 10.0, weight: str = "normal") -> dict[str, Any]:
    family = ["DejaVu Sans Mono", "monospace"]
    return {"fontsize": size, "family": family, "color": colour, "weight": weight, "ha": "center", "va": "center",
            "parse_math": False, "zorder": 4}  # fmt: skip


def _node(axes: Any, node: Node, box: Box, is_output: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, top = box.x - box.wide / 2, box.y - box.high / 2
    axes.add_patch(
        FancyBboxPatch(
            (left, top), box.wide, box.high, boxstyle="round,pad=0,rounding_size=5",
            facecolor=FILLS.get(node.op, "white"), edgecolor="black" if is_output else "0.35",
            linewidth=1.8 if is_output else 0.9, zorder=2,
        )
    )  # fmt: skip
    y = top + 3 + LINE / 2
    axes.text(box.x, y, box.title, **_writing("black", weight="bold"))
    for lines, colour in ((box.value, VALUE), (box.gradient, GRADIENT)):
        for text in lines:
            y += LINE
            axes.text(box.x, y, text, **_writing(colour))
    if box.picture:
        _picture(axes, node.value, box, y + LINE / 2 + 1)


def _picture(axes: Any, value: Tensor, box: Box, top: float) -> None:
    picture = thumbnail(value)
    high, wide = picture.shape
    side = PICTURE - 4
    half, tall = side * min(1.0, wide / high) / 2, min(side * high / wide, side)
    tall = min(max(tall, 5.0), box.picture - 4)
    middle = top + (box.picture - 4) / 2
    peak = float(picture.abs().max()) or 1.0
    extent = (box.x - half, box.x + half, middle + tall / 2, middle - tall / 2)
    axes.imshow(
        picture.numpy(),
        cmap="PuOr_r",
        vmin=-peak,
        vmax=peak,
        extent=extent,
        zorder=3,
        aspect="auto",
        interpolation="nearest",
    )
    axes.add_patch(_rim(extent))


def _rim(extent: tuple[float, float, float, float]) -> Any:
    from matplotlib.patches import Rectangle

    left, right, bottom, top = extent
    return Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="0.6", linewidth=0.6, zorder=3.5)


def thumbnail(value: Tensor, side: int = 32) -> Tensor:
    """A tensor as a small matrix: all but its last dimension along one side, averages where there are too many."""
    from torch.nn import functional as F

    matrix = (value.detach().abs() if value.is_complex() else value.detach()).double().cpu()
    matrix = matrix.reshape(-1, matrix.shape[-1]) if matrix.ndim > 1 else matrix[None]
    matrix = matrix.nan_to_num(0.0, 0.0, 0.0)
    size = min(side, matrix.shape[0]), min(side, matrix.shape[1])
    return F.adaptive_avg_pool2d(matrix[None], size)[0]
