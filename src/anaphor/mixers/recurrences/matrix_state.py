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

from collections.abc import Callable
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

    Within a chunk every quantity is linear in the memory at its start: outputs are Y + Q S, and the memory at its end
    is M S + N. All of Y, Q, M and N are computed at once; only S goes from chunk to chunk. `least`: no logarithm of a
    decay is below this, which makes decays by channel faster.
    """
    tokens = steps.q.shape[2]
    size = min(chunk, 1 << (tokens - 1).bit_length())
    y, q, m, n = _solve_chunks(steps.map(lambda part: _split(part, size)), _safe_block(size, least))
    starts, added = [], n.unbind(2)
    factors = [None] * len(added) if m is None else m.unbind(2)
    for factor, new in zip(factors, added, strict=True):
        starts.append(memory)
        memory = new + (memory if factor is None else factor @ memory if steps.b is not None else factor * memory)
    y = y + q @ torch.stack(starts, dim=2)
    return y.flatten(2, 3)[:, :, :tokens], memory


def _split(x: Tensor, size: int) -> Tensor:
    """[B, H, T, ·] -> [B, H, N, C, ·]; zeros behind the last token change nothing."""
    missing = -x.shape[2] % size
    chunks: Tensor = (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(2, (-1, size))
    return chunks


def _safe_block(size: int, least: float) -> int:
    """The largest block, a power of two up to the size of a chunk, in which decays may be divided by one another: the
    logarithm from its middle to its ends stays within `SAFE`."""
    block = 1
    while block < size and block * -least <= SAFE:
        block *= 2
    return block


def _solve_chunks(steps: Steps, block: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Y [.., C, V], Q [.., C, K], M and N [.., K, V] of each chunk. M is a matrix [.., K, K] where memories are
    corrected, else factors [.., K or 1, 1], or None for the identity."""
    q, k, v, log_decay, b, a = steps
    g = m = None
    past: Tensor | float = 1.0  # what a token finds of S, and what is left of it at the end of the chunk
    left: Tensor | float = 1.0
    if log_decay is not None:
        g = log_decay.cumsum(-2)
        total = g[..., -1:, :]
        past, left, m = g.exp(), (total - g).exp(), total.exp().mT
    if b is None:
        (w,) = decayed_products([q], [k], g, block)
        return w.tril() @ v, q * past, m, (k * left).mT @ v
    # What is read to be corrected, u_t = b_tᵀ D_t S_{t-1}, depends on earlier corrections: a triangular system, solved
    # at once for the part without S (_0) and for the factor of S (_s).
    if a is None:  # the delta rule writes x = v - u along k
        w, c = decayed_products([q, b], [k], g, block)
        x_0, x_s = _solve(c, v, -b * past)
        w, k_left = w.tril(), (k * left).mT
        y, n, q_s, m_s = w @ x_0, k_left @ x_0, w @ x_s, k_left @ x_s
    else:
        w_k, w_a, c_k, c_a = decayed_products([q, b], [k, a], g, block)
        u_0, u_s = _solve(-c_a, c_k.tril(-1) @ v, b * past)
        w_k, w_a, k_left, a_left = w_k.tril(), w_a.tril(), (k * left).mT, (a * left).mT
        y, n, q_s, m_s = w_k @ v + w_a @ u_0, k_left @ v + a_left @ u_0, w_a @ u_s, a_left @ u_s
    kept = k.new_ones(k.shape[-1]) if m is None else m.squeeze(-1).expand(*m.shape[:-2], k.shape[-1])
    return y, q * past + q_s, torch.diag_embed(kept) + m_s, n


def _solve(c: Tensor, right_0: Tensor, right_s: Tensor) -> tuple[Tensor, Tensor]:
    """x with x + C x = right, for two right sides. Only what C has below its diagonal is read."""
    right = torch.cat((right_0, right_s), dim=-1)
    x = torch.linalg.solve_triangular(c, right, upper=False, unitriangular=True)
    x_0, x_s = x.split((right_0.shape[-1], right_s.shape[-1]), dim=-1)
    return x_0, x_s


def decayed_products(rows: list[Tensor], columns: list[Tensor], g: Tensor | None, block: int = 1) -> list[Tensor]:
    """[t, s] = Σ_i row_t column_s exp(g_t - g_s) for s ≤ t, of each of the rows with each of the columns. What is above
    the diagonal does not matter. Within so many tokens as `block` decays are known not to overflow when they are
    divided by one another. [.., C, K] each, g [.., C, 1 or K] -> [.., C, C] each"""
    all_rows, all_columns = torch.stack(rows, dim=-2), torch.stack(columns, dim=-2)  # [.., C, R, K] and [.., C, M, K]
    if g is not None and g.shape[-1] > 1:
        products = _products_by_channel(all_rows, all_columns, g[..., None, :], block)
    else:
        products = _all_pairs(all_rows, all_columns)
    by_token: Tensor = products.unflatten(-1, (-1, len(columns))).unflatten(-3, (-1, len(rows)))  # [.., C, R, C, M]
    if g is not None and g.shape[-1] == 1:
        decays = (g - g.mT).clamp(max=0).exp()  # above the diagonal it would overflow
        by_token = by_token * decays[..., :, None, :, None]
    return [pair for by_row in by_token.unbind(-3) for pair in by_row.unbind(-1)]


def _all_pairs(rows: Tensor, columns: Tensor) -> Tensor:
    """[.., C, R, K], [.., S, M, K] -> [.., C R, S M]"""
    return rows.flatten(-3, -2) @ columns.flatten(-3, -2).mT


def _products_by_channel(rows: Tensor, columns: Tensor, g: Tensor, block: int) -> Tensor:
    """`decayed_products` with a decay for each channel. [.., C, R, K], [.., C, M, K], [.., C, 1, K] -> [.., C R, C M]

    A product of matrices has no room for a number for each pair of tokens and each channel. But exp(g_t - g_s) =
    exp(g_t - g_m) exp(g_m - g_s) for any token m, and with m between the two neither factor exceeds one. So blocks grow
    from single tokens, or those in which neither may overflow: of two neighbors the later one reads the earlier one
    through the last token of that.
    """
    size = block  # products [.., C / size, size R, size M]
    if size == 1:
        products = (rows[..., :, None, :] * columns[..., None, :, :]).sum(-1)
    else:
        inside = g.unflatten(-3, (-1, size))
        inside = inside - inside[..., size // 2 - 1 : size // 2, :, :]
        products = _all_pairs(
            rows.unflatten(-3, (-1, size)) * inside.exp(), columns.unflatten(-3, (-1, size)) * (-inside).exp()
        )
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
