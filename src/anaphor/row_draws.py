"""Random numbers of a batch whose rows are computed by several processes.

Where a run is trained on several ranks, each of them computes some rows of every batch. The random generators of all
ranks are in the same state. Each rank draws the numbers of the whole batch and takes those of its rows, so a mask of
dropout depends on the row, and neither on the number of ranks nor on which of them has the row.

Rows are found in a random tensor by their number (`_find_rows`). Where they are along another axis, or where there are
none, as in a mask of weights, `random_rows` says so. A single process draws as ever: for it nothing here has an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DRAWING = {
    "bernoulli", "bernoulli_", "native_dropout", "_fused_dropout", "uniform_", "normal_", "exponential_", "geometric_",
    "log_normal_", "cauchy_", "random_", "rand", "randn", "randint", "rand_like", "randn_like", "randint_like",
}  # fmt: skip
"""Operations of torch that draw a number for each value of a tensor. Others, such as `randperm`, have no rows."""


@dataclass(frozen=True)
class RowShare:
    """The rows of a batch that one process computes: from `start` to `stop`, of `total`."""

    start: int
    stop: int
    total: int
    counts: bool = True
    """False: the rows are another process's as well, and what comes of them here is left out."""

    def __len__(self) -> int:
        return self.stop - self.start


_axis: ContextVar[int | str | None] = ContextVar("axis", default="any")
"""The axis of the rows; "any": they are found by their number."""
_repeats: ContextVar[int] = ContextVar("repeats", default=1)


@contextmanager
def random_rows(axis: int | None) -> Iterator[None]:
    """Inside the block random tensors have the rows of the batch along an axis; None: they have no rows, and are the
    same for all of them."""
    before = _axis.set(axis)
    try:
        yield
    finally:
        _axis.reset(before)


@contextmanager
def repeated_rows(times: int) -> Iterator[None]:
    """Inside the block all rows of the batch come so many times, one time after the other."""
    before = _repeats.set(times)
    try:
        yield
    finally:
        _repeats.reset(before)


@contextmanager
def draw_rows(share: RowShare) -> Iterator[None]:
    """Inside the block random tensors are those of some rows of a batch."""
    with _Draws(share), _ExplicitAttentionDropout():
        yield


class _Draws(TorchDispatchMode):
    """Draws for all rows of a batch, and takes those of a share."""

    def __init__(self, share: RowShare) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.share = share
        self.last_empty: tuple[int, tuple[int, ...]] | None = None
        """Memory of the last tensor that was made like another one, and the order of the axes of that one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler first, which takes as long as to import torch

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "empty_like" and "memory_format" not in kwargs:
            result = func(*args, **kwargs)
            # A tensor of one row does not tell how several rows would lie in memory; what it is made like does.
            self.last_empty = (result.data_ptr(), _memory_order(args[0]))
            return result
        shape = _sizes_of(args[0]) if name in DRAWING else None
        places = None if shape is None else _find_rows(shape, self.share)
        if places is None:
            return func(*args, **kwargs)
        drawn = func(*(self._widen(value, places) if _sizes_of(value) == shape else value for value in args), **kwargs)
        if name.endswith("_"):
            return args[0].copy_(places.take(drawn))
        return tuple(map(places.take, drawn)) if isinstance(drawn, tuple) else places.take(drawn)

    def _widen(self, value: Any, places: _RowPlaces) -> Any:
        """A tensor, or a list of sizes, for all rows of the batch."""
        if not isinstance(value, Tensor):
            return places.widen(value)
        order = _memory_order(value)
        if self.last_empty is not None and self.last_empty[0] == value.data_ptr():
            order = self.last_empty[1]
        whole = places.widen(value.shape)
        memory = value.new_empty([whole[dim] for dim in order]).fill_(0.5 if value.is_floating_point() else 0)
        result = memory.permute([order.index(dim) for dim in range(value.ndim)])
        places.view(result).copy_(places.split(value, len(self.share)))
        return result


@dataclass(frozen=True)
class _RowPlaces:
    """Where the rows of a share are in a random tensor: along an axis, `repeats` times, each as `parts` entries."""

    share: RowShare
    axis: int
    repeats: int
    parts: int

    def widen(self, sizes: Sequence[int]) -> list[int]:
        """The sizes of the tensor for all rows of the batch."""
        return [*sizes[: self.axis], self.repeats * self.share.total * self.parts, *sizes[self.axis + 1 :]]

    def split(self, tensor: Tensor, rows: int) -> Tensor:
        parts: Tensor = tensor.unflatten(self.axis, (self.repeats, rows, self.parts))
        return parts

    def view(self, whole: Tensor) -> Tensor:
        """The part of the tensor for all rows that belongs to the share."""
        return self.split(whole, self.share.total).narrow(self.axis + 1, self.share.start, len(self.share))

    def take(self, whole: Tensor) -> Tensor:
        return self.view(whole).flatten(self.axis, self.axis + 2)


def _find_rows(shape: Sequence[int], share: RowShare) -> _RowPlaces | None:
    """Where rows are in a tensor. If nothing says so: along the first axis or the second, whichever is as long as there
    are rows; else several entries of each row follow each other along the first one. None: nowhere."""
    axis, repeats = _axis.get(), _repeats.get()
    rows = len(share) * repeats
    if axis == "any":
        for place, size in enumerate(shape[:2]):
            if size == rows:
                return _RowPlaces(share, place, repeats, 1)
        axis = 0
    if axis is None or len(shape) <= int(axis) or not shape[int(axis)] or shape[int(axis)] % rows:
        return None
    return _RowPlaces(share, int(axis), repeats, shape[int(axis)] // rows)


class _ExplicitAttentionDropout(TorchFunctionMode):
    """Fused attention of a GPU draws its dropout inside of its kernel, where rows cannot be told apart: where it has
    dropout it is computed step by step."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and kwargs.get("dropout_p"):
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _sizes_of(value: Any) -> list[int] | None:
    """The shape of a tensor, or one that is given as a list of sizes."""
    return list(value.shape if isinstance(value, Tensor) else value) if isinstance(value, Tensor | list) else None


def _memory_order(tensor: Tensor) -> tuple[int, ...]:
    """The axes of a tensor as they lie in memory, the slowest first."""
    strides = tensor.stride()
    return tuple(sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], tensor.shape[dim] == 1)))
