"""Cross-attention: a sequence looks at another one. Its state is the projected source and never changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from anaphor.errors import ConfigError
from anaphor.mixers.attention.heads import Headed, HeadedSpec, Visible
from anaphor.mixers.base import Span
from anaphor.mixers.spec import required


class Source(NamedTuple):
    """What is looked at. Gradient flows through it into whatever made the source."""

    keys: Tensor  # [B, H, S, K]
    values: Tensor  # [B, H, S, K]
    valid: Tensor | None  # [B, S]; None: no padding


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(HeadedSpec):
    """Attention to a source that is handed over once, when the state is made."""

    source_width: int | None = None
    """Size of every source vector; None means the same as the tokens that look at it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noncausal_reason is not None:
            raise ConfigError(f"{self.noncausal_reason}: tokens that look at a source come one by one")

    def build(self) -> CrossAttention:
        return CrossAttention(self)


class CrossAttention(Headed):
    """Every token looks at all real tokens of the source."""

    spec: CrossAttentionSpec
    state_type = Source

    def __init__(self, spec: CrossAttentionSpec) -> None:
        super().__init__(spec)
        self.source_width = spec.width if spec.source_width is None else spec.source_width
        self.query = nn.Linear(spec.width, self.inner, bias=required(spec.bias))
        self.project = nn.Linear(self.source_width, 2 * self.inner, bias=required(spec.bias))

    def initial_state(self, like: Tensor, lengths: Tensor | None = None) -> Source:
        """`like` is the source itself [B, S, D], `lengths` how much of each row is real."""
        if like.ndim != 3 or like.shape[-1] != self.source_width:
            raise ConfigError(f"the source must be [rows, tokens, {self.source_width}], but it is {list(like.shape)}")
        k, v = (self.split(part) for part in self.project(like).chunk(2, dim=-1))
        return Source(k, v, None if lengths is None else Span.whole(like, lengths).valid)

    def state_bytes(self, tokens: int) -> int:
        """Of one row whose source has so many tokens."""
        return tokens * 2 * self.inner * self.out.weight.element_size()

    def mix(self, x: Tensor, state: Source, span: Span) -> tuple[Tensor, Source]:
        q = self.split(self.query(x))
        return self.join(self.attend(q, state.keys, state.values, self._visible(state, span)), q, span), state

    def _visible(self, state: Source, span: Span) -> Visible:
        keys = None if state.valid is None else state.valid[:, None, None, :]  # [B, 1, 1, S]
        # Outputs for padding are discarded; only a recorded map must be zero there.
        if span.full or not self.weights.watched:
            return Visible(keys)
        queries = span.valid[:, None, :, None].expand(-1, -1, -1, state.keys.shape[2])
        return Visible(queries if keys is None else queries & keys)
