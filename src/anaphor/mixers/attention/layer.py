"""Softmax attention assembled from its parts: score, normalize, mask, position, merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.mixers.attention.heads import Headed, HeadedSpec, Visible
from anaphor.mixers.attention.mask import Mask, Window, check_far, parse_mask
from anaphor.mixers.attention.position import POSITIONS, check_limit
from anaphor.mixers.base import Span
from anaphor.mixers.spec import PositionOptions, ReachOptions, Sizes, check_at_least, required
from anaphor.mixers.state import Growing


class Memory(NamedTuple):
    """The past as attention keeps it: keys and values, and where they stood."""

    pairs: Growing
    """[B, 2, H, S, K]: keys, not yet rotated, and values."""
    positions: Growing | None
    """[B, S], -1 where a slot is empty. None: no slot is empty, and the last one is where its row stands."""


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(HeadedSpec, ReachOptions, PositionOptions):
    """Self-attention. A token attends to what `mask` and `window` allow; a carried state keeps `memory` tokens."""

    defaults: ClassVar[Mapping[str, Any]] = {**HeadedSpec.defaults, "mask": "causal"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and self.window < 1:
            raise ConfigError(f"window={self.window}: a token sees at least itself, so the least is 1")
        if self.memory is not None and self.memory < 1:
            raise ConfigError(f"memory={self.memory}: keep at least 1 token, or do not carry the state at all")
        if self.window is not None:
            check_far(f"window={self.window}", self.window)
        if self.memory is not None:
            check_far(f"memory={self.memory}", self.memory + 1)  # a token also sees itself
        check_at_least(1, max_positions=self.max_positions)
        reach = self.rule.reach
        if self.memory is not None and reach is not None and self.memory < reach - 1:
            raise ConfigError(
                f"memory={self.memory} is too short for a window of {reach}: "
                f"keep at least {reach - 1} tokens, or say so with a shorter window"
            )
        look_up(POSITIONS, self.position, "position")(self.sizes)

    @property
    def rule(self) -> Mask:
        """The mask and the window as one."""
        rule = parse_mask(required(self.mask))
        if self.window is not None:
            rule = rule & Window(self.window)
        return rule

    @property
    def sizes(self) -> Sizes:
        return replace(super().sizes, max_positions=self.max_positions)

    @property
    def noncausal_reason(self) -> str | None:
        if super().noncausal_reason is not None:
            return super().noncausal_reason
        if self.rule.causal:
            return None
        return f"mask {str(self.rule)!r} lets a token see later ones; 'causal & ({self.rule})' does not"

    @property
    def grows(self) -> bool:
        return self.streams and self.memory is None

    @property
    def limit(self) -> int | None:
        return self.max_positions if POSITIONS[self.position].bounded else None

    def build(self) -> Attention:
        return Attention(self)


class Attention(Headed):
    """Every new token looks at itself and at what the state remembers.

    A bounded memory also bounds what a token sees: itself and `memory` tokens before it, wherever the sequence was cut.
    The original Transformer-XL lets the last token of a segment see further back than the first; here the length of a
    segment is no part of the model.
    """

    spec: AttentionSpec
    state_type = Memory

    def __init__(self, spec: AttentionSpec, mask: Mask | None = None) -> None:
        """`mask` stands in for the spec's: a matrix given for whole sequences cannot be spelled out in a spec."""
        super().__init__(spec)
        rule = spec.rule if mask is None else mask
        self.rule = rule if spec.memory is None else rule & Window(spec.memory + 1)
        self.project = nn.Linear(spec.width, 3 * self.inner, bias=required(spec.bias))
        self.position = POSITIONS[spec.position](spec.sizes)

    @property
    def streams(self) -> bool:
        return self.merge.causal and self.rule.causal

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        return (2, self.heads, None, self.head_width)

    def initial_state(self, like: Tensor) -> Memory | tuple[()]:
        if not self.streams:
            return ()
        empty = like.new_zeros(like.shape[0], 2, self.heads, 0, self.head_width, dtype=self.out.weight.dtype)
        return Memory(Growing(empty, 3), positions=None)

    def state_bytes(self, tokens: int) -> int:
        if not self.streams:
            return 0
        kept = tokens if self.spec.memory is None else min(tokens, self.spec.memory)
        return kept * 2 * self.inner * self.out.weight.element_size()

    def mix(self, x: Tensor, state: Memory | tuple[()], span: Span) -> tuple[Tensor, Memory | tuple[()]]:
        # Values are read only where the host has them: asking a device would stall it.
        if self.spec.limit is not None and span.seen.device.type == "cpu":
            check_limit(int((span.seen + span.lengths).max()), self.spec.limit)
        place = self.position.embed(span.positions)
        if place is not None:
            x = x + place.to(x.dtype)
        rows, new, _ = x.shape
        projected = self.project(x).view(rows, new, 3, self.heads, self.head_width).permute(0, 2, 3, 1, 4)
        q, pairs = projected[:, 0], projected[:, 1:]  # [B, H, T, K], [B, 2, H, T, K]
        memory = self._extend(state, pairs, span) if isinstance(state, Memory) else _whole_sequence(pairs, span)
        k, v = memory.pairs.data.unbind(1)

        turned_q, turned_k, bias = q, k, None
        if self.position.door == "bias":
            bias = self.position.bias(q, k, *self._distances(memory, span))
        elif self.position.door == "rotate":
            turned_q = self.position.rotate(q, span.positions)
            turned_k = self.position.rotate(k, self._key_positions(memory, span))
        context = self.attend(turned_q, turned_k, v, self._visible(span, memory), bias)
        return self.join(context, q, span), self._trim(memory, span) if self.streams else ()

    def _extend(self, past: Memory, pairs: Tensor, span: Span) -> Memory:
        grown = past.pairs.append(pairs)
        if past.positions is None and span.full:
            return Memory(grown, positions=None)
        positions = past.positions
        if positions is None:  # the first empty slots: from now on every slot says where it stands
            positions = Growing(_row_of_positions(span.seen[:, None], len(past.pairs)), 1)
        return Memory(grown, positions.append(_positions_in(span)))

    def _key_positions(self, memory: Memory, span: Span) -> Tensor:  # [B, S]
        if memory.positions is not None:
            return memory.positions.data
        return _row_of_positions(span.seen[:, None] + span.count, len(memory.pairs))

    def _distances(self, memory: Memory, span: Span) -> tuple[Tensor, Tensor]:  # [B or 1, T], [B or 1, S]
        """Where queries and keys stand, for those who ask only how far apart. Without empty slots all rows look alike,
        counted from the first key that is kept: one of them then stands for all."""
        if memory.positions is None and span.full:
            keys = torch.arange(len(memory.pairs), device=span.seen.device)[None]
            return keys[:, -span.count :], keys
        return span.positions, self._key_positions(memory, span)

    def _visible(self, span: Span, memory: Memory) -> Visible:
        new, kept = span.count, len(memory.pairs)
        # Everything kept is near enough to be seen, so that only the order in time matters. With padding, a watched map
        # is spelled out: the shortcut would leave weights in the rows of tokens that do not exist.
        near = self.rule.banded and self.rule.causal and (self.rule.reach is None or kept <= self.rule.reach)
        if near and new == kept and (span.full or not self.weights.watched):
            return Visible(causal=True)
        if near and new == 1 and memory.positions is None:
            return Visible()
        if new == kept and self.rule.is_full(new) and (span.full or not self.weights.watched):
            return Visible() if span.full else Visible(span.valid[:, None, None, :])
        if self.rule.banded:
            queries, keys = self._distances(memory, span)
        else:
            queries, keys = span.positions, self._key_positions(memory, span)
        pairs = self.rule(queries[:, :, None], keys[:, None, :]).expand(len(keys), new, kept)
        if memory.positions is not None:
            pairs = pairs & (keys >= 0)[:, None, :]
        if not span.full:
            pairs = pairs & span.valid[:, :, None]
        # Within a band a token sees itself at least.
        return Visible(pairs[:, None], has_fully_masked_rows=not (self.rule.banded and span.full))

    def _trim(self, memory: Memory, span: Span) -> Memory:
        """Forget what no later token may see. By position: by slot, a short row would lose real tokens to padding.

        Rows of different lengths share slots, so there may be more than `memory` of them, but never more than that for
        each row.
        """
        keep = self.spec.memory
        if keep is None:
            return memory
        if memory.positions is None:
            return Memory(memory.pairs.last(keep), positions=None)
        following = (span.seen + span.lengths)[:, None]
        positions = memory.positions.data
        slots = ((positions >= 0) & (positions >= following - keep)).any(0).nonzero().squeeze(-1)
        kept = memory.positions.at(slots)
        return Memory(memory.pairs.at(slots), None if bool((kept.data >= 0).all()) else kept)


def _whole_sequence(pairs: Tensor, span: Span) -> Memory:
    """The keys and values of a sequence that is not continued: views, no copies."""
    return Memory(Growing(pairs, 3), None if span.full else Growing(_positions_in(span), 1))


def _positions_in(span: Span) -> Tensor:
    """[B, T], -1 in padding"""
    return span.positions.masked_fill(~span.valid, -1)


def _row_of_positions(following: Tensor, count: int) -> Tensor:
    """The `count` positions before the given one. [B, 1] -> [B, count]"""
    return following + torch.arange(-count, 0, device=following.device)
