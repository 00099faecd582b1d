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
from typing import Any

import torch
from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.state import count_bytes, tensors_of


@dataclass(frozen=True)
class Span:
    """Where the new tokens stand in their own sequences, and which of them are real."""

    positions: Tensor  # [B, T]
    valid: Tensor  # [B, T]; False only in a suffix
    full: bool = False
    """Known without looking at `valid` that every token is real; kernels then need no mask and no host read."""

    @classmethod
    def after(cls, seen: Tensor, count: int, lengths: Tensor | None = None) -> Span:
        """The next `count` tokens of rows that have seen so many already; `lengths` of them are real."""
        steps = torch.arange(count, device=seen.device)
        positions = seen[:, None] + steps
        if lengths is None:
            return cls(positions, torch.ones_like(positions, dtype=torch.bool), full=True)
        return cls(positions, steps < lengths[:, None])

    @classmethod
    def whole(cls, x: Tensor, lengths: Tensor | None = None) -> Span:
        """Sequences from their first token on."""
        return cls.after(x.new_zeros(x.shape[0], dtype=torch.long), x.shape[1], lengths)

    @property
    def lengths(self) -> Tensor:  # [B]
        return self.valid.sum(1)

    def clear(self, y: Tensor) -> Tensor:
        """Zeros where there is no token."""
        return y if self.full else y.masked_fill(~self.valid[..., None], 0)


@dataclass(frozen=True, kw_only=True)
class MixerSpec:
    """What every mixer's spec begins with. Frozen, and beside the mixer it builds."""

    width: int
    """Size of every token vector that comes in."""
    width_out: int | None = None
    """Size of every token vector that goes out; None means the same as comes in."""

    def __post_init__(self) -> None:
        for name in ("width", "width_out"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ConfigError(f"{name}={size} is not a width: it must be at least 1")

    @property
    def out(self) -> int:
        return self.width if self.width_out is None else self.width_out

    @property
    def streams(self) -> bool:
        """Whether the mixer may run on a piece of a sequence and carry its state on to the next."""
        return True

    @property
    def grows(self) -> bool:
        """Whether the state gets larger with every token, without end."""
        return False

    @property
    def limit(self) -> int | None:
        """How many positions there are; None means no end."""
        return None

    def build(self) -> Mixer:
        raise NotImplementedError(f"{type(self).__name__} builds no mixer")


class Mixer(nn.Module):
    """Moves information along time. Subclasses write `initial_state` and `mix`; nobody calls `mix` but `forward`."""

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.width_in = spec.width
        self.width_out = spec.out

    @property
    def streams(self) -> bool:
        return self.spec.streams

    def initial_state(self, like: Tensor) -> Any:
        """State before the first token, for as many rows as `like` [B, ...] has, on its device and in its type."""
        raise NotImplementedError(f"{type(self).__name__} makes no state")

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        raise NotImplementedError(f"{type(self).__name__} mixes nothing")

    def state_bytes(self, tokens: int) -> int:
        """Bytes that one row's state holds after so many tokens."""
        weight = next(self.parameters())
        return count_bytes(self.initial_state(weight.new_zeros(1, 0, self.width_in)))

    def forward(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, Any]:
        """Consume any number of tokens [B, T, D]; return their outputs and the state after the last real one.

        Outputs are zero where there is no token.
        """
        self._check(x, state, span)
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0], 0, self.width_out), state
        y, state = self.mix(x, state, span)
        return span.clear(y), state

    def _check(self, x: Tensor, state: Any, span: Span) -> None:
        name = type(self).__name__
        if x.ndim != 3 or x.shape[-1] != self.width_in:
            raise ConfigError(f"{name} takes [rows, tokens, {self.width_in}], but was given {list(x.shape)}")
        if span.positions.shape != x.shape[:2]:
            raise ConfigError(f"span covers {list(span.positions.shape)} tokens, but x has {list(x.shape[:2])}")
        if not self.streams:
            if state != ():
                raise ConfigError(f"{name} reads the whole sequence and carries no state: pass ()")
            return
        if not isinstance(state, tuple) or not state:
            raise ConfigError(f"{name} needs a state, but was given {state!r}: start with initial_state(x)")
        for tensor in tensors_of(state):
            if tensor.shape[0] != x.shape[0]:
                raise ConfigError(f"state has {tensor.shape[0]} rows, but x has {x.shape[0]}: use select_rows")
