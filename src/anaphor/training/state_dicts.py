"""Tensors by name: comparing a file with what is expected of it; a carried state, and that of optimizers, as a flat
dict and back.

Names tell where a tensor belongs, and after an @ what it was: `layers/0/pairs@3` grows along axis 3,
`layers/0/positions@none` stands for None. Types never come from a file: they come from a state that the model made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.errors import CheckpointError, ConfigError
from anaphor.mixers.base import KVBuffer, tensors_of
from anaphor.training.muon import Muon

# A model has hundreds of tensors. The first few show what is wrong, the count how much.
LISTED = 6
STORED_NAMES = {"past_length": "seen"}
"""Fields of a carried state that have another name in checkpoints, where all runs have it."""


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
    return " × ".join(map(str, tensor.shape)) or "one number"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _join(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    # A hostile file may choose names of any length.
    text = ", ".join(name if len(name) <= 200 else f"{name[:200]}…" for name in names[:LISTED])
    return f"{text} and {more:,} more" if more > 0 else text


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


OPTIMIZER_STATE: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.SGD: ("momentum_buffer",),
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.Adagrad: ("step", "sum"),
    Muon: ("momentum_buffer",),
}
"""Tensors of each optimizer's state. A file with others is refused."""

OptimizedWeight = tuple[torch.optim.Optimizer, dict[str, Any], nn.Parameter]
"""An optimizer, one of its groups, and a weight of that."""


def optimizer_state(weights: Iterable[OptimizedWeight], names: Mapping[nn.Parameter, str]) -> dict[str, Tensor]:
    """The state of optimizers by the name of the weight. The tensors themselves, not copies."""
    state: dict[str, Tensor] = {}
    for part, _, weight in weights:
        for key, value in part.state.get(weight, {}).items():
            name = f"{names[weight]}/{key}"
            if isinstance(value, Tensor):
                state[name] = value
            elif isinstance(value, int | float):
                double = torch.float64 if isinstance(value, float) else None  # so that no digit is lost
                state[f"{name}@number"] = torch.tensor(value, dtype=double)
            elif value is not None:
                kind = type(value).__name__
                raise ConfigError(f"{type(part).__name__} keeps a {kind} as {key!r}, which cannot be saved")
    return state


def load_optimizer_state(
    weights: Sequence[OptimizedWeight], names: Mapping[nn.Parameter, str], tensors: Mapping[str, Tensor]
) -> None:
    """Restore what `optimizer_state` returned. Raises for anything that does not belong to these weights."""
    mismatch, found = Mismatch(), set()
    by_weight: dict[str, dict[str, str]] = defaultdict(dict)
    for name in tensors:
        weight_name, _, key = name.rpartition("/")
        by_weight[weight_name][key.removesuffix("@number")] = name
    for part, _, weight in weights:
        present = by_weight.get(names[weight], {})
        expected = OPTIMIZER_STATE.get(type(part), tuple(present))
        if present:  # a weight that never had a gradient has no state; an incomplete one is damage
            mismatch.missing += [f"{names[weight]}/{key}" for key in expected if key not in present]
        for key, name in present.items():
            if key in expected:
                found.add(name)
            if key in expected and type(part) in OPTIMIZER_STATE:
                mismatch.compare(name, tensors[name], torch.zeros(()) if key == "step" else weight)
    mismatch.unexpected += [name for name in tensors if name not in found]
    mismatch.raise_if_any("the optimizer's state")
    for part, group, weight in weights:
        part.state.pop(weight, None)
        for key, name in by_weight.get(names[weight], {}).items():
            part.state[weight][key] = _restore(tensors[name], name, key, group, weight)


def _restore(value: Tensor, name: str, key: str, group: Mapping[str, Any], weight: nn.Parameter) -> Any:
    if name.endswith("@number"):
        return value.item()
    # The count of steps stays on the host unless the kernel itself counts.
    counts = key == "step"
    on_host = counts and not (group.get("fused") or group.get("capturable"))
    return value.detach().to("cpu" if on_host else weight.device, copy=True)
