"""The mathematics of recurrences whose state is a vector, each channel by itself, in three forms.

    h_t = a_t h_{t-1} + b_t

The decays a, between 0 and 1, and what is added, b, come from the tokens alone. minGRU, minLSTM and the RG-LRU differ
only in how they compute the two.

- `recurrent` is the formula, token by token: the one to read, and the fastest for one token.
- `scan` computes the same in about 3 √T steps in place of T: all chunks of tokens go through their tokens side by side.
- `implied_attention` is the matrix with h = W v of each channel: how much of the value of token s is in the state after
  token t.

Nothing is divided by a decay and no logarithm is taken, so that all of them are exact however strong a decay is.
Shapes: B rows, T tokens, N chunks of C tokens, D channels, and any axes behind these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def recurrent(decay: Tensor, added: Tensor, hidden: Tensor) -> list[Tensor]:
    """The state after each token: T times [B, D]. [B, T, D], [B, T, D], [B, D]"""
    states = []
    for a_t, b_t in zip(decay.unbind(1), added.unbind(1), strict=True):
        hidden = torch.addcmul(b_t, a_t, hidden)
        states.append(hidden)
    return states


def scan(decay: Tensor, added: Tensor, hidden: Tensor, chunk: int) -> Tensor:
    """The states of `recurrent`, stacked: [B, T, D]."""
    return _differentiable_scan(decay.expand_as(added), added, hidden, chunk, False)


def implied_attention(decay: Tensor, write: Tensor, chunk: int) -> Tensor:
    """W [B, D, T, T], where `write` times a value is added and the state is zero at first: the recurrence applied to
    the identity. [B, T, D] twice"""
    added = torch.diag_embed(write.transpose(1, 2)).movedim(1, 2)  # [B, T, D, T]
    w = scan(decay[..., None], added, torch.zeros_like(added[:, 0]), chunk)
    return w.movedim(2, 1)


class _Scan(torch.autograd.Function):
    """`scan` with its gradient, which is the same recurrence from the last token to the first.

        G_t = g_t + a_{t+1} G_{t+1}        db_t = G_t        da_t = G_t h_{t-1}

    Autograd would keep each step and go through all of them one by one.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, added: Tensor, hidden: Tensor, chunk: int, backwards: bool) -> Tensor:
        states = _scan(decay, added, hidden, chunk, backwards)
        ctx.save_for_backward(decay, hidden, states)
        ctx.chunk, ctx.backwards = chunk, backwards
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        decay, hidden, states = ctx.saved_tensors
        zero = torch.zeros_like(hidden)
        following, before = _shift(decay, zero, not ctx.backwards), _shift(states, hidden, ctx.backwards)
        total = _differentiable_scan(following, gradient, zero, ctx.chunk, not ctx.backwards)
        first = -1 if ctx.backwards else 0
        return total * before, total, total[:, first] * decay[:, first], None, None


def _differentiable_scan(decay: Tensor, added: Tensor, hidden: Tensor, chunk: int, backwards: bool) -> Tensor:
    states: Tensor = _Scan.apply(decay, added, hidden, chunk, backwards)  # type: ignore[no-untyped-call]
    return states


def _shift(x: Tensor, first: Tensor, backwards: bool) -> Tensor:
    """What stood one token before, or one after where the direction is backwards. [B, T, D], [B, D] -> [B, T, D]"""
    return torch.cat((x[:, 1:], first[:, None]) if backwards else (first[:, None], x[:, :-1]), dim=1)


def _scan(decay: Tensor, added: Tensor, hidden: Tensor, chunk: int, backwards: bool) -> Tensor:
    """All chunks go side by side twice: from zero, for what a chunk does to the state as a whole; and once the states
    between the chunks are known, by a scan over the chunks, from those."""
    tokens = added.shape[1]
    if tokens <= chunk:
        in_order = recurrent(*((decay.flip(1), added.flip(1)) if backwards else (decay, added)), hidden)
        return torch.stack(in_order[::-1] if backwards else in_order, dim=1)
    decay, added = _split(decay, chunk, 1.0), _split(added, chunk, 0.0)  # [B, N, C, D]
    steps = list(zip(decay.unbind(2), added.unbind(2), range(chunk), strict=True))
    steps = steps[::-1] if backwards else steps
    total, end, _ = steps[0]
    for a, b, _ in steps[1:]:
        total, end = total * a, torch.addcmul(b, a, end)
    ends = _scan(total, end, hidden, chunk, backwards)
    state, states = _shift(ends, hidden, backwards), torch.empty_like(added)
    for a, b, place in steps:
        state = torch.addcmul(b, a, state, out=states[:, :, place])
    return states.flatten(1, 2)[:, :tokens]


def _split(x: Tensor, size: int, value: float) -> Tensor:
    """[B, T, D …] -> [B, N, C, D …], filled up with the value: the state stays as it is behind the last token."""
    missing = -x.shape[1] % size
    filled = F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing), value=value) if missing else x
    chunks: Tensor = filled.unflatten(1, (-1, size))
    return chunks
