"""The interactive page of a graph: step through it forward and backward, and see what every edge does."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import torch
from torch import Tensor

from anaphor.inspect.graph import numbers
from anaphor.inspect.graph.differentiate import Local, local
from anaphor.inspect.graph.drawing import thumbnail
from anaphor.inspect.graph.graph import Edge, Graph, Node
from anaphor.inspect.graph.layout import Box, Curve, laid_out
from anaphor.inspect.page import one_file

MATRIX = 64
"""Numbers of a local derivative that is written out."""


def page_of(graph: Graph) -> str:
    """One file: markup, style, script and data. It offers the other levels too, where they differ."""
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
    return one_file(content, "graph.html", ("data.js", "graph.js"), ("page.css", "graph.css"))


def _level(graph: Graph) -> dict[str, Any]:
    layout = laid_out(graph)
    return {
        "name": graph.level,
        "wide": _short(layout.wide),
        "high": _short(layout.high),
        "nodes": [
            _node(node, box, node.id in graph.outputs) for node, box in zip(graph.nodes, layout.boxes, strict=True)
        ],
        "edges": [_edge(graph, edge, curve) for edge, curve in zip(graph.edges, layout.curves, strict=True)],
        "frames": [
            {"title": frame.title, "at": [_short(x) for x in (frame.left, frame.top, frame.right, frame.bottom)]}
            for frame in layout.frames
        ],
    }


def _node(node: Node, box: Box, is_output: bool) -> dict[str, Any]:
    return {
        "id": node.id,
        "name": node.name,
        "title": box.title,
        "op": node.op,
        "formula": node.formula,
        "where": node.where,
        "leaf": node.is_leaf,
        "output": is_output,
        "shape": list(node.value.shape),
        "type": str(node.value.dtype).removeprefix("torch."),
        "value": list(box.value),
        "gradient": list(box.gradient) if node.gradient is not None else None,
        "allValue": numbers.table(node.value, node.exact_value),
        "allGradient": None if node.gradient is None else numbers.table(node.gradient, node.exact_gradient),
        "box": [_short(x) for x in (box.x, box.y, box.wide, box.high)],
        "picture": _picture(node.value, box.picture) if box.picture else None,
        "gradientPicture": _picture(node.gradient, box.picture) if box.picture and node.gradient is not None else None,
    }


def _edge(graph: Graph, edge: Edge, curve: Curve) -> dict[str, Any]:
    node, before = graph[edge.target], graph[edge.source]
    inputs = tuple(graph[one].number for one in node.inputs)
    found = local(graph.source, node.number, before.number, node.calls, inputs, MATRIX)
    return {
        "source": edge.source,
        "target": edge.target,
        "label": edge.label,
        "points": [[_short(x), _short(y)] for x, y in curve.points],
        "tip": [_short(x) for x in curve.tip],
        "labelAt": None if curve.label_at is None else [_short(x) for x in curve.label_at],
        "derivative": None if found is None else _derivative(found, node, before),
        "share": None if found is None else numbers.rows(found.share, found.exact_share),
    }


def _derivative(found: Local, node: Node, before: Node) -> list[str]:
    """The matrix of slopes as people write it: a number, a diagonal, or rows."""
    if found.jacobian is None:
        return [f"a matrix of {node.value.numel():,} × {before.value.numel():,} slopes"]
    matrix, exact = found.jacobian, found.exact_jacobian
    if matrix.shape == (1, 1):
        return numbers.rows(matrix[0, 0], None if exact is None else exact[0, 0:1].reshape(()))
    if node.value.shape == before.value.shape and not bool((matrix - matrix.diag().diag()).any()):
        diagonal = None if exact is None else exact.diagonal()
        return [f"diagonal {numbers.line(matrix.diag(), diagonal)}"]
    return numbers.table(matrix, exact)


def _picture(value: Tensor, high: float) -> dict[str, Any]:
    small = thumbnail(value)
    peak = float(small.abs().max()) or 1.0
    raw = (128 + 127 * small / peak).round().to(torch.uint8).contiguous().numpy().tobytes()
    packed = base64.b64encode(zlib.compress(raw)).decode()
    return {"rows": small.shape[0], "columns": small.shape[1], "cells": packed, "high": high}


def _short(value: float) -> float:
    return round(float(value), 1)
