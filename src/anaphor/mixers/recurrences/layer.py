"""What the recurrences of this folder share: sizes, the short convolution, the choice of a form, and the taps.

A mixer computes the steps of its tokens (`matrix_state.Steps`) and what becomes of the outputs; `scan` does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least
from anaphor.errors import ConfigError
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.recurrences.matrix_state import (
    Steps,
    chunkwise,
    implied_attention,
    recurrent,
    skip_padding,
    spread_writes,
)
from anaphor.mixers.short_convolution import ShortConvolution, check_short_conv
from anaphor.mixers.spec import MemoryOptions, MixerSpec, check_heads, require
from anaphor.taps import Tap

CHUNKS = {"cpu": 32, "cuda": 64}
"""Tokens that are computed at once, by kind of device."""


@dataclass(frozen=True, kw_only=True)
class RecurrenceSpec(MixerSpec):
    """Base class of the specs of recurrences with a memory."""

    chunk: int | None = None
    """Number of tokens of a chunk, a power of two; 1 computes token by token. None chooses it by the device: 32 on a
    CPU and 64 on a GPU, and half of it where the state is a vector."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, chunk=self.chunk)
        if self.chunk is not None and self.chunk & (self.chunk - 1):
            raise ConfigError(f"chunk={self.chunk}: it must be a power of two")


@dataclass(frozen=True, kw_only=True)
class MemorySpec(RecurrenceSpec, MemoryOptions):
    """Base class of the specs of recurrences with queries, keys and values."""

    defaults: ClassVar[Mapping[str, Any]] = {"heads": 4, "expand_v": 1.0}

    short_conv: int = 0
    """Kernel size of the short convolution of queries, keys and values; 0 means none."""
    norm_eps: float = 1e-5
    """Added to the mean square in the norm of the outputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(require(self.heads), self.width)
        check_short_conv(short_conv=self.short_conv)
        width = self.key_width * require(self.expand_v)
        if width < 1 or width != int(width):
            raise ConfigError(
                f"expand_v={self.expand_v} times a width of {self.key_width} of a key is {width:g}: it must be a whole "
                f"number from 1 on"
            )

    @property
    def key_width(self) -> int:
        """Width of the queries and keys of a head."""
        return self.width // require(self.heads)

    @property
    def value_width(self) -> int:
        """Width of the values of a head."""
        return int(self.key_width * require(self.expand_v))


class MemoryState(NamedTuple):
    """State of a recurrence with a memory."""

    memory: Tensor
    """[B, H, K, V]"""
    inputs: Tensor
    """[B, P, C]: the newest inputs of what looks at the tokens just before, such as the short convolution."""


class Recurrence(Mixer):
    """Base class of recurrences with a memory."""

    spec: RecurrenceSpec
    state_type: ClassVar[type] = MemoryState
    follows_init_scheme = True
    decays: ClassVar[bool] = True
    """Whether its memory decays."""
    least_log_decay: ClassVar[float] = -math.inf
    """No logarithm of a decay is below this."""
    gate_names: ClassVar[tuple[str, ...]] = ()
    """Names of what the tap `gates` [B, T, gates, features] records, in order."""
    decay_names: ClassVar[tuple[str, ...]] = ("decay",)
    """Name of what the tap `decay` records: [B, T, H], or [B, T, H·K] for decays by channel."""
    state_names: ClassVar[tuple[str, ...]] = ("norm of the memory",)
    """Names of what the tap `states` [B, T, 1, H] records."""

    def __init__(self, spec: RecurrenceSpec, memory_shape: tuple[int, int, int], inputs_shape: tuple[int, int]) -> None:
        """`memory_shape` is H, K, V; `inputs_shape` is how many inputs of how many channels a state keeps."""
        super().__init__(spec)
        self.memory_shape, self.inputs_shape = memory_shape, inputs_shape
        self.weights, self.values, self.context = Tap(), Tap(), Tap()
        self.gates, self.states = Tap(), Tap()
        if self.decays:
            self.decay = Tap()

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.memory_shape[0]

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.memory_shape

    def initial_state(self, like: Tensor) -> MemoryState:
        weight, rows = next(self.parameters()), like.shape[0]
        # Sums over a long text would lose small additions in half precision.
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return MemoryState(
            weight.new_zeros(rows, *self.memory_shape, dtype=dtype), weight.new_zeros(rows, *self.inputs_shape)
        )

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, T, H·K] -> [B, H, T, K]"""
        by_head: Tensor = x.unflatten(-1, (self.heads, -1))
        return by_head.transpose(1, 2)

    def scan(
        self,
        steps: Steps,
        memory: Tensor,
        span: Span,
        skip: Tensor | None = None,
        divisor: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs [B, H, T, V] and the memory after them, in the precision of the memory whatever autocast says.

        Args:
            steps: For each token one, or several writes in a row: then k, v and b have more tokens than q.
            memory: The memory before the first token.
            span: Where padding is.
            skip: [B, H, T], so much of its own value is added to what a token reads: a weight on itself.
            divisor: With it, all values have a one behind them, and what a token reads of these ones [B, H, T, 1], a
                sum of weights, is not an output: the outputs are divided by what the function makes of it.
        """
        with torch.autocast(memory.device.type, enabled=False):
            wide = steps.map(lambda part: part.to(memory.dtype))
            if span.has_padding:
                wide = skip_padding(wide, span.valid)
            if wide.log_decay is not None and self.decay.is_recorded:
                self.decay(wide.log_decay.exp().transpose(1, 2).flatten(2))  # [B, T, H] or [B, T, H K]
            wide, writes = spread_writes(wide), len(wide.k[0, 0]) // span.count
            values = wide.v
            if divisor is not None:
                wide = wide._replace(v=F.pad(values, (0, 1), value=1.0))
            y, after = self._run(wide, memory, writes)
            scale = None if divisor is None else divisor(y[..., -1:]).reciprocal()
            if scale is not None:
                y = y[..., :-1] * scale
            if skip is not None:
                y = y + skip.to(y.dtype)[..., None] * values
            values = values.unflatten(2, (-1, writes)).transpose(2, 3)  # [B, H, writes, T, V]
            if self.values.is_recorded:
                self.values(values.flatten(1, 2))
            if self.weights.is_recorded:
                w, of_past = self._weights(wide, memory, writes, scale)
                w = w if skip is None else w + torch.diag_embed(skip.to(w.dtype))[:, :, None]
                w = self.weights(w.flatten(1, 2))
                y = of_past[..., : values.shape[-1]] + (w.unflatten(1, (-1, writes)) @ values).sum(2)
            return self.context(y) if self.context.is_recorded else y, after

    def _run(self, steps: Steps, memory: Tensor, writes: int) -> tuple[Tensor, Tensor]:
        if self.states.is_recorded:
            norms: list[Tensor] = []
            y, memory = recurrent(steps, memory, lambda after: norms.append(after.flatten(2).norm(dim=-1)))
            norms = norms[writes - 1 :: writes]
            self.states(torch.stack(norms, 1)[:, :, None], [(norm,) for norm in norms])
        elif self.spec.chunk == 1 or steps.k.shape[2] == 1:
            y, memory = recurrent(steps, memory)
        else:
            y, memory = chunkwise(steps, memory, self._chunk(memory), self.least_log_decay)
        return y[:, :, writes - 1 :: writes], memory

    def _weights(self, steps: Steps, memory: Tensor, writes: int, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """The implied attention of each write [B, H, writes, T, T], and what is read of the memory before the first
        token."""
        w = implied_attention(steps, self._chunk(memory), self.least_log_decay)[:, :, writes - 1 :: writes]
        nothing = steps._replace(v=torch.zeros_like(steps.v))
        of_past = chunkwise(nothing, memory, self._chunk(memory), self.least_log_decay)[0][:, :, writes - 1 :: writes]
        if scale is not None:
            w, of_past = w * scale, of_past * scale
        by_write: Tensor = w.unflatten(-1, (-1, writes)).movedim(-1, 2)
        return by_write, of_past

    def _chunk(self, memory: Tensor) -> int:
        """A GPU has more units than a small chunk can use."""
        return self.spec.chunk or CHUNKS.get(memory.device.type, CHUNKS["cuda"])


class QKVRecurrence(Recurrence):
    """Base class of recurrences with a query, a key and a value for each head, each behind a short convolution where
    one is wanted, and SiLU."""

    spec: MemorySpec

    def __init__(self, spec: MemorySpec, *, writes: int = 1) -> None:
        """`writes`: how many keys and values a token has in each head."""
        heads, key_width, value_width = require(spec.heads), spec.key_width, spec.value_width
        self.sizes = (heads * key_width, writes * heads * key_width, writes * heads * value_width)
        channels = sum(self.sizes)
        kept = max(spec.short_conv - 1, 0)
        super().__init__(spec, (heads, key_width, value_width), (kept, channels if kept else 0))
        self.project = nn.Linear(spec.width, channels, bias=False)
        self.convolution = ShortConvolution(channels, spec.short_conv) if kept else None

    def project_qkv(
        self, x: Tensor, inputs: Tensor, span: Span, *, silu: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q [B, T, H K], k and v of all writes [B, T, ·], and the newest inputs of the convolution. With `silu`, or
        behind a convolution, they are what it leaves of them."""
        qkv = self.project(x)
        if self.convolution is not None:
            qkv, inputs = self.convolution(qkv, inputs, span)
        if silu or self.convolution is not None:
            qkv = F.silu(qkv)
        q, k, v = qkv.split(self.sizes, dim=-1)
        return q, k, v, inputs


class HeadNorm(nn.Module):
    """Root mean square norm of each head by itself, with one scale for all heads, and a gate after it."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, y: Tensor, gate: Tensor | None = None) -> Tensor:
        """[B, H, T, V] and the gate [B, T, H·V] -> [B, T, H·V]"""
        y = F.rms_norm(y, self.weight.shape, self.weight.to(y.dtype), self.eps).transpose(1, 2).flatten(2)
        return y if gate is None else y * gate
