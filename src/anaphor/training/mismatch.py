"""Mismatch: what a file holds against what is expected of it, told with names and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from anaphor.errors import CheckpointError

# A model has hundreds of tensors. The first few say what is wrong, the count says how much.
TOLD = 6


@dataclass
class Mismatch:
    """Collects differences while a file is compared; `refuse` turns them into one line."""

    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    """Tensors that are there and do not fit, with both sizes."""

    def compare(self, name: str, found: Tensor, wanted: Tensor, growing: int | None = None) -> None:
        """Note a tensor of another shape or kind; its size along the axis `growing` is free."""
        expected: list[int | None] = list(wanted.shape)
        actual: list[int | None] = list(found.shape)
        if growing is not None and len(actual) == len(expected):
            expected[growing] = actual[growing] = None
        if actual != expected:
            self.unlike.append(f"{name} is {size(found)} but should be {size(wanted)}")
        elif found.is_floating_point() != wanted.is_floating_point():
            self.unlike.append(f"{name} holds {_kind(found)} but should hold {_kind(wanted)}")

    def refuse(self, what: str) -> None:
        """Raise an error unless everything fits."""
        told = [
            f"{heading}: {_listed(names)}"
            for heading, names in (("missing", self.missing), ("extra", self.extra), ("unlike", self.unlike))
            if names
        ]
        if told:
            raise CheckpointError(f"{what} does not fit: {'; '.join(told)}")


def size(tensor: Tensor) -> str:
    """How a shape is written for people."""
    return " × ".join(map(str, tensor.shape)) or "one number"


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - TOLD
    # A hostile file may choose names as long as it likes.
    told = ", ".join(name if len(name) <= 200 else f"{name[:200]}…" for name in names[:TOLD])
    return f"{told} and {rest:,} more" if rest > 0 else told
