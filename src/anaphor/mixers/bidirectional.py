"""Any streaming mixer in both directions. What it says of a token depends on the whole sequence, so it has no state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anaphor.errors import ConfigError
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.linear import LinearSpec
from anaphor.mixers.recurrent import GRUSpec, LSTMSpec
from anaphor.mixers.spec import MixerSpec


@dataclass(frozen=True, kw_only=True)
class BidirectionalSpec(MixerSpec):
    """Two mixers of one kind, one for each direction; their outputs stand side by side."""

    inner: MixerSpec
    """The mixer of either direction. Twice its output width is the output width of the pair."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inner.streams:
            raise ConfigError(f"{type(self.inner).__name__} reads both directions already")
        if self.inner.width != self.width or 2 * self.inner.out != self.out:
            raise ConfigError(
                f"width={self.width} and width_out={self.out} do not fit: "
                f"the pair takes {self.inner.width} and gives {2 * self.inner.out}"
            )

    @classmethod
    def of(cls, inner: MixerSpec) -> BidirectionalSpec:
        return cls(inner=inner, width=inner.width, width_out=2 * inner.out)

    @property
    def noncausal_reason(self) -> str | None:
        return "one of its directions starts at the end"

    @property
    def limit(self) -> int | None:
        return self.inner.limit

    def build(self) -> Bidirectional:
        return Bidirectional(self)


def _both_directions(
    inner: type[MixerSpec], *, width: int, width_out: int | None = None, **options: Any
) -> BidirectionalSpec:
    out = width if width_out is None else width_out
    if out % 2:
        raise ConfigError(f"width_out={out} cannot be shared by two directions: it must be even")
    return BidirectionalSpec.of(inner(width=width, width_out=out // 2, **options))


BIDIRECTIONAL_GRU = partial(_both_directions, GRUSpec)
BIDIRECTIONAL_LSTM = partial(_both_directions, LSTMSpec)
BIDIRECTIONAL_LINEAR = partial(_both_directions, LinearSpec)


class Bidirectional(Mixer):
    spec: BidirectionalSpec

    def __init__(self, spec: BidirectionalSpec) -> None:
        super().__init__(spec)
        self.onward = spec.inner.build()
        self.returning = spec.inner.build()

    def initial_state(self, like: Tensor) -> tuple[()]:
        return ()

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, tuple[()]]:
        y, _ = self.onward(x, self.onward.initial_state(x), span)
        turned = reverse(x, span)
        z, _ = self.returning(turned, self.returning.initial_state(x), span)
        return torch.cat((y, reverse(z, span)), dim=-1), ()


def reverse(x: Tensor, span: Span) -> Tensor:
    """The real tokens of each row in reverse; padding stays where it is. [B, T, D] -> [B, T, D]"""
    if span.full:
        return x.flip(1)
    steps = torch.arange(x.shape[1], device=x.device)
    index = torch.where(span.valid, span.lengths[:, None] - 1 - steps, steps)
    return x.gather(1, index[..., None].expand_as(x))
