"""The mathematics of recurrences whose state is a matrix for each head, in three forms.

A head has a memory S [K, V], which a token decays, corrects and writes to, before it reads:

    S_t = (I + a_t b_tᵀ) D_t S_{t-1} + k_t v_tᵀ        y_t = S_tᵀ q_t

D_t is a diagonal matrix of decays between 0 and 1: none at all, one number for a head, or one for each channel of the
keys. The correction a_t b_tᵀ reads what the memory says in the direction b and writes it back along a: with a = -k it
is the delta rule, which replaces the value that the memory has for a key. Retention, gated linear attention, DeltaNet,
Mamba-2 and RWKV-7 differ only in how they compute these six from a token.

- `recurrent` is the formula, token by token: the one to read, and the fastest for one token.
- `chunkwise` computes the same with matrix products over chunks of tokens: the one that runs.
- `implied_attention` is the matrix W with y = W v, which every such recurrence has: what token t reads of token s.

Decays are kept as logarithms, and only differences that are at most zero are exponentiated, so that nothing overflows
however strong the decay. Shapes: B rows, H heads, T tokens, N chunks of C tokens, K width of a key, V of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

SAFE = 40.0
"""exp of this, and one over it, are far from the limits of single precision."""


class Steps(NamedTuple):
    """What the tokens do to the memory, one step each."""

    q: Tensor
    """[B, H, T, K]: what is read."""
    k: Tensor
    """[B, H, T, K]: where is written."""
    v: Tensor
    """[B, H, T, V]: what is written."""
    log_decay: Tensor | None = None
    """[B, H, T, 1] or [B, H, T, K], at most 0: the logarithm of D. None: nothing decays."""
    b: Tensor | None = None
    """[B, H, T, K]: the direction in which the decayed memory is read to be corrected. None: nothing is corrected."""
    a: Tensor | None = None
    """[B, H, T, K]: where that is written back. None means -k, the delta rule."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Steps:
        """The same with what the function makes of each tensor."""
        parts: list[Any] = [None if part is None else function(part) for part in self]
        return Steps(*parts)


def skip_padding(steps: Steps, valid: Tensor) -> Steps:
    """Steps that leave the memory as it is in padding. `valid` is [B, T]."""
    padding = ~valid[:, None, :, None]
    q, k, v, log_decay, b, a = steps
    return Steps(q, _zero(k, padding), v, _zero(log_decay, padding), _zero(b, padding), _zero(a, padding))


def _zero(x: Any, padding: Tensor) -> Any:
    if x is None:
        return None
    return x.masked_fill(padding.repeat_interleave(x.shape[2] // padding.shape[2], dim=2), 0)


def spread_writes(steps: Steps) -> Steps:
    """A step for each write, where tokens write several times: k, v and b [B, H, T n, ·] have n in a row for a token.
    It decays before the first one and reads after the last one, so that only every n-th output counts."""
    writes = steps.k.shape[2] // steps.q.shape[2]
    if writes == 1:
        return steps
    q = F.pad(steps.q[..., None, :], (0, 0, writes - 1, 0)).flatten(2, 3)
    if steps.log_decay is None:
        return steps._replace(q=q)
    log_decay = F.pad(steps.log_decay[..., None, :], (0, 0, 0, writes - 1)).flatten(2, 3)
    return steps._replace(q=q, log_decay=log_decay)


def initial_memory(steps: Steps) -> Tensor:
    """Zeros [B, H, K, V]."""
    return steps.k.new_zeros(*steps.k.shape[:2], steps.k.shape[-1], steps.v.shape[-1])


# ---- token by token


def recurrent(steps: Steps, memory: Tensor, listen: Callable[[Tensor], None] | None = None) -> tuple[Tensor, Tensor]:
    """Outputs [B, H, T, V] and the memory after the last token. `listen` gets the memory after each token."""
    q, k, v = (part.unbind(2) for part in steps[:3])
    log_decay, b, a = (None if part is None else part.unbind(2) for part in steps[3:])
    outputs = []
    for t, (q_t, k_t, v_t) in enumerate(zip(q, k, v, strict=True)):
        if log_decay is not None:
            memory = log_decay[t].exp()[..., None] * memory
        if b is not None:
            u_t = b[t][..., None, :] @ memory  # what the memory says, [B, H, 1, V]
            memory = memory - k_t[..., None] * u_t if a is None else memory + a[t][..., None] * u_t
        memory = memory + k_t[..., None] * v_t[..., None, :]
        if listen is not None:
            listen(memory)
        outputs.append(q_t[..., None, :] @ memory)
    return torch.cat(outputs, dim=2), memory


# ---- in chunks


def chunkwise(steps: Steps, memory: Tensor, chunk: int, least: float = -torch.inf) -> tuple[Tensor, Tensor]:
    """The same as `recurrent`, with matrix products over chunks of so many tokens (a power of two).

    Within a chunk everything is linear in the memory S at its start. All factors are computed at once for all chunks;
    what goes from chunk to chunk is only S, and what is corrected, which depends on it. `least`: no logarithm of a
    decay is below this, which may make decays by channel faster.
    """
    rows, heads, tokens, _ = steps.q.shape
    size = min(chunk, 1 << (tokens - 1).bit_length())
    q, k, v, log_decay, b, a = steps.map(lambda part: _split(part, size))
    g = left = None
    forget = Forgetting()
    q_past, b_past = q, b  # read what a token finds of S
    if log_decay is not None:
        g = log_decay.cumsum(-2)
        past, last = g.exp(), g[..., -1:, :]
        q_past, b_past = q * past, None if b is None else b * past
        if can_be_divided(g, least):  # exp(g_t - g_s) = exp(g_t) / exp(g_s)
            growth = (-g).exp()
            q, b, k, a, g = q_past, b_past, k * growth, None if a is None else a * growth, None
            forget = Forgetting(after=last.exp().mT)
        else:
            left = (last - g).exp()
            forget = Forgetting(before=last.exp().mT)
    k_left = k if left is None else k * left
    memory = memory.flatten(0, 1)
    if b is None or b_past is None:
        (w,) = decayed_products([q], [k], g)
        starts, memory = _carry(memory, k_left.mT @ v, forget)
        y = w.tril() @ v
    elif a is None:  # the delta rule writes x = v - u along k, where u is what the memory says
        w, c = decayed_products([q, b], [k], g)
        starts, x, memory = _carry_corrected(memory, _solve(c, v, -b_past), k_left, None, forget)
        y = w.tril() @ x
    else:
        w_k, w_a, c_k, c_a = decayed_products([q, b], [k, a], g)
        a_left, correction = a if left is None else a * left, _solve(-c_a, c_k.tril(-1) @ v, b_past)
        starts, u, memory = _carry_corrected(memory, correction, a_left, k_left.mT @ v, forget)
        y = _add_product(w_k.tril() @ v, w_a.tril(), u)
    y = _add_product(y, q_past, starts).flatten(1, 2)[:, :tokens]
    return y.unflatten(0, (rows, heads)), memory.unflatten(0, (rows, heads))


def _split(x: Tensor, size: int) -> Tensor:
    """[B, H, T, ·] -> [B H, N, C, ·]; zeros behind the last token change nothing."""
    missing = -x.shape[2] % size
    chunks: Tensor = (F.pad(x, (0, 0, 0, missing)) if missing else x).flatten(0, 1).unflatten(1, (-1, size))
    return chunks


def can_be_divided(g: Tensor, least: float) -> bool:
    """Whether decays by channel may be divided by one another within a chunk without an overflow: where they are known
    to be so weak, and on a CPU, which need not wait for values, where they are found to be. `g` [.., C, K] is the sum
    of their logarithms."""
    if g.shape[-1] == 1:  # one number for a pair of tokens: there is nothing to gain
        return False
    if -least * g.shape[-2] <= SAFE:
        return True
    return g.device.type == "cpu" and not torch.compiler.is_compiling() and bool(g[..., -1, :].min() >= -SAFE)


def _add_product(y: Tensor, one: Tensor, two: Tensor) -> Tensor:
    """y + A B, without a pass over the product. [B H, N, ·, ·] each"""
    total: Tensor = torch.baddbmm(y.flatten(0, 1), one.flatten(0, 1), two.flatten(0, 1)).unflatten(0, y.shape[:2])
    return total


class Forgetting(NamedTuple):
    """What a chunk leaves of the memory, [B H, N, K or 1, 1]: factors of what was there before, or of everything after
    it has written. None: all of it."""

    before: Tensor | None = None
    after: Tensor | None = None


def _carry(memory: Tensor, new: Tensor, forget: Forgetting) -> tuple[Tensor, Tensor]:
    """S + N from chunk to chunk: S at the start of each, and the last one. [B H, K, V], [B H, N, K, V]"""
    starts = []
    for added, before, after in _by_chunk(new, *forget):
        starts.append(memory)
        memory = memory + added if before is None else torch.addcmul(added, before, memory)
        memory = memory if after is None else after * memory
    return torch.stack(starts, dim=1), memory


def _carry_corrected(
    memory: Tensor, correction: tuple[Tensor, Tensor], along: Tensor, new: Tensor | None, forget: Forgetting
) -> tuple[Tensor, Tensor, Tensor]:
    """S + Aᵀ (x + X S) + N from chunk to chunk, where `correction` is x [B H, N, C, V] and X [B H, N, C, K], and
    `along` is A [B H, N, C, K]: S at the start of each, x + X S of each, and the last S."""
    starts, corrections = [], []
    for x, x_s, a, added, before, after in _by_chunk(*correction, along, new, *forget):
        starts.append(memory)
        corrections.append(torch.baddbmm(x, x_s, memory))
        memory = memory if before is None else before * memory
        memory = torch.baddbmm(memory if added is None else memory + added, a.mT, corrections[-1])
        memory = memory if after is None else after * memory
    return torch.stack(starts, dim=1), torch.stack(corrections, dim=1), memory


def _by_chunk(*parts: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The parts of each chunk; None stays None."""
    return zip(*(repeat(None) if part is None else part.unbind(1) for part in parts), strict=False)


def _solve(c: Tensor, right_0: Tensor, right_s: Tensor) -> tuple[Tensor, Tensor]:
    """x with x + C x = right, for two right sides. Only what C has below its diagonal is read. They are wider than C,
    so that its inverse and a product are faster than a solver."""
    identity = torch.eye(c.shape[-1], dtype=c.dtype, device=c.device).expand_as(c)
    inverse = torch.linalg.solve_triangular(c, identity, upper=False, unitriangular=True)
    return inverse @ right_0, inverse @ right_s


def decayed_products(rows: list[Tensor], columns: list[Tensor], g: Tensor | None) -> list[Tensor]:
    """[t, s] = Σ_i row_t column_s exp(g_t - g_s) for s ≤ t, of each of the rows with each of the columns. What is above
    the diagonal does not matter. [.., C, K] each, g [.., C, 1 or K] -> [.., C, C] each"""
    if g is not None and g.shape[-1] > 1:
        all_rows, all_columns = torch.stack(rows, dim=-2), torch.stack(columns, dim=-2)  # [.., C, R, K], [.., C, M, K]
        products = _products_by_channel(all_rows, all_columns, g[..., None, :])
        by_token: Tensor = products.unflatten(-1, (-1, len(columns))).unflatten(-3, (-1, len(rows)))  # [.., C, R, C, M]
        return [pair for by_row in by_token.unbind(-3) for pair in by_row.unbind(-1)]
    products = torch.cat(rows, dim=-2) @ torch.cat(columns, dim=-2).mT
    by_row = (part.chunk(len(columns), dim=-1) for part in products.chunk(len(rows), dim=-2))
    pairs = [pair for row in by_row for pair in row]
    if g is None:
        return pairs
    decays = (g - g.mT).clamp(max=0).exp()  # above the diagonal it would overflow
    return [pair * decays for pair in pairs]


def _all_pairs(rows: Tensor, columns: Tensor) -> Tensor:
    """[.., C, R, K], [.., S, M, K] -> [.., C R, S M]"""
    return rows.flatten(-3, -2) @ columns.flatten(-3, -2).mT


def _products_by_channel(rows: Tensor, columns: Tensor, g: Tensor) -> Tensor:
    """`decayed_products` with a decay for each channel. [.., C, R, K], [.., C, M, K], [.., C, 1, K] -> [.., C R, C M]

    A product of matrices has no room for a number for each pair of tokens and each channel. But exp(g_t - g_s) =
    exp(g_t - g_m) exp(g_m - g_s) for any token m, and with m between the two neither factor exceeds one. So blocks grow
    from single tokens: of two neighbors the later one reads the earlier one through the last token of that.
    """
    size = 1
    products = (rows[..., :, None, :] * columns[..., None, :, :]).sum(-1)  # [.., C / size, size R, size M]
    while size < g.shape[-3]:
        (_, late), (early, _), (g_early, g_late) = (_neighbors(x, size) for x in (rows, columns, g))
        middle = g_early[..., -1:, :, :]
        across = _all_pairs(late * (g_late - middle).exp(), early * (middle - g_early).exp())
        first, second = products.unflatten(-3, (-1, 2)).unbind(-3)
        upper = F.pad(first, (0, second.shape[-1]))
        products = torch.cat((upper, torch.cat((across, second), dim=-1)), dim=-2)
        size *= 2
    return products.squeeze(-3)


def _neighbors(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The first and the second of each two neighboring blocks. [.., C, R, K] -> two of [.., C / 2 size, size, R, K]"""
    first, second = x.unflatten(-3, (-1, 2, size)).unbind(-4)
    return first, second


# ---- what a token reads of each other


def implied_attention(steps: Steps, chunk: int, least: float = -torch.inf) -> Tensor:
    """W [B, H, T, T] with y = W v where the memory is empty at first: the recurrence applied to the identity."""
    tokens = steps.v.shape[2]
    identity = torch.eye(tokens, dtype=steps.v.dtype, device=steps.v.device)
    steps = steps._replace(v=identity.expand(*steps.v.shape[:2], -1, -1))
    return chunkwise(steps, initial_memory(steps), chunk, least)[0]
