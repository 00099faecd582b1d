"""A carried state as a flat dict of named tensors, and back.

The names tell where a tensor belongs, and after an @ what it was: `layers/0/pairs@3` grows along axis 3,
`layers/0/positions@none` stands for None. Types never come from a file: they come from a state that the model made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from anaphor.mixers.state import Growing, tensors_of
from anaphor.training.mismatch import Mismatch, size

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def flatten(tree: Any, path: str = "") -> dict[str, Tensor]:
    """Every tensor and number of a state by name. The tensors themselves, not copies."""
    if isinstance(tree, Tensor):
        return {path: tree.detach()}
    if isinstance(tree, Growing):
        return {f"{path}@{tree.axis}": tree.data.detach()}
    if tree is None:
        return {f"{path}@none": torch.zeros(0)}
    if type(tree) in _NUMBERS:
        return {f"{path}@number": torch.tensor(tree, dtype=_NUMBERS[type(tree)])}
    assert isinstance(tree, tuple), f"a state holds tensors, numbers and tuples, but at {path!r} is a {type(tree)}"
    return {name: tensor for place, child in _children(tree, path) for name, tensor in flatten(child, place).items()}


def unflatten(like: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `flatten` took apart.

    `like` is a state of the same model and as many rows, for example a fresh one; it says of which types the tuples are
    and on which device the tensors lie. What grows may be longer than there, and what is None there may be a tensor.
    """
    found = {name.partition("@")[0]: name for name in tensors}
    mismatch = Mismatch(extra=[name for name in tensors if name not in found.values()])
    device = next((tensor.device for tensor in tensors_of(like)), torch.device("cpu"))
    state = _Reader(tensors, found, mismatch, device).read(like, "")
    mismatch.extra += found.values()
    mismatch.refuse("the carried state")
    return state


class _Reader:
    """Walks through a state and takes from the tensors what belongs there."""

    def __init__(
        self, tensors: Mapping[str, Tensor], found: dict[str, str], mismatch: Mismatch, device: torch.device
    ) -> None:
        self.tensors = tensors
        self.found = found
        """Names that nobody has taken yet, by place."""
        self.mismatch = mismatch
        self.device = device

    def read(self, like: Any, path: str) -> Any:
        if isinstance(like, tuple):
            children = [self.read(child, place) for place, child in _children(like, path)]
            return type(like)(*children) if hasattr(like, "_fields") else tuple(children)
        name = self.found.pop(path, None)
        if name is None:
            self.mismatch.missing.append(path)
            return like
        return self._leaf(like, name, name[len(path) :], self.tensors[name])

    def _leaf(self, like: Any, name: str, mark: str, tensor: Tensor) -> Any:
        if isinstance(like, Growing) and mark == f"@{like.axis}":
            self.mismatch.compare(name, tensor, like.data, growing=like.axis)
            return Growing(tensor.to(self.device), like.axis)
        if isinstance(like, Tensor) and mark == "":
            self.mismatch.compare(name, tensor, like)
            return tensor.to(self.device)
        if type(like) in _NUMBERS and mark == "@number" and not tensor.ndim and tensor.dtype is _NUMBERS[type(like)]:
            return tensor.item()
        if like is None and mark == "@none":
            return None
        if like is None and mark == "":
            return tensor.to(self.device)
        if like is None and mark in {f"@{axis}" for axis in range(tensor.ndim)}:
            return Growing(tensor.to(self.device), int(mark[1:]))
        self.mismatch.unlike.append(f"{name} ({size(tensor)}) should be a {type(like).__name__}")
        return like


def _children(tree: tuple[Any, ...], path: str) -> Iterator[tuple[str, Any]]:
    names = getattr(tree, "_fields", range(len(tree)))
    for name, child in zip(names, tree, strict=True):
        yield (f"{path}/{name}" if path else str(name)), child
