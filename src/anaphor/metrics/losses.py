"""Losses per token: added up, and as a result with perplexity and bits per byte. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anaphor.metrics.result import Result

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LossTotal:
    """Loss summed over tokens. Totals of parts add up to the total of the whole."""

    total: float
    """Nats, summed over tokens."""
    tokens: int
    """Number of predicted tokens."""
    bytes: int | None = None
    """Size of their text; None where only a part of it was predicted."""
    causal: bool = True
    """Whether each token was predicted from earlier ones alone; otherwise there is no perplexity."""

    def __add__(self, other: LossTotal) -> LossTotal:
        both = None if self.bytes is None or other.bytes is None else self.bytes + other.bytes
        causal = self.causal and other.causal
        return LossTotal(self.total + other.total, self.tokens + other.tokens, both, causal)

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.total / self.tokens

    @property
    def perplexity(self) -> float | None:
        if not self.causal:
            return None
        return math.inf if self.loss > 700 else math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float | None:
        """Comparable between models with different tokenizers."""
        return None if not self.bytes or not self.causal else self.total / math.log(2) / self.bytes


def format_perplexity(perplexity: float | None) -> str:
    """For a line of a table or of a log."""
    return "no perplexity (later tokens were seen)" if perplexity is None else f"perplexity {perplexity:.2f}"


@dataclass(frozen=True)
class LossResult(Result):
    """Loss, perplexity and bits per byte of a text, and the total they are computed from."""

    total: LossTotal = field(kw_only=True)


def loss_result(
    total: LossTotal, metadata: Mapping[str, Any], others: Mapping[str, float] | None = None, **details: Any
) -> LossResult:
    """The result of a total; `others` are further metrics, such as BLEU."""
    values = {"loss": total.loss, "perplexity": total.perplexity, "bits_per_byte": total.bits_per_byte}
    return LossResult(values | dict(others or {}), metadata, {"tokens": total.tokens, **details}, total=total)


class LossMeter:
    """Adds up losses on the device; the total is read once, at the end."""

    def __init__(self, *, causal: bool = True) -> None:
        self._total: Tensor | None = None
        self.tokens = 0
        self.causal = causal

    def add(self, total: Tensor, tokens: int) -> None:
        # In double precision, because small losses vanish in a sum over millions of tokens.
        from anaphor.precision import to_double

        total = to_double(total.detach())
        self._total = total if self._total is None else self._total + total
        self.tokens += tokens

    def read(self, size: int | None = None) -> LossTotal:
        return LossTotal(0.0 if self._total is None else float(self._total), self.tokens, size, self.causal)
