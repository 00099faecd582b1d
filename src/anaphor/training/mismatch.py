"""Mismatch: what of the tensors of a file is missing, unexpected or of another shape, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from anaphor.errors import CheckpointError

# A model has hundreds of tensors. The first few show what is wrong, the count how much.
LISTED = 6


@dataclass
class Mismatch:
    """Collects the differences of a file; `raise_if_any` turns them into one line."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Tensors of another shape or type, with both."""

    def compare(self, name: str, actual: Tensor, expected: Tensor, growing: int | None = None) -> None:
        """Note a tensor of another shape or kind; its size along the axis `growing` is free."""
        sizes: list[int | None] = list(expected.shape)
        given: list[int | None] = list(actual.shape)
        if growing is not None and len(given) == len(sizes):
            sizes[growing] = given[growing] = None
        if given != sizes:
            self.wrong.append(f"{name} is {format_shape(actual)} but should be {format_shape(expected)}")
        elif actual.is_floating_point() != expected.is_floating_point():
            self.wrong.append(f"{name} holds {_dtype(actual)} but should hold {_dtype(expected)}")

    def raise_if_any(self, what: str) -> None:
        """Raise an error unless everything fits."""
        parts = (("missing", self.missing), ("unexpected", self.unexpected), ("wrong", self.wrong))
        found = [f"{heading}: {_join(names)}" for heading, names in parts if names]
        if found:
            raise CheckpointError(f"{what} does not fit: {'; '.join(found)}")


def format_shape(tensor: Tensor) -> str:
    """The shape of a tensor for people."""
    return " × ".join(map(str, tensor.shape)) or "one number"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _join(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    # A hostile file may choose names of any length.
    text = ", ".join(name if len(name) <= 200 else f"{name[:200]}…" for name in names[:LISTED])
    return f"{text} and {more:,} more" if more > 0 else text
