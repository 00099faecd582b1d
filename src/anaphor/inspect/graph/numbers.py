"""Numbers as people and programs read them: fractions where they are exact, four digits where they are not."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

FULL = 64
"""Numbers that a tensor may have to be written out in JSON."""
SMALL = 16
"""Numbers that a tensor may have to be written out in a drawing."""
LONGEST_LINE = 48
"""Letters that a tensor may take in a line of text."""
LARGEST_DENOMINATOR = 99_999
"""Beyond that a fraction says less than a decimal number."""


def plain(tensor: Tensor, exact: Any = None) -> Any:
    """A number, nested lists of numbers, or shape and norm where there are too many. Fractions are text: "1/12"."""
    if tensor.numel() > FULL or tensor.is_complex():
        return {"shape": list(tensor.shape), "norm": finite(norm(tensor))}
    if exact is not None and is_short(exact):
        return _mapped(exact.tolist(), _fraction)
    return _mapped(tensor.tolist(), finite)


def is_short(exact: Any) -> bool:
    """Whether all fractions are simple enough to be shown."""
    return all(part.denominator <= LARGEST_DENOMINATOR for part in exact.ravel())


def _mapped(value: Any, function: Any) -> Any:
    return [_mapped(part, function) for part in value] if isinstance(value, list) else function(value)


def _fraction(value: Fraction) -> int | str:
    return int(value) if value.denominator == 1 else str(value)


def finite(value: Any) -> Any:
    """JSON has no name for what is not a finite number."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def written(value: Any) -> str:
    """One number for people."""
    if isinstance(value, Fraction):
        return str(value).replace("-", "−")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value).replace("-", "−")
    if value == int(value) if math.isfinite(value) else False:
        return (f"{value:z.0f}" if abs(value) < 1e5 else f"{value:.4g}").replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def is_small(tensor: Tensor) -> bool:
    """Whether a drawing writes all its numbers."""
    squeezed = _squeezed(list(tensor.shape))
    return (
        not tensor.is_complex()
        and tensor.numel() <= SMALL
        and len(squeezed) <= 2
        and (not squeezed or squeezed[-1] <= 6)
    )


def _squeezed(shape: list[int]) -> list[int]:
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    return shape


def rows(tensor: Tensor, exact: Any = None) -> list[str]:
    """Lines for a drawing: a number, a vector (a, b), a matrix row by row, or shape and norm."""
    if not is_small(tensor):
        if not tensor.is_floating_point() and not tensor.is_complex():
            return [size(tensor), f"{int(tensor.min())} … {int(tensor.max())}"]
        return [size(tensor), f"norm {written(norm(tensor))}"]
    shape = _squeezed(list(tensor.shape))
    values: Any = tensor.detach().reshape(shape).tolist()
    if exact is not None and is_short(exact):
        values = exact.reshape(shape).tolist()
    if not shape:
        return [written(values)]
    if len(shape) == 1:
        return [f"({', '.join(written(part) for part in values)})"]
    cells = [[written(part) for part in row] for row in values]
    if not cells or not cells[0]:
        return [size(tensor)]
    widths = [max(len(row[column]) for row in cells) for column in range(shape[1])]
    return [f"[{' '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))}]" for row in cells]


def norm(tensor: Tensor) -> float:
    precise = tensor.detach() if tensor.is_complex() else tensor.detach().double()
    return float(torch.linalg.vector_norm(precise))


def size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "1"


def line(tensor: Tensor, exact: Any = None) -> str:
    """All in one line, as far as it does not get long."""
    if is_small(tensor):
        told = " ".join(" ".join(row.split()).replace("[ ", "[") for row in rows(tensor, exact))
        if len(told) <= LONGEST_LINE:
            return told
    return f"{size(tensor)} norm {written(norm(tensor))}" if tensor.is_floating_point() else " ".join(rows(tensor))


def table(tensor: Tensor, exact: Any = None) -> list[str]:
    """As many numbers as fit on a page: all of them row by row, or shape and norm."""
    if is_small(tensor) or tensor.is_complex() or not 0 < tensor.numel() <= FULL or not tensor.ndim:
        return rows(tensor, exact)
    shape = (-1, tensor.shape[-1])
    values: Any = tensor.detach().reshape(shape).tolist()
    if exact is not None and is_short(exact):
        values = exact.reshape(shape).tolist()
    return [size(tensor), *(" ".join(written(part) for part in row) for row in values)]
