"""Pooled attention: a score for each token, one average for the whole sequence.

    α_t = 1/√T · Σ_j (Q x_t)·(K x_j)        y_t = Σ_j e^{α_j} V x_j / Σ_j e^{α_j}

Summing the keys first, α_t = 1/√T · (Q x_t)·(K Σ_j x_j), costs O(T) instead of O(T²). The right-hand side of y_t does
not contain t: every token of a sequence gets the same output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anaphor.mixers.attention.normalize import softmax
from anaphor.mixers.base import Mixer, Span
from anaphor.mixers.spec import MixerSpec
from anaphor.taps import Tap


def scores_at_once(q: Tensor, k: Tensor) -> Tensor:
    """O(T): the keys are summed before they meet a query. [B, T, D], [B, T, D] -> [B, T], not yet divided by √T"""
    return (q @ k.sum(1)[:, :, None]).squeeze(-1)


def scores_pair_by_pair(q: Tensor, k: Tensor) -> Tensor:
    """O(T²): as the formula is written. The slow twin."""
    return (q @ k.transpose(-1, -2)).sum(-1)


@dataclass(frozen=True, kw_only=True)
class PooledSpec(MixerSpec):
    """One weighted average of the sequence, the same for every token."""

    @property
    def noncausal_reason(self) -> str | None:
        return "it averages all tokens, later ones too"

    def build(self) -> Pooled:
        return Pooled(self)


class Pooled(Mixer):
    def __init__(self, spec: PooledSpec) -> None:
        super().__init__(spec)
        self.query = nn.Linear(spec.width, spec.width, bias=False)
        self.key = nn.Linear(spec.width, spec.width, bias=False)
        self.value = nn.Linear(spec.width, spec.out, bias=False)
        self.weights = Tap()

    def initial_state(self, like: Tensor) -> tuple[()]:
        return ()

    def mix(self, x: Tensor, state: Any, span: Span) -> tuple[Tensor, tuple[()]]:
        x = span.clear(x)
        lengths: Tensor | int = x.shape[1] if span.full else span.lengths.clamp(min=1)[:, None]
        root = math.sqrt(lengths) if isinstance(lengths, int) else lengths.to(x.dtype).sqrt()
        scores = scores_at_once(self.query(x), self.key(x)) / root
        weights = self.weights(softmax(scores, span.valid))  # [B, T]
        pooled = weights[:, None, :] @ self.value(x)  # [B, 1, D]
        return pooled.expand(-1, x.shape[1], -1), ()
