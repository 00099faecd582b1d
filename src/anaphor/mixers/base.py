"""The contract of every sequence layer: (x, state, span) -> (y, state), and what callers do with a state.

Shapes use the same letters in every file: B rows, T new tokens, S keys, H heads, D width, K width of a head. Batches
come first, padding is on the right.

Six promises hold for every mixer that streams, in evaluation mode (`contract.py` tests them): cutting a sequence
anywhere changes nothing; padding changes neither the outputs nor the state; rows of a state can be repeated and
reordered; gradient flows from one call to the one before unless the caller detached the state; a call leaves the state
it was given unchanged; recording a tap changes nothing. A mixer that needs the whole sequence does not stream: its
state is `()`.

A state is a tuple of tensors with the batch first, of `KVBuffer`s, of plain numbers and of such tuples. Mixers make
states and never write into one; callers detach, select and keep them with the functions below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.errors import ConfigError
from anaphor.mixers.spec import MixerSpec

Result = TypeVar("Result")


@dataclass(frozen=True)
class Span:
    """Positions of the new tokens in their own sequences, and which of them are padding."""

    past_length: Tensor
    """[B]: number of tokens of each row before these."""
    count: int
    """Number of new tokens, padding included."""
    given_lengths: Tensor | None = None
    """[B]: number of valid tokens in each row, the first ones. None: all are valid, known without a device sync."""
    shared: dict[tuple[str, int], tuple[object, Any]] = field(default_factory=dict, compare=False, repr=False)
    """What `once` computed."""

    @classmethod
    def after(cls, past_length: Tensor, count: int, lengths: Tensor | None = None) -> Span:
        """The next `count` tokens of rows that have seen so many already; the first `lengths` of them are valid."""
        if lengths is not None:
            check_lengths(lengths, len(past_length), count)
        return cls(past_length, count, lengths)

    @classmethod
    def whole(cls, x: Tensor, lengths: Tensor | None = None) -> Span:
        """Sequences from their first token on."""
        return cls.after(x.new_zeros(x.shape[0], dtype=torch.long), x.shape[1], lengths)

    @property
    def has_padding(self) -> bool:
        """Whether some tokens may be padding. Needs no device sync."""
        return self.given_lengths is not None

    @cached_property
    def lengths(self) -> Tensor:
        """[B]: number of valid tokens in each row."""
        return torch.full_like(self.past_length, self.count) if self.given_lengths is None else self.given_lengths

    @cached_property
    def following(self) -> Tensor:
        """[B]: number of tokens of each row after these."""
        return self.past_length + (self.count if self.given_lengths is None else self.given_lengths)

    @cached_property
    def positions(self) -> Tensor:
        """[B, T]: position of each token in its row. Padding repeats the last valid one."""
        if self.count == 1 and self.given_lengths is None:
            return self.past_length[:, None]
        steps = torch.arange(self.count, device=self.past_length.device)
        if self.given_lengths is None:
            return self.past_length[:, None] + steps
        return (self.past_length[:, None] + torch.minimum(steps, self.given_lengths[:, None] - 1)).clamp(min=0)

    @cached_property
    def valid(self) -> Tensor:
        """[B, T]: False in padding."""
        return torch.arange(self.count, device=self.past_length.device) < self.lengths[:, None]

    def once(self, name: str, source: object, compute: Callable[[], Result]) -> Result:
        """A value that depends on the span and on `source` only: the first layer computes it, and all layers with the
        same object as their source share it."""
        key = (name, id(source))
        if key not in self.shared:
            self.shared[key] = (source, compute())  # with the source, whose id would else be given to another object
        value: Result = self.shared[key][1]
        return value

    def zero_padding(self, y: Tensor) -> Tensor:
        """[B, T, D] with zeros in padding."""
        return y.masked_fill(~self.valid[..., None], 0) if self.has_padding else y


def check_lengths(lengths: Tensor, rows: int, count: int) -> None:
    """Refuse lengths that are not one per row, from 0 to `count`. Values are read only on the CPU, without a sync."""
    if not isinstance(lengths, Tensor) or lengths.shape != (rows,):
        given = list(lengths.shape) if isinstance(lengths, Tensor) else lengths
        raise ConfigError(f"lengths must be a tensor with one number for each of {rows} rows, but it is {given}")
    if lengths.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"lengths must be whole numbers, but they are {lengths.dtype}")
    if lengths.device.type != "cpu" or not rows:
        return
    least, largest = (int(end) for end in lengths.aminmax())
    if least < 0 or largest > count:
        wrong = least if least < 0 else largest
        raise ConfigError(f"a row of length {wrong} does not fit into {count} tokens: lengths go from 0 to {count}")


class Mixer(nn.Module):
    """Base class of all mixers. Subclasses define `initial_state` and `mix`, which `forward` calls after checks."""

    state_type: ClassVar[type] = tuple
    """Type of the state of a mixer that streams."""
    follows_init_scheme: bool = False
    """Whether a model's init scheme draws the weights of its linear maps; `out` writes to the residual stream. A mixer
    that does not keeps the weights it was made with, or has those that its `reset_parameters()` draws."""

    can_be_captured: bool = True
    """Whether a call may become part of a CUDA graph, of training or decoding: nothing in `mix` reads a value on the
    host, such as by `.item()` or a condition on a tensor, and the tensors of the state keep their shapes. A mixer that
    does otherwise says False."""

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.width_in = spec.width
        self.width_out = spec.out

    @property
    def streams(self) -> bool:
        """Whether it may process a sequence in chunks and carry its state from one to the next."""
        return self.spec.streams

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        """Shape of the first tensor of a state without its rows; None is an axis that grows."""
        return ()

    def initial_state(self, like: Tensor) -> Any:
        """State before the first token, for as many rows as `like` [B, ...] has."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial_state")

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        """`forward` for at least one token and a state that fits. Outputs in padding do not matter."""
        raise NotImplementedError(f"{type(self).__name__} does not define mix")

    def state_bytes(self, tokens: int) -> int:
        """Bytes of one row's state after so many tokens."""
        weight = next(self.parameters(), torch.empty(0))
        return count_bytes(self.initial_state(weight.new_zeros(1, 0, self.width_in)))

    def forward(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        """Outputs for any number of tokens [B, T, D], zero in padding, and the state after the last valid one."""
        self._check(x, state, span)
        if x.numel() == 0:
            return x.new_zeros(*x.shape[:2], self.width_out), state
        y, state = self._check_result(x, self.mix(x, state, span))
        return span.zero_padding(y), state

    def _check_result(self, x: Tensor, result: Any) -> tuple[Tensor, Any]:
        """Outputs and state, or an error: later a wrong result of a user's `mix` would look like a fault of ours."""
        name = type(self).__name__
        if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[0], Tensor):
            raise ConfigError(f"mix of {name} must return outputs and a state, not {type(result).__name__}")
        if result[0].shape != (expected := (*x.shape[:2], self.width_out)):
            given, shape = list(x.shape), list(result[0].shape)
            raise ConfigError(f"mix of {name} returns outputs {shape} for {given}: they must be {list(expected)}")
        if not self.streams:
            return result[0], result[1]
        first = self._first_tensor(result[1])
        if first is None:
            wrong = self._describe_wrong(result[1])
            raise ConfigError(f"mix of {name} must return a state of type {self.state_type.__name__}, not {wrong}")
        if first.shape[:1] != x.shape[:1]:
            size = list(first.shape)
            raise ConfigError(f"mix of {name} returns a state with a tensor {size}: it must have {len(x)} rows")
        return result[0], result[1]

    def _first_tensor(self, state: Any) -> Tensor | None:
        """The first tensor of a state; None where it is no state of this mixer."""
        return first_tensor(state) if isinstance(state, self.state_type) else None

    def _describe_wrong(self, state: Any) -> str:
        """What was given in place of a state."""
        is_typed = isinstance(state, self.state_type)
        if state is None or (isinstance(state, tuple) and not state):
            return repr(state)
        return f"{type(state).__name__} without tensors" if is_typed else type(state).__name__

    def _check(self, x: Tensor, state: Any, span: Span) -> None:
        name = type(self).__name__
        if not isinstance(span, Span):
            raise ConfigError(
                f"{name} needs a Span, but got {type(span).__name__ if span is not None else None}: "
                f"use Span.whole(x) for sequences from their first token on"
            )
        if x.ndim != 3 or x.shape[-1] != self.width_in:
            raise ConfigError(f"{name} takes [rows, tokens, {self.width_in}], but got {list(x.shape)}")
        if (len(span.past_length), span.count) != x.shape[:2]:
            raise ConfigError(
                f"span covers {[len(span.past_length), span.count]} tokens, but x has {list(x.shape[:2])}"
            )
        if not self.streams:
            if state != ():
                raise ConfigError(f"{name} needs the whole sequence and carries no state: pass ()")
            return
        tensor = self._first_tensor(state)
        if tensor is None:
            wrong = self._describe_wrong(state)
            raise ConfigError(
                f"{name} needs a state of type {self.state_type.__name__}, but got {wrong}: start with initial_state(x)"
            )
        rows, *first = tensor.shape
        if rows != x.shape[0]:
            raise ConfigError(f"state has {rows} rows, but x has {x.shape[0]}: use select_rows")
        for size, expected in zip(first, self.state_shape, strict=False):
            if expected is not None and size != expected:
                raise ConfigError(f"the state is not from this {name}: its first tensor is {first} in each row")


def reset_mixer(mixer: Mixer) -> None:
    """Call the mixer's `reset_parameters()`. Without one its weights stay as they were made."""
    reset = getattr(mixer, "reset_parameters", None)
    if reset is not None:
        reset()


@dataclass
class Storage:
    """A tensor with free space at its end. Everything before `used` belongs to some state and is never overwritten."""

    tensor: Tensor
    used: int


@dataclass(frozen=True)
class KVBuffer:
    """A tensor that grows along one axis without being copied at every step.

    `data` is a view into a larger storage. Appending writes behind the view if that space is free; if another state has
    used it already (a second continuation of the same past), the view is copied first. The tensor that was appended to
    keeps its value either way.
    """

    data: Tensor
    axis: int
    storage: Storage | None = field(default=None, repr=False)
    end: int = 0  # where the view ends in the storage

    def __len__(self) -> int:
        return self.data.shape[self.axis]

    def append(self, new: Tensor) -> KVBuffer:
        """A buffer with new rows behind those that are there. This one still holds what it held."""
        if torch.is_grad_enabled():
            # Autograd may save any version of the tensor, so each must have its own memory.
            return KVBuffer(torch.cat((self.data, new), self.axis) if len(self) else new, self.axis)
        storage, end, size = self.storage, self.end, new.shape[self.axis]
        if storage is None or not _fits(storage, end, new, self.axis):
            storage, end = self._reallocate(new), len(self)
        storage.tensor.narrow(self.axis, end, size).copy_(new)
        storage.used = end + size
        length = len(self) + size
        view = storage.tensor.narrow(self.axis, storage.used - length, length)
        return KVBuffer(view, self.axis, storage, storage.used)

    def keep_last(self, count: int) -> KVBuffer:
        """The newest `count` entries, still able to grow in place."""
        surplus = len(self) - count
        if surplus <= 0:
            return self
        newest = self.data.narrow(self.axis, surplus, count)
        if newest.untyped_storage().nbytes() > 4 * newest.numel() * newest.element_size():
            return KVBuffer(newest.clone(), self.axis)  # a short memory must not keep the storage of a long text alive
        return KVBuffer(newest, self.axis, self.storage, self.end)

    def select(self, slots: Tensor) -> KVBuffer:
        """The given entries along the axis."""
        return KVBuffer(self.data.index_select(self.axis, slots), self.axis)

    def map(self, function: Callable[[Tensor], Tensor]) -> KVBuffer:
        """A buffer with what the function makes of the tensor."""
        return KVBuffer(function(self.data), self.axis)

    def detach(self) -> KVBuffer:
        """The same storage without gradient, still able to grow in place."""
        return KVBuffer(_detach_tensor(self.data), self.axis, self.storage, self.end)

    def select_rows(self, rows: Tensor) -> KVBuffer:
        """The given rows together with the free space behind them: beam search then copies once per step, not twice."""
        if self.storage is None or torch.is_grad_enabled():
            return self.map(lambda tensor: tensor.index_select(0, rows))
        tensor = self.storage.tensor.index_select(0, rows)
        view = tensor.narrow(self.axis, self.end - len(self), len(self))
        return KVBuffer(view, self.axis, Storage(tensor, self.end), self.end)

    def _reallocate(self, new: Tensor) -> Storage:
        length = len(self)
        shape = list(self.data.shape)
        # Twice what is needed, so that a token is copied a constant number of times however long the stream.
        shape[self.axis] = 2 * (length + new.shape[self.axis])
        tensor = new.new_empty(shape, dtype=torch.promote_types(self.data.dtype, new.dtype))
        tensor.narrow(self.axis, 0, length).copy_(self.data.detach())
        return Storage(tensor, length)


@dataclass(frozen=True)
class FixedBuffer(KVBuffer):
    """A buffer of fixed size for CUDA graphs: new entries replace those from `index` [1] on, which is on the device.

    It is written in place, so that a state that was continued is lost. Only code that owns a state may use it.
    """

    index: Tensor = field(kw_only=True)

    def append(self, new: Tensor) -> FixedBuffer:
        count, index = new.shape[self.axis], self.index
        if count != 1:  # for one token, as in generation, two kernels fewer
            index = index + torch.arange(count, device=new.device)
        self.data.index_copy_(self.axis, index, new.to(self.data.dtype))
        return self


def _fits(storage: Storage, end: int, new: Tensor, axis: int) -> bool:
    has_space = storage.used == end and end + new.shape[axis] <= storage.tensor.shape[axis]
    # A tensor made in inference mode must not be written to outside of it.
    is_writable = torch.is_inference_mode_enabled() or not storage.tensor.is_inference()
    return has_space and is_writable and storage.tensor.dtype == new.dtype


def map_state(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """The same tree with every tensor replaced."""
    return _map_parts(function, lambda buffer: buffer.map(function), state)


def _map_parts(on_tensor: Callable[[Tensor], Tensor], on_buffer: Callable[[KVBuffer], KVBuffer], state: Any) -> Any:
    if isinstance(state, Tensor):
        return on_tensor(state)
    if isinstance(state, KVBuffer):
        return on_buffer(state)
    if isinstance(state, tuple):
        children = [_map_parts(on_tensor, on_buffer, child) for child in state]
        return type(state)(*children) if hasattr(state, "_fields") else tuple(children)
    return state


def tensors_of(state: Any) -> Iterator[Tensor]:
    """Every tensor of a state, in a fixed order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, KVBuffer):
        yield state.data
    elif isinstance(state, tuple):
        for child in state:
            yield from tensors_of(child)


def first_tensor(state: Any) -> Tensor | None:
    """The first tensor of a state; None without one. Every call of a mixer asks for it."""
    if isinstance(state, Tensor):
        return state
    if isinstance(state, KVBuffer):
        return state.data
    if isinstance(state, tuple):
        for child in state:
            if (found := first_tensor(child)) is not None:
                return found
    return None


def detach(state: Any) -> Any:
    """The same values without gradient."""
    return _map_parts(_detach_tensor, KVBuffer.detach, state)


def select_rows(state: Any, rows: Tensor) -> Any:
    """The given rows in the given order; a row may be repeated or left out."""
    if not isinstance(rows, Tensor) or rows.ndim != 1 or rows.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"rows must be a one-dimensional tensor of whole numbers, but they are {rows!r}")
    try:
        return _map_parts(lambda tensor: tensor.index_select(0, rows), lambda buffer: buffer.select_rows(rows), state)
    except IndexError:  # raised on the CPU only
        count = min(len(tensor) for tensor in tensors_of(state))
        wrong = next(row for row in rows.tolist() if not 0 <= row < count)
        raise ConfigError(f"there is no row {wrong}: the rows of the state are 0 to {count - 1}") from None


def _detach_tensor(tensor: Tensor) -> Tensor:
    # Made in inference mode, it could not take part in training even without a gradient of its own.
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return tensor.clone()
    return tensor.detach()


def count_bytes(state: Any) -> int:
    """Bytes of all tensors of a state, all rows together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """So many CPU threads inside the block, as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def locked_dropout(x: Tensor, p: float) -> Tensor:
    """The same features for all tokens of a row: variational dropout (Gal and Ghahramani, 2016; Merity et al., 2017). A
    recurrence cannot recover them from the next token. Time is the second axis. [B, T, ...]"""
    return x * F.dropout(x.new_ones(x.shape[0], 1, *x.shape[2:]), p)


DROPOUTS: dict[str, Callable[[Tensor, float], Tensor]] = {"each": F.dropout, "locked": locked_dropout}
"""Kinds of dropout: every value by itself, or the same features for all tokens."""


def multiply(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b, rounded once to the given type. [N, K], [K, M] -> [N, M]"""
    if a.is_cuda and dtype == torch.float32 and a.dtype.itemsize < dtype.itemsize:
        return torch.mm(a, b, out_dtype=dtype)  # tensor cores multiply in the narrow type and add in single precision
    wide = torch.promote_types(a.dtype, dtype)
    return (a.to(wide) @ b.to(wide)).to(dtype)
