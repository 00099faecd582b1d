"""A carried state as a flat dict of tensors, as a checkpoint holds it, and back.

Names tell where a tensor belongs, and after an @ what it was: `layers/0/pairs@3` grows along axis 3,
`layers/0/positions@none` stands for None. Types never come from a file: they come from a state that the model made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from anaphor.errors import ConfigError
from anaphor.mixers.base import KVBuffer, tensors_of
from anaphor.training.mismatch import Mismatch, format_shape

STORED_NAMES = {"past_length": "seen"}
"""Fields of a carried state that have another name in checkpoints, where all runs have it."""
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def flatten(tree: Any, path: str = "") -> dict[str, Tensor]:
    """Every tensor and number of a state by name. The tensors themselves, not copies."""
    if isinstance(tree, Tensor):
        return {path: tree.detach()}
    if isinstance(tree, KVBuffer):
        return {f"{path}@{tree.axis}": tree.data.detach()}
    if tree is None:
        return {f"{path}@none": torch.zeros(0)}
    if type(tree) in _NUMBERS:
        return {f"{path}@number": torch.tensor(tree, dtype=_NUMBERS[type(tree)])}
    if not isinstance(tree, tuple):  # of a user's own task or mixer
        kind = type(tree).__name__
        raise ConfigError(f"a carried state holds tensors, numbers and tuples, but not a {kind}: give a tuple")
    return {name: tensor for place, child in _children(tree, path) for name, tensor in flatten(child, place).items()}


def unflatten(like: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `flatten` took apart.

    `like` is a state of the same model and as many rows, for example an initial one; it gives the types of the tuples
    and the device. What grows may be longer than there, and what is None there may be a tensor.
    """
    names = {name.partition("@")[0]: name for name in tensors}
    mismatch = Mismatch(unexpected=[name for name in tensors if name not in names.values()])
    device = next((tensor.device for tensor in tensors_of(like)), torch.device("cpu"))

    def read(like: Any, path: str) -> Any:
        if isinstance(like, tuple):
            children = [read(child, place) for place, child in _children(like, path)]
            return type(like)(*children) if hasattr(like, "_fields") else tuple(children)
        name = names.pop(path, None)
        if name is None:
            mismatch.missing.append(path)
            return like
        return _leaf(like, name, name[len(path) :], tensors[name], mismatch, device)

    state = read(like, "")
    mismatch.unexpected += names.values()
    mismatch.raise_if_any("the carried state")
    return state


def _leaf(like: Any, name: str, mark: str, tensor: Tensor, mismatch: Mismatch, device: torch.device) -> Any:
    if isinstance(like, KVBuffer) and mark == f"@{like.axis}":
        mismatch.compare(name, tensor, like.data, growing=like.axis)
        return KVBuffer(tensor.to(device), like.axis)
    if isinstance(like, Tensor) and mark == "":
        mismatch.compare(name, tensor, like)
        return tensor.to(device)
    if type(like) in _NUMBERS and mark == "@number" and not tensor.ndim and tensor.dtype is _NUMBERS[type(like)]:
        return tensor.item()
    if like is None and mark == "@none":
        return None
    if like is None and mark == "":
        return tensor.to(device)
    if like is None and mark in {f"@{axis}" for axis in range(tensor.ndim)}:
        return KVBuffer(tensor.to(device), int(mark[1:]))
    mismatch.wrong.append(f"{name} ({format_shape(tensor)}) should be a {type(like).__name__}")
    return like


def _children(tree: tuple[Any, ...], path: str) -> Iterator[tuple[str, Any]]:
    names = [STORED_NAMES.get(name, name) for name in getattr(tree, "_fields", map(str, range(len(tree))))]
    for name, child in zip(names, tree, strict=True):
        yield (f"{path}/{name}" if path else name), child
