"""Self-attention and cross-attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.config import check_at_least, look_up
from anaphor.errors import ConfigError
from anaphor.mixers.attention.heads import MultiHead, MultiHeadSpec, Visibility
from anaphor.mixers.attention.mask import Mask, check_distance, parse_mask, window
from anaphor.mixers.attention.position import POSITIONS, Rotation, check_max_positions
from anaphor.mixers.base import FixedBuffer, KVBuffer, Span
from anaphor.mixers.layers import Linear
from anaphor.mixers.spec import PositionOptions, ReachOptions, RotaryOptions, Sizes, require


def reset_projections(projections: Sequence[nn.Linear], out: nn.Linear) -> None:
    """Draw the weights of projections anew, and set their biases and that of the output to zero."""
    for projection in projections:
        nn.init.xavier_uniform_(projection.weight)
    for linear in (*projections, out):
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


class KVCache(NamedTuple):
    """State of self-attention: keys, values and their positions."""

    keys_values: KVBuffer
    """[B, 2, G, S, K]: keys before rotation, and values, of each head of keys and values."""
    positions: KVBuffer | None
    """[B, S], -1 in empty slots. None: no slot is empty, and the last one is at its row's last position."""

    def fixed_positions(self, used: int, size: int, past_length: Tensor, index: Tensor) -> FixedBuffer:
        """Positions of the first `used` slots and of empty ones, `size` in all, in a buffer that is written from
        `index` on. `past_length` [B] is the number of tokens so far."""
        positions = past_length.new_full((len(past_length), size), -1)
        before = (
            _positions_before(past_length[:, None], used) if self.positions is None else self.positions.data[:, :used]
        )
        positions[:, :used] = before
        return FixedBuffer(positions, 1, index=index)

    def with_positions(self, used: int, positions: FixedBuffer) -> KVCache:
        """The first `used` slots and empty ones, as many as there are positions."""
        kept = self.keys_values.data[:, :, :, :used]
        keys_values = kept.new_zeros(*kept.shape[:3], len(positions), kept.shape[-1])
        keys_values[:, :, :, :used] = kept
        return KVCache(FixedBuffer(keys_values, 3, index=positions.index), positions)


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(MultiHeadSpec, ReachOptions, RotaryOptions, PositionOptions):
    """Self-attention. A token attends to what `mask` and `window` allow; a carried state keeps what later tokens may
    attend to, and at most `memory` tokens."""

    defaults: ClassVar[Mapping[str, Any]] = {**MultiHeadSpec.defaults, "mask": "causal"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, window=self.window, memory=self.memory, max_positions=self.max_positions)
        if self.window is not None:
            check_distance(f"window={self.window}", self.window)
        if self.memory is not None:
            check_distance(f"memory={self.memory}", self.memory + 1)  # a token also attends to itself
        reach = self.combined_mask.reach
        if self.memory is not None and math.isfinite(reach) and self.memory < reach - 1:
            raise ConfigError(
                f"memory={self.memory} is too short for a window of {reach}: "
                f"keep at least {reach - 1} tokens, or use a shorter window"
            )
        position = look_up(POSITIONS, self.position, "position")
        for name, value in self._rotary_options.items():
            if position.method != "rotate":
                raise ConfigError(f"{name}={value!r} applies to position='rotary' only, not to {self.position!r}")
        position.check(self.sizes)

    @property
    def _rotary_options(self) -> dict[str, Any]:
        """Those that are given."""
        values = {field.name: getattr(self, field.name) for field in fields(RotaryOptions)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def combined_mask(self) -> Mask:
        """`mask` and `window` as one."""
        mask = parse_mask(require(self.mask))
        return mask if self.window is None else mask & window(self.window)

    @property
    def kept_tokens(self) -> int | None:
        """Number of past tokens that a carried state keeps; None means all."""
        reach = self.combined_mask.reach
        window = None if math.isinf(reach) else int(reach) - 1
        return self.memory if window is None else window

    @property
    def sizes(self) -> Sizes:
        return replace(super().sizes, max_positions=self.max_positions, **self._rotary_options)

    @property
    def noncausal_reason(self) -> str | None:
        mask = self.combined_mask
        if super().noncausal_reason is not None or mask.is_causal:
            return super().noncausal_reason
        return f"mask {str(mask)!r} lets a token attend to later ones; 'causal & ({mask})' does not"

    @property
    def grows(self) -> bool:
        return self.streams and self.kept_tokens is None

    @property
    def carries_by_default(self) -> bool:
        # A window says what a token attends to; a memory says that it reaches into the segment before.
        return self.streams and self.memory is not None

    @property
    def limit(self) -> int | None:
        return self.max_positions if POSITIONS[self.position].has_limit else None

    def build(self) -> Attention:
        return Attention(self)


class Attention(MultiHead):
    """Self-attention to the new tokens and to those in the state.

    A bounded memory also bounds what a token attends to: itself and `memory` tokens before it, wherever the sequence
    was cut. In the original Transformer-XL the last token of a segment reaches further back than the first; here the
    length of a segment is not part of the model.
    """

    spec: AttentionSpec
    state_type = KVCache

    def __init__(self, spec: AttentionSpec, mask: Mask | None = None) -> None:
        """`mask` replaces the one of the spec, which cannot express a matrix."""
        super().__init__(spec)
        mask = spec.combined_mask if mask is None else mask
        self.mask = mask if spec.memory is None else mask & window(spec.memory + 1)
        self.kept_tokens = None if math.isinf(self.mask.reach) else int(self.mask.reach) - 1
        self.project = Linear(spec.width, self.inner_width + 2 * self.kv_width, bias=require(spec.bias))
        self.position = POSITIONS[spec.position](spec.sizes)
        self.rotary_settings = f"{spec._rotary_options} {self.head_width}"  # layers with the same ones share angles

    def reset_parameters(self) -> None:
        """As torch's attention: the three projections are initialized as one matrix, biases are zero."""
        reset_projections([self.project], self.out)

    @property
    def streams(self) -> bool:
        return self.merge.is_causal and self.mask.is_causal

    @property
    def state_shape(self) -> tuple[int | None, ...]:
        return (2, self.kv_heads, None, self.head_width)

    def initial_state(self, like: Tensor) -> KVCache | tuple[()]:
        if not self.streams:
            return ()
        empty = like.new_zeros(like.shape[0], 2, self.kv_heads, 0, self.head_width, dtype=self.out.weight.dtype)
        return KVCache(KVBuffer(empty, 3), positions=None)

    def state_bytes(self, tokens: int) -> int:
        if not self.streams:
            return 0
        kept = tokens if self.kept_tokens is None else min(tokens, self.kept_tokens)
        return kept * 2 * self.kv_width * self.out.weight.element_size()

    def mix(self, x: Tensor, state: KVCache | tuple[()], span: Span) -> tuple[Tensor, KVCache | tuple[()]]:
        if self.spec.limit is not None and span.past_length.device.type == "cpu":  # elsewhere reading values would sync
            check_max_positions(int(span.following.max()), self.spec.limit)
        position = self.position
        if position.method == "embed":
            embedded = position.embed(span.positions)
            assert embedded is not None, "such an encoding has vectors"
            x = x + embedded.to(x.dtype)
        rows, new, _ = x.shape
        projected = self.project(x).view(rows, new, -1, self.head_width).transpose(1, 2)  # [B, H + 2G, T, K]
        # Where nothing came before, no gradient flows through the cache, and that of all three is written once.
        q, k, v = torch.split_with_sizes(projected, (self.heads, self.kv_heads, self.kv_heads), dim=1)
        keys_values = projected[:, self.heads :].view(rows, 2, self.kv_heads, new, self.head_width)
        if self.k_norm is not None:
            q, k = self.norm_queries(q), self.norm_keys(k)
            keys_values = torch.stack((k, v), 1)
        if isinstance(state, KVCache):
            cache = _extend(state, keys_values, span)
        else:  # the sequence is not continued: views, no copies
            cache = KVCache(KVBuffer(keys_values, 3), _first_positions(span) if span.has_padding else None)
        if len(cache.keys_values) > new:
            k, v = cache.keys_values.data.unbind(1)

        rotated_q, rotated_k, bias = q, k, None
        if position.method == "bias":
            bias = position.bias(q, self.for_each_query_head(k), *_relative_positions(cache, span))
        elif position.method == "rotate":
            of_queries, of_keys = self._rotations(cache, span, q.dtype)
            rotated_q, rotated_k = position.rotate(q, of_queries), position.rotate(k, of_keys)
        context = self.attend(rotated_q, rotated_k, v, self._visibility(span, cache), bias)
        return self.project_out(context, q, span), self._trim(cache, span) if self.streams else ()

    def _rotations(self, cache: KVCache, span: Span, dtype: torch.dtype) -> tuple[Rotation, Rotation]:
        """Those of queries and keys; layers with the same settings share them."""
        settings, slots = f"{dtype} {self.rotary_settings}", len(cache.keys_values)
        of_queries = span.once(f"rotation {settings}", None, lambda: self.position.rotation(span.positions, dtype))
        if slots == span.count and cache.positions is None:
            return of_queries, of_queries
        return of_queries, span.once(
            f"rotation of {slots} keys {settings}",
            cache.positions,
            lambda: self.position.rotation(_key_positions(cache, span), dtype),
        )

    def can_mix_first(self, count: int) -> bool:
        """Whether `mix_first` gives what `mix` gives for whole sequences of so many tokens."""
        plain = self.mask.full_up_to >= count and self.position.method is None and self.merge.is_causal
        return plain and not self.weights.is_recorded

    def mix_first(self, x: Tensor, count: int, span: Span) -> Tensor:
        """Outputs of the first tokens of whole sequences alone, which is less work; zero in padding.
        [B, T, D] -> [B, count, D]"""
        weight, bias, inner = self.project.weight, self.project.bias, self.inner_width
        q = F.linear(x[:, :count], weight[:inner], None if bias is None else bias[:inner])
        keys_values = F.linear(x, weight[inner:], None if bias is None else bias[inner:])
        k, v = map(self.split_heads, keys_values.chunk(2, dim=-1))
        q, k = self.norm_queries(self.split_heads(q)), self.norm_keys(k)
        keys = Visibility(span.valid[:, None, None, :] if span.has_padding else None)
        lengths = span.lengths.clamp(max=count) if span.has_padding else None
        first = Span(span.past_length, count, lengths)
        return first.zero_padding(self.project_out(self.attend(q, k, v, keys), q, first))

    def _visibility(self, span: Span, cache: KVCache) -> Visibility:
        new, kept, mask = span.count, len(cache.keys_values), self.mask
        # A recorded map of padded rows is spelled out: without a mask it would have weights in the rows of padding.
        is_exact = not (span.has_padding and self.weights.is_recorded)
        # All keys are within reach, so that only their order matters.
        is_plain_causal = mask.is_band and mask.is_causal and kept <= mask.reach
        if is_plain_causal and new == kept and is_exact:
            return Visibility(is_causal=True)
        if is_plain_causal and new == 1 and cache.positions is None:
            return Visibility()
        if is_plain_causal and new == 1 and cache.positions is not None and not span.has_padding:
            # The newest token comes after all others: it attends to every slot that is used.
            return span.once("used slots", cache.positions, partial(_used_slots, cache.positions))
        if new == kept and new <= mask.full_up_to and is_exact:
            return Visibility(span.valid[:, None, None, :] if span.has_padding else None)
        if mask.is_band:
            queries, keys = _relative_positions(cache, span)
        else:
            queries, keys = span.positions, _key_positions(cache, span)
        allowed = mask(queries[:, :, None], keys[:, None, :]).expand(len(keys), new, kept)
        if cache.positions is not None:
            allowed = allowed & (keys >= 0)[:, None, :]
        if span.has_padding:
            allowed = allowed & span.valid[:, :, None]
        # In a band, a token attends at least to itself.
        return Visibility(allowed[:, None], has_fully_masked_rows=span.has_padding or not mask.is_band)

    def _trim(self, cache: KVCache, span: Span) -> KVCache:
        """Drop what no later token may attend to. By position: by slot, a short row would lose tokens to padding.

        Rows of different lengths share slots, so there may be more than `keep` slots, but in each row at most `keep` of
        them are used.
        """
        keep, positions = self.kept_tokens, cache.positions
        if keep is None or isinstance(positions, FixedBuffer):  # there the newest tokens replace the oldest
            return cache
        if positions is None:
            return KVCache(cache.keys_values.keep_last(keep), positions=None)
        if torch.is_grad_enabled() and self.spec.memory is None:
            # To read which slots are used would wait for the device, and padded examples of training end here.
            return cache
        slots, kept = span.once(f"last {keep}", positions, lambda: _last_slots(positions, keep, span))
        return KVCache(cache.keys_values.select(slots), kept)


def _extend(past: KVCache, keys_values: Tensor, span: Span) -> KVCache:
    extended = past.keys_values.append(keys_values)
    if past.positions is None and not span.has_padding:
        return KVCache(extended, positions=None)
    # Layers that have seen the same tokens share one buffer of positions, which is extended once.
    positions, slots = past.positions, len(past.keys_values)
    if positions is not None:
        return KVCache(extended, span.once("positions", positions, lambda: positions.append(_positions_in(span))))
    if slots == 0:
        return KVCache(extended, _first_positions(span))
    # The first empty slots: from now on every slot has a position.
    return KVCache(
        extended, KVBuffer(_positions_before(span.past_length[:, None], slots), 1).append(_positions_in(span))
    )


def _first_positions(span: Span) -> KVBuffer:
    """Positions of a cache that had no slots before these tokens."""
    return span.once("positions", None, lambda: KVBuffer(_positions_in(span), 1))


def _used_slots(positions: KVBuffer) -> Visibility:
    return Visibility((positions.data >= 0)[:, None, None, :], has_fully_masked_rows=False)


def _last_slots(positions: KVBuffer, keep: int, span: Span) -> tuple[Tensor, KVBuffer | None]:
    """The slots that hold one of the last `keep` tokens of a row, and their positions; None if no slot is empty."""
    used = (positions.data >= 0) & (positions.data >= span.following[:, None] - keep)
    slots = used.any(0).nonzero().squeeze(-1)
    kept = positions.select(slots)
    return slots, None if bool((kept.data >= 0).all()) else kept


def _positions_in(span: Span) -> Tensor:
    """[B, T], -1 in padding"""
    return span.positions.masked_fill(~span.valid, -1) if span.has_padding else span.positions


def _positions_before(following: Tensor, count: int) -> Tensor:
    """The `count` positions before the given one. [B, 1] -> [B, count]"""
    return following + torch.arange(-count, 0, device=following.device)


def _key_positions(cache: KVCache, span: Span) -> Tensor:  # [B, S]
    if cache.positions is not None:
        return cache.positions.data
    return _positions_before(span.past_length[:, None] + span.count, len(cache.keys_values))


def _relative_positions(cache: KVCache, span: Span) -> tuple[Tensor, Tensor]:  # [B or 1, T], [B or 1, S]
    """Positions of queries and keys whose differences are right. Without empty slots they are the same in all rows,
    counted from the first key that is kept."""
    if cache.positions is None and not span.has_padding:
        keys = torch.arange(len(cache.keys_values), device=span.past_length.device)[None]
        return keys[:, -span.count :], keys
    return span.positions, _key_positions(cache, span)


class Source(NamedTuple):
    """State of cross-attention: the projected source. It never changes; gradient flows through it to the encoder."""

    keys: Tensor  # [B, G, S, K]
    values: Tensor  # [B, G, S, K]
    valid: Tensor | None  # [B, S]; None: no padding


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(MultiHeadSpec):
    """Attention to a source that is given once, in `initial_state`."""

    source_width: int | None = None
    """Dimension of the source vectors; None means the same as the input."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noncausal_reason is not None:
            raise ConfigError(f"{self.noncausal_reason}: cross-attention processes its queries one by one")

    def build(self) -> CrossAttention:
        return CrossAttention(self)


class CrossAttention(MultiHead):
    """Every token attends to all valid tokens of the source."""

    spec: CrossAttentionSpec
    state_type = Source

    def __init__(self, spec: CrossAttentionSpec) -> None:
        super().__init__(spec)
        self.source_width = spec.width if spec.source_width is None else spec.source_width
        self.query = Linear(spec.width, self.inner_width, bias=require(spec.bias))
        self.project = Linear(self.source_width, 2 * self.kv_width, bias=require(spec.bias))

    def reset_parameters(self) -> None:
        """As torch's attention: the projections of the source are initialized as one matrix, biases are zero."""
        reset_projections([self.query, self.project], self.out)

    def initial_state(self, like: Tensor, lengths: Tensor | None = None) -> Source:
        """`like` is the source itself [B, S, D], `lengths` the number of valid tokens in each row."""
        if like.ndim != 3 or like.shape[-1] != self.source_width:
            raise ConfigError(f"the source must be [rows, tokens, {self.source_width}], but it is {list(like.shape)}")
        k, v = (self.split_heads(part) for part in self.project(like).chunk(2, dim=-1))
        return Source(self.norm_keys(k), v, None if lengths is None else Span.whole(like, lengths).valid)

    def state_bytes(self, tokens: int) -> int:
        """Bytes of one row whose source has so many tokens."""
        return tokens * 2 * self.kv_width * self.out.weight.element_size()

    def mix(self, x: Tensor, state: Source, span: Span) -> tuple[Tensor, Source]:
        q = self.norm_queries(self.split_heads(self.query(x)))
        context = self.attend(q, state.keys, state.values, self._visibility(state, span))
        return self.project_out(context, q, span), state

    def _visibility(self, state: Source, span: Span) -> Visibility:
        keys = None if state.valid is None else state.valid[:, None, None, :]  # [B, 1, 1, S]
        # Outputs in padding are discarded; only a recorded map must be zero there.
        if not (span.has_padding and self.weights.is_recorded):
            return Visibility(keys)
        queries = span.valid[:, None, :, None].expand(-1, -1, -1, state.keys.shape[2])
        return Visibility(queries if keys is None else queries & keys)
