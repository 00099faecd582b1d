"""The interactive page of a graph: step through forward and backward pass, with the derivative of every edge."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anaphor.inspect.page import SHARED, render_page
from anaphor.trace import formatting
from anaphor.trace.drawing import Box, Curve, compute_layout, thumbnail
from anaphor.trace.gradients import LocalDerivative, local_derivative
from anaphor.trace.graph import Edge, Graph, Node
from anaphor.trace.rounding import zero_if_rounding

STATIC = Path(__file__).with_name("static")
MAX_JACOBIAN = 64
"""Largest Jacobian that is written in full."""


def build_page(graph: Graph) -> str:
    """One self-contained HTML file. It also contains the other levels of detail, if they differ."""
    graphs = [graph]
    for level in ("operations", "names", "modules"):
        other = graph.at(level)
        if all({node.number for node in other.nodes} != {node.number for node in one.nodes} for one in graphs):
            graphs.append(other)
    content = {
        "function": graph.name,
        "differentiated": graph.differentiated,
        "notes": list(graph.notes),
        "levels": [_level(one) for one in graphs],
    }
    scripts = (*SHARED, "data.js", STATIC / "graph.js")
    return render_page(content, STATIC / "graph.html", scripts, ("page.css", STATIC / "graph.css"))


def _level(graph: Graph) -> dict[str, Any]:
    layout = compute_layout(graph)
    return {
        "name": graph.level,
        "wide": _round(layout.wide),
        "high": _round(layout.high),
        "nodes": [_node(graph, node, box) for node, box in zip(graph.nodes, layout.boxes, strict=True)],
        "edges": [_edge(graph, edge, curve) for edge, curve in zip(graph.edges, layout.curves, strict=True)],
        "frames": [
            {"title": frame.title, "at": [_round(x) for x in (frame.left, frame.top, frame.right, frame.bottom)]}
            for frame in layout.frames
        ],
    }


def _node(graph: Graph, node: Node, box: Box) -> dict[str, Any]:
    value, gradient = graph.shown(node)
    return {
        **{key: getattr(node, key) for key in ("id", "name", "op", "formula", "where")},
        "title": box.title,
        "leaf": node.is_leaf,
        "output": node.id in graph.outputs,
        "shape": list(node.value.shape),
        "type": str(node.value.dtype).removeprefix("torch."),
        "value": list(box.value),
        "gradient": list(box.gradient) if node.gradient is not None else None,
        "allValue": formatting.format_table(value, node.exact_value),
        "allGradient": None if gradient is None else formatting.format_table(gradient, node.exact_gradient),
        "box": [_round(x) for x in (box.x, box.y, box.wide, box.high)],
        "picture": _picture(node.value, box.picture) if box.picture else None,
    }


def _edge(graph: Graph, edge: Edge, curve: Curve) -> dict[str, Any]:
    node, before = graph[edge.target], graph[edge.source]
    inputs = tuple(graph[one].number for one in node.inputs)
    derivative = local_derivative(graph.source, node.number, before.number, node.calls, inputs, MAX_JACOBIAN)
    share = None
    if derivative is not None:
        error = graph.source.errors[1].get(before.number)
        share = formatting.format_rows(zero_if_rounding(derivative.share, error), derivative.exact_share)
    return {
        "source": edge.source,
        "target": edge.target,
        "label": edge.label,
        "points": [[_round(x), _round(y)] for x, y in curve.points],
        "tip": [_round(x) for x in curve.tip],
        "labelAt": None if curve.label_at is None else [_round(x) for x in curve.label_at],
        "derivative": None if derivative is None else _format_jacobian(derivative, node, before),
        "share": share,
    }


def _format_jacobian(derivative: LocalDerivative, node: Node, before: Node) -> list[str]:
    """A number, a diagonal, or the rows of the matrix."""
    if derivative.jacobian is None:
        return [f"a matrix of {node.value.numel():,} × {before.value.numel():,} derivatives"]
    matrix, exact = derivative.jacobian, derivative.exact_jacobian
    if matrix.shape == (1, 1):
        return formatting.format_rows(matrix[0, 0], None if exact is None else exact[0, 0:1].reshape(()))
    if node.value.shape == before.value.shape and not bool((matrix - matrix.diag().diag()).any()):
        diagonal = None if exact is None else exact.diagonal()
        return [f"diagonal {formatting.format_line(matrix.diag(), diagonal)}"]
    return formatting.format_table(matrix, exact)


def _picture(value: Tensor, high: float) -> dict[str, Any]:
    small = thumbnail(value)
    peak = float(small.abs().max()) or 1.0
    raw = (128 + 127 * small / peak).round().to(torch.uint8).contiguous().numpy().tobytes()
    packed = base64.b64encode(zlib.compress(raw)).decode()
    return {"rows": small.shape[0], "columns": small.shape[1], "cells": packed, "high": high}


def _round(value: float) -> float:
    return round(float(value), 1)
