"""What can be done with a state: cut its gradient, pick rows, count bytes, let it grow.

A state is a tuple of tensors with the batch first, of `Growing` tensors, of plain numbers and of such tuples. Mixers
make states and never write into one; callers decide its fate with the functions below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anaphor.errors import ConfigError


@dataclass
class Room:
    """Storage with space at its end. Everything before `used` belongs to some state and is never written again."""

    storage: Tensor
    used: int


@dataclass(frozen=True)
class Growing:
    """A tensor that can grow along one axis without being copied at every step.

    The visible part is a view into a larger storage. Appending writes behind that view when the space there is free;
    if another state has taken it already (a second continuation of the same past), the visible part is copied first.
    Either way the tensor that was appended to keeps its value.
    """

    data: Tensor
    axis: int
    room: Room | None = field(default=None, repr=False)
    end: int = 0  # where the visible part stops in the room

    def __len__(self) -> int:
        return self.data.shape[self.axis]

    def append(self, new: Tensor) -> Growing:
        if torch.is_grad_enabled():
            # Autograd may keep any version of the tensor for the way back, so each must be one of its own.
            return Growing(torch.cat((self.data, new), self.axis) if len(self) else new, self.axis)
        room, end, size = self.room, self.end, new.shape[self.axis]
        if room is None or not _fits(room, end, new, self.axis):
            room, end = self._moved(new), len(self)
        room.storage.narrow(self.axis, end, size).copy_(new)
        room.used = end + size
        length = len(self) + size
        return Growing(room.storage.narrow(self.axis, room.used - length, length), self.axis, room, room.used)

    def last(self, count: int) -> Growing:
        """The newest `count` entries, still able to grow in place."""
        surplus = len(self) - count
        if surplus <= 0:
            return self
        newest = self.data.narrow(self.axis, surplus, count)
        if newest.untyped_storage().nbytes() > 4 * newest.numel() * newest.element_size():
            return Growing(newest.clone(), self.axis)  # a short memory must not keep a long text alive
        return Growing(newest, self.axis, self.room, self.end)

    def at(self, slots: Tensor) -> Growing:
        return Growing(self.data.index_select(self.axis, slots), self.axis)

    def map(self, function: Callable[[Tensor], Tensor]) -> Growing:
        return Growing(function(self.data), self.axis)

    def detach(self) -> Growing:
        """The same storage without gradient, still able to grow in place."""
        return Growing(_detached(self.data), self.axis, self.room, self.end)

    def select_rows(self, rows: Tensor) -> Growing:
        """Some rows, with the room behind them: a search that picks rows at every step then copies once, not twice."""
        if self.room is None or torch.is_grad_enabled():
            return self.map(lambda tensor: tensor.index_select(0, rows))
        storage = self.room.storage.index_select(0, rows)
        visible = storage.narrow(self.axis, self.end - len(self), len(self))
        return Growing(visible, self.axis, Room(storage, self.end), self.end)

    def _moved(self, new: Tensor) -> Room:
        length = len(self)
        shape = list(self.data.shape)
        # Twice what is needed, so that a token is copied a constant number of times however long the stream.
        shape[self.axis] = 2 * (length + new.shape[self.axis])
        storage = new.new_empty(shape, dtype=torch.promote_types(self.data.dtype, new.dtype))
        storage.narrow(self.axis, 0, length).copy_(self.data.detach())
        return Room(storage, length)


def _fits(room: Room, end: int, new: Tensor, axis: int) -> bool:
    free = room.used == end and end + new.shape[axis] <= room.storage.shape[axis]
    # A tensor made in inference mode must not be written outside of it.
    writable = torch.is_inference_mode_enabled() or not room.storage.is_inference()
    return free and writable and room.storage.dtype == new.dtype


def map_state(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """The same tree with every tensor replaced."""
    return _map_parts(function, lambda growing: growing.map(function), state)


def _map_parts(on_tensor: Callable[[Tensor], Tensor], on_growing: Callable[[Growing], Growing], state: Any) -> Any:
    if isinstance(state, Tensor):
        return on_tensor(state)
    if isinstance(state, Growing):
        return on_growing(state)
    if isinstance(state, tuple):
        children = [_map_parts(on_tensor, on_growing, child) for child in state]
        return type(state)(*children) if hasattr(state, "_fields") else tuple(children)
    return state


def tensors_of(state: Any) -> Iterator[Tensor]:
    """Every tensor of a state, in a fixed order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Growing):
        yield state.data
    elif isinstance(state, tuple):
        for child in state:
            yield from tensors_of(child)


def detach(state: Any) -> Any:
    """The same values, and no gradient flows back through them."""
    return _map_parts(_detached, Growing.detach, state)


def select_rows(state: Any, rows: Tensor) -> Any:
    """The given rows in the given order; a row may be repeated or left out."""
    if not isinstance(rows, Tensor) or rows.ndim != 1 or rows.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"rows must be a one-dimensional tensor of whole numbers, but they are {rows!r}")
    try:
        return _map_parts(lambda tensor: tensor.index_select(0, rows), lambda growing: growing.select_rows(rows), state)
    except IndexError:  # told by the host only: nobody waits for a device to look
        count = min(len(tensor) for tensor in tensors_of(state))
        wrong = next(row for row in rows.tolist() if not 0 <= row < count)
        raise ConfigError(f"there is no row {wrong}: the state's rows are 0 to {count - 1}") from None


def _detached(tensor: Tensor) -> Tensor:
    # Made in inference mode it could not take part in training even without a gradient of its own.
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return tensor.clone()
    return tensor.detach()


def count_bytes(state: Any) -> int:
    """Bytes of what the state holds, all rows together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
