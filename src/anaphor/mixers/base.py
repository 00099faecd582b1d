"""The contract of every sequence layer: (x, state, span) -> (y, state).

Shapes use the same letters in every file: B rows, T new tokens, S visible keys, H heads, D width, K width of a head.
Batches come first, padding stands on the right.

Five promises hold for every mixer that streams, in evaluation mode:
cutting a sequence anywhere changes nothing; padding changes neither outputs nor the state that follows; rows of a state
can be repeated and reordered; gradient crosses the seam between two calls unless the caller detached the state; a state
stays good after it was used. A mixer that reads the whole sequence does not stream: its state is `()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.spec import MixerSpec
from anaphor.mixers.state import count_bytes, tensors_of


@dataclass(frozen=True)
class Span:
    """Where the new tokens stand in their own sequences, and which of them are real."""

    seen: Tensor
    """[B]: how many tokens of each row came before."""
    count: int
    """How many new tokens there are, padding included."""
    real: Tensor | None = None
    """[B]: how many of them are real, the first ones of each row. None means all, which is then known without a look
    at the device."""

    @classmethod
    def after(cls, seen: Tensor, count: int, lengths: Tensor | None = None) -> Span:
        """The next `count` tokens of rows that have seen so many already; `lengths` of them are real."""
        if lengths is not None:
            check_lengths(lengths, len(seen), count)
        return cls(seen, count, lengths)

    @classmethod
    def whole(cls, x: Tensor, lengths: Tensor | None = None) -> Span:
        """Sequences from their first token on."""
        return cls.after(x.new_zeros(x.shape[0], dtype=torch.long), x.shape[1], lengths)

    @property
    def full(self) -> bool:
        """Whether every token is real, known without a look at the device."""
        return self.real is None

    @cached_property
    def lengths(self) -> Tensor:
        """[B]: how many tokens of each row are real."""
        return torch.full_like(self.seen, self.count) if self.real is None else self.real

    @cached_property
    def positions(self) -> Tensor:
        """[B, T]: how many tokens of its row stand before each. Padding repeats the last real one's."""
        steps = torch.arange(self.count, device=self.seen.device)
        if self.real is None:
            return self.seen[:, None] + steps
        return (self.seen[:, None] + torch.minimum(steps, self.real[:, None] - 1)).clamp(min=0)

    @cached_property
    def valid(self) -> Tensor:
        """[B, T]: which tokens are real."""
        return torch.arange(self.count, device=self.seen.device) < self.lengths[:, None]

    def clear(self, y: Tensor) -> Tensor:
        """Zeros where there is no token."""
        return y if self.full else y.masked_fill(~self.valid[..., None], 0)


def check_lengths(lengths: Tensor, rows: int, count: int) -> None:
    """Refuse lengths that are not one for each row, from 0 to `count`. Values are read only where the host has them."""
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
    """Moves information along time. Subclasses write `initial_state` and `mix`; nobody calls `mix` but `forward`."""

    state_type: ClassVar[type] = tuple
    """What the state of a mixer that streams is an instance of."""

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.width_in = spec.width
        self.width_out = spec.out

    @property
    def streams(self) -> bool:
        """Whether it may run on a piece of a sequence and carry its state on to the next."""
        return self.spec.streams

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        """Shape of the first tensor of a state without its rows; None stands for an axis that grows."""
        return ()

    def initial_state(self, like: Tensor) -> Any:
        """State before the first token, for as many rows as `like` [B, ...] has."""
        raise NotImplementedError(f"{type(self).__name__} makes no state")

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        """What `forward` does, for at least one token and a state that fits. Its output for padding does not matter."""
        raise NotImplementedError(f"{type(self).__name__} mixes nothing")

    def state_bytes(self, tokens: int) -> int:
        """Bytes that one row's state holds after so many tokens."""
        weight = next(self.parameters(), torch.empty(0))
        return count_bytes(self.initial_state(weight.new_zeros(1, 0, self.width_in)))

    def forward(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        """Consume any number of tokens [B, T, D]; return their outputs and the state after the last real one.

        Outputs are zero where there is no token.
        """
        self._check(x, state, span)
        if x.numel() == 0:
            return x.new_zeros(*x.shape[:2], self.width_out), state
        y, state = self.mix(x, state, span)
        return span.clear(y), state

    def _check(self, x: Tensor, state: Any, span: Span) -> None:
        name = type(self).__name__
        if not isinstance(span, Span):
            raise ConfigError(
                f"{name} needs a Span, but was given {type(span).__name__ if span is not None else None}: "
                f"Span.whole(x) is that of sequences from their first token on"
            )
        if x.ndim != 3 or x.shape[-1] != self.width_in:
            raise ConfigError(f"{name} takes [rows, tokens, {self.width_in}], but was given {list(x.shape)}")
        if (len(span.seen), span.count) != x.shape[:2]:
            raise ConfigError(f"span covers {[len(span.seen), span.count]} tokens, but x has {list(x.shape[:2])}")
        if not self.streams:
            if state != ():
                raise ConfigError(f"{name} reads the whole sequence and carries no state: pass ()")
            return
        if not isinstance(state, self.state_type) or not state:
            given = repr(state) if state is None or state == () else type(state).__name__
            raise ConfigError(
                f"{name} needs a state of type {self.state_type.__name__}, but was given {given}: "
                f"start with initial_state(x)"
            )
        rows, *first = next(tensors_of(state)).shape
        if rows != x.shape[0]:
            raise ConfigError(f"state has {rows} rows, but x has {x.shape[0]}: use select_rows")
        for size, expected in zip(first, self.state_shape, strict=False):
            if expected is not None and size != expected:
                raise ConfigError(f"the state is not this {name}'s: its first tensor is {first} for each row")
