"""Numbers as text and as JSON: fractions if exact, otherwise with some significant digits, by default four."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

DIGITS = 4
"""Significant digits of a number that is no short fraction."""
MAX_JSON = 64
"""Largest tensor that is written in full in JSON."""
MAX_DRAWN = 16
"""Largest tensor that is written in full in a drawing."""
MAX_LINE = 48
"""Characters of a tensor in a line of text."""
MAX_DENOMINATOR = 99_999
"""Fractions with larger denominators are written as decimals."""


def to_json(tensor: Tensor, exact: Any = None) -> Any:
    """For JSON: a number, nested lists, or shape and norm of a large tensor. Fractions are strings: "1/12"."""
    if tensor.numel() > MAX_JSON or tensor.is_complex():
        return {"shape": list(tensor.shape), "norm": json_number(norm(tensor))}
    if exact is not None and is_short(exact):
        return _map_numbers(exact.tolist(), _fraction)
    return _map_numbers(tensor.tolist(), json_number)


def is_short(exact: Any) -> bool:
    """Whether all denominators are small enough to write fractions."""
    return all(part.denominator <= MAX_DENOMINATOR for part in exact.ravel())


def _map_numbers(value: Any, function: Any) -> Any:
    return [_map_numbers(part, function) for part in value] if isinstance(value, list) else function(value)


def _fraction(value: Fraction) -> int | str:
    return int(value) if value.denominator == 1 else str(value)


def json_number(value: Any) -> Any:
    """Non-finite numbers as strings, because JSON has none."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def format_number(value: Any, digits: int = DIGITS) -> str:
    """One number as text."""
    if isinstance(value, Fraction):
        return str(value).replace("-", "−")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value).replace("-", "−")
    if math.isfinite(value) and value == int(value):
        return (f"{value:z.0f}" if abs(value) < 1e5 else f"{value:.4g}").replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def is_small(tensor: Tensor) -> bool:
    """Whether a drawing shows all numbers of a tensor."""
    squeezed = _squeeze(list(tensor.shape))
    return (
        not tensor.is_complex()
        and tensor.numel() <= MAX_DRAWN
        and len(squeezed) <= 2
        and (not squeezed or squeezed[-1] <= 6)
    )


def _squeeze(shape: list[int]) -> list[int]:
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    return shape


def format_rows(tensor: Tensor, exact: Any = None, digits: int = DIGITS) -> list[str]:
    """Lines for a drawing: a number, a vector (a, b), the rows of a matrix, or shape and norm."""
    if not is_small(tensor):
        if not tensor.is_floating_point() and not tensor.is_complex():
            return [format_shape(tensor), f"{int(tensor.min())} … {int(tensor.max())}"]
        return [format_shape(tensor), f"norm {format_number(norm(tensor), digits)}"]
    shape = _squeeze(list(tensor.shape))
    values: Any = tensor.detach().reshape(shape).tolist()
    if exact is not None and is_short(exact):
        values = exact.reshape(shape).tolist()
    if not shape:
        return [format_number(values, digits)]
    if len(shape) == 1:
        return [f"({', '.join(format_number(part, digits) for part in values)})"]
    cells = [[format_number(part, digits) for part in row] for row in values]
    if not cells or not cells[0]:
        return [format_shape(tensor)]
    widths = [max(len(row[column]) for row in cells) for column in range(shape[1])]
    return [f"[{' '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))}]" for row in cells]


def norm(tensor: Tensor) -> float:
    precise = tensor.detach() if tensor.is_complex() else tensor.detach().double()
    return float(torch.linalg.vector_norm(precise))


def format_shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "1"


def format_line(tensor: Tensor, exact: Any = None) -> str:
    """A tensor in one line: all numbers if they fit, otherwise shape and norm."""
    if is_small(tensor):
        text = " ".join(" ".join(row.split()).replace("[ ", "[") for row in format_rows(tensor, exact))
        if len(text) <= MAX_LINE:
            return text
    if not tensor.is_floating_point():
        return " ".join(format_rows(tensor))
    return f"{format_shape(tensor)} norm {format_number(norm(tensor))}"


def format_table(tensor: Tensor, exact: Any = None) -> list[str]:
    """Lines for the page: all numbers row by row, or shape and norm of a large tensor."""
    if is_small(tensor) or tensor.is_complex() or not 0 < tensor.numel() <= MAX_JSON or not tensor.ndim:
        return format_rows(tensor, exact)
    shape = (-1, tensor.shape[-1])
    values: Any = tensor.detach().reshape(shape).tolist()
    if exact is not None and is_short(exact):
        values = exact.reshape(shape).tolist()
    return [format_shape(tensor), *(" ".join(format_number(part) for part in row) for row in values)]
