"""Where two outputs differ, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-4
"""Relative to the largest value: wide enough for another epsilon in a norm, and far below what a mistake changes."""
LOOSE = 2e-3
"""For computations in single precision."""


@dataclass(frozen=True)
class Difference:
    """How an output differs from what was expected."""

    kind: str
    """'value', 'shape', 'type' or 'nan'."""
    text: str
    gap: float = math.inf


def find_difference(found: Any, expected: Any, tolerance: float = TOLERANCE) -> Difference | None:
    """How a value differs; None where it agrees."""
    if isinstance(expected, Tensor):
        return _compare_tensors(found, expected, tolerance)
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        return _compare_lists(found, expected, tolerance)
    if isinstance(found, Tensor) and found.numel() == 1:
        found = found.item()
    if isinstance(expected, float):
        if not isinstance(found, int | float):
            return Difference("type", f"is {_show(found)}, expected a number")
        if math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance):
            return None
        return Difference("value", f"is {found:.6g}, expected {expected:.6g}", abs(found - expected))
    return None if found == expected else Difference("value", f"is {_show(found)}, expected {_show(expected)}")


def _compare_lists(found: Any, expected: Sequence[Any], tolerance: float) -> Difference | None:
    if isinstance(found, Tensor):
        found = found.tolist()
    if not isinstance(found, list | tuple):
        return Difference("type", f"is {_show(found)}, expected a list like {_show(expected)}")
    if len(found) != len(expected):
        items = f"has {len(found)} items, expected {len(expected)}"
        return Difference("shape", f"{items}: {_show(found)}, expected {_show(expected)}")
    for number, (one, wanted) in enumerate(zip(found, expected, strict=True)):
        difference = find_difference(one, wanted, tolerance)
        if difference is not None:
            return Difference(difference.kind, f"[{number}] {difference.text}", difference.gap)
    return None


def _compare_tensors(found: Any, expected: Tensor, tolerance: float) -> Difference | None:
    if not isinstance(found, Tensor):
        try:
            found = torch.as_tensor(found)
        except (TypeError, ValueError, RuntimeError):
            return Difference("type", f"is of type {type(found).__name__}, expected a tensor")
    if found.shape != expected.shape:
        return Difference("shape", f"has the shape {list(found.shape)}, expected {list(expected.shape)}")
    found, expected = found.detach().to(torch.float64), expected.detach().to(torch.float64)
    is_close = _is_close(found, expected, tolerance)
    if is_close.all():
        return None
    is_nan = found.isnan() & ~expected.isnan()
    if is_nan.any():
        return Difference("nan", f"is NaN at {_index(is_nan)} and {int(is_nan.sum()) - 1} other places")
    gap = (found - expected).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(is_close, 0)
    worst = gap == gap.max()
    value, wanted = found[worst][0].item(), expected[worst][0].item()
    at = f" at {_index(worst)}" if found.ndim else ""
    rest = f"; {int((~is_close).sum())} of {found.numel()} values differ" if found.numel() > 1 else ""
    return Difference("value", f"is {value:.4g}{at}, expected {wanted:.4g}{rest}", float(gap.mean()))


def _is_close(found: Tensor, expected: Tensor, tolerance: float) -> Tensor:
    """Elementwise, relative to the largest value, unless that is one that masks."""
    scale = expected.abs().nan_to_num(posinf=1.0).max().clamp(1, 100).item() if expected.numel() else 1.0
    return torch.isclose(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _index(where: Tensor) -> str:
    return str(where.nonzero()[0].tolist()) if where.ndim else ""


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def agrees(found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float = TOLERANCE) -> bool:
    """Whether every output that was found agrees with the one expected."""
    return all(name in expected and _is_same(found[name], expected[name], tolerance) for name in found)


def _is_same(found: Any, expected: Any, tolerance: float) -> bool:
    """As `find_difference`, without a description: thousands of variants are compared."""
    if isinstance(found, Tensor) and isinstance(expected, Tensor):
        if found.shape != expected.shape:
            return False
        return bool(_is_close(found.detach().double(), expected.detach().double(), tolerance).all())
    return find_difference(found, expected, tolerance) is None


FAR = 1e9
"""A difference that is worse than any of values."""


def measure(found: Any, expected: Any) -> tuple[float, float]:
    """The share of values that agree, and the mean difference of all."""
    if isinstance(found, Tensor) and isinstance(expected, Tensor) and found.shape == expected.shape and found.numel():
        found, expected = found.detach().double(), expected.detach().double()
        gap = (found - expected).abs().nan_to_num(nan=FAR, posinf=FAR).clamp(max=FAR)
        return float(_is_close(found, expected, LOOSE).double().mean()), float(gap.mean())
    difference = None if expected is None else find_difference(found, expected)
    if expected is not None and difference is None:
        return 1.0, 0.0
    return 0.0, FAR if difference is None else min(difference.gap, FAR)
