"""The cross-entropy of a head over a vocabulary, in training on a GPU: Triton kernels from logits to losses.

The logits are the largest tensor of a model with a large vocabulary. Each kernel reads those of a token twice and
writes their gradient in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from anaphor.kernels import chunked_losses
from anaphor.kernels.chunked_losses import (
    Chunk,
    ChunkMethod,
    add_product,
    allocate_logits,
    compute_chunks,
    compute_logits,
    product_dtype,
)
from anaphor.kernels.gpu import DTYPES, is_supported
from anaphor.kernels.linear import sum_rows
from anaphor.mixers.base import multiply
from anaphor.models.cross_entropy import IGNORE_INDEX, chunk_size
from anaphor.models.head import Head

LOSS_BLOCK, PAIR_BLOCK = 4096, 2048  # logits of a token that are read at once
# Tensor cores are several times slower if the vocabulary is no multiple of this.
ALIGNMENT = 64

Compute = Callable[[Tensor], tuple[Tensor, ...]]
"""Losses of logits [N, V]. The gradient of the first values that it returns is written over the logits; others have
none."""


def cross_entropy(
    hidden_states: Tensor,
    head: Head,
    targets: Tensor,
    logits_per_chunk: int | None = None,
    token_losses: Tensor | None = None,
) -> Tensor:
    """Tokens that are one chunk keep the gradient in the memory of the logits."""
    if not is_possible(hidden_states):
        return chunked_losses.cross_entropy(hidden_states, head, targets, logits_per_chunk, token_losses)
    if not is_one_chunk(hidden_states, head, logits_per_chunk):
        rows = chunk_size(hidden_states, head, logits_per_chunk)
        return add_up_chunks(hidden_states, head, targets, rows, token_losses)

    def compute(logits: Tensor) -> tuple[Tensor, ...]:
        losses = losses_and_gradient(logits, targets.flatten(), head.out_features, IGNORE_INDEX)
        if token_losses is not None:
            token_losses.copy_(losses)
        return (losses,)

    return add_up(hidden_states, head, compute)[0]


def smoothed_cross_entropy(hidden_states: Tensor, head: Head, targets: Tensor, label_smoothing: float) -> Tensor:
    if not (is_possible(hidden_states) and is_one_chunk(hidden_states, head)):
        term = chunked_losses.smoothing_term(hidden_states, head, targets, label_smoothing)
        return cross_entropy(hidden_states, head, targets) + term

    def compute(logits: Tensor) -> tuple[Tensor, ...]:
        return (losses_and_gradient(logits, targets.flatten(), head.out_features, IGNORE_INDEX, label_smoothing),)

    return add_up(hidden_states, head, compute)[0]


def is_pair_possible(hidden_states: Tensor, head: Head, targets: Tensor, label_smoothing: float, weight: float) -> bool:
    return is_possible(hidden_states) and is_one_chunk(hidden_states, head)


def rdrop_loss(
    hidden_states: Tensor, head: Head, targets: Tensor, label_smoothing: float, weight: float
) -> tuple[Tensor, Tensor]:
    def compute(logits: Tensor) -> tuple[Tensor, ...]:
        sizes = (head.out_features, IGNORE_INDEX, label_smoothing, weight / 4)
        losses, penalties = pair_losses_and_gradient(logits, targets.flatten(), *sizes)
        return losses + penalties, losses

    both, loss = add_up(hidden_states, head, compute)
    return loss, both - loss  # the first has the gradient of both


def is_possible(hidden_states: Tensor) -> bool:
    return product_dtype(hidden_states) in DTYPES and is_supported(hidden_states.device)


def is_one_chunk(hidden_states: Tensor, head: Head, logits_per_chunk: int | None = None) -> bool:
    return 0 < hidden_states[..., 0].numel() <= chunk_size(hidden_states, head, logits_per_chunk)


def add_up(hidden_states: Tensor, head: Head, compute: Compute) -> tuple[Tensor, ...]:
    """What `compute` makes of the logits of all tokens, added up."""
    inputs = (hidden_states.flatten(0, -2), head.weight, head.bias)
    sums: tuple[Tensor, ...] = _SumOfLosses.apply(*inputs, compute)  # type: ignore[no-untyped-call]
    return sums


class _SumOfLosses(torch.autograd.Function):
    """The gradient of the logits stays in their memory until that of the result is known, which then scales the
    hidden states and not the much larger gradient of the matrix."""

    @staticmethod
    def forward(
        ctx: Any, hidden_states: Tensor, weight: Tensor, bias: Tensor | None, compute: Compute
    ) -> tuple[Tensor, ...]:
        dtype = product_dtype(hidden_states)
        x, matrix, constant = (
            hidden_states.to(dtype),
            _align(weight, dtype),
            None if bias is None else _align(bias, dtype),
        )
        logits = compute_logits(x, matrix, constant, x.new_empty(len(x), len(matrix)))
        sums = tuple(values.sum() for values in compute(logits))
        ctx.save_for_backward(x, matrix, logits)
        ctx.vocabulary, ctx.dtypes = len(weight), (hidden_states.dtype, weight.dtype)
        ctx.mark_non_differentiable(*sums[1:])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (x, matrix, logits), (of_x, of_weight) = ctx.saved_tensors, ctx.dtypes
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x, dtype=of_x)
            torch.mul(multiply(logits, matrix, torch.float32), gradient, out=grad_x)
        if ctx.needs_input_grad[1]:
            grad_weight = multiply(logits.t(), x * gradient, of_weight)[: ctx.vocabulary]
        if ctx.needs_input_grad[2]:
            grad_bias = (sum_rows(logits)[: ctx.vocabulary] * gradient).to(of_weight)
        return grad_x, grad_weight, grad_bias, None


def add_up_chunks(hidden_states: Tensor, head: Head, targets: Tensor, rows: int, token_losses: Tensor | None) -> Tensor:
    """The losses of `rows` tokens at a time."""

    def compute(chunk: Chunk) -> tuple[Tensor, Tensor]:
        logits = chunk.buffer[: len(chunk.x) * len(chunk.matrix)].view(len(chunk.x), len(chunk.matrix))
        chunk.compute_logits(logits)
        tokens = chunk.target.where(chunk.valid, IGNORE_INDEX)
        losses = losses_and_gradient(logits, tokens, head.out_features, IGNORE_INDEX)
        chunk.grad_x.copy_(logits @ chunk.matrix)
        if chunk.grad_bias is not None:
            chunk.grad_bias.add_(sum_rows(logits))
        return losses, add_product(chunk.grad_weight, logits.t(), chunk.x, chunk.sum_dtype)

    missing = -head.out_features % ALIGNMENT if hidden_states.is_cuda else 0
    weight, bias = F.pad(head.weight, (0, 0, 0, missing)), None if head.bias is None else F.pad(head.bias, (0, missing))
    method = ChunkMethod(compute, allocate_logits)
    return compute_chunks(hidden_states, weight, bias, targets, rows, token_losses, method)


def _align(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix in the given type, with rows of zeros added for tensor cores."""
    rows, missing = len(matrix), -len(matrix) % ALIGNMENT if matrix.is_cuda else 0
    if not missing:
        return matrix.to(dtype)
    padded = matrix.new_empty(rows + missing, *matrix.shape[1:], dtype=dtype)
    padded[:rows], padded[rows:] = matrix, 0
    return padded


def losses_and_gradient(
    logits: Tensor, targets: Tensor, vocabulary: int, ignore_index: int, label_smoothing: float = 0.0
) -> Tensor:
    """The loss of each row; the gradient of its logits is written over them, zero where the target is `ignore_index`.
    Columns after the vocabulary are no tokens. [N, V], [N] -> [N]"""
    rows, width = logits.shape
    losses = torch.empty(rows, device=logits.device, dtype=torch.float32)
    if rows:
        sizes = {"WIDTH": width, "VOCABULARY": vocabulary, "BLOCK": min(LOSS_BLOCK, triton.next_power_of_2(width))}
        target = {"IGNORE": ignore_index, "SMOOTHING": label_smoothing}
        with torch.cuda.device_of(logits):
            _losses_and_gradient[(rows,)](logits, targets, losses, **target, **sizes, num_warps=16)
    return losses


def pair_losses_and_gradient(
    logits: Tensor, targets: Tensor, vocabulary: int, ignore_index: int, label_smoothing: float, weight: float
) -> tuple[Tensor, Tensor]:
    """Of each row of the first half of the logits and that of the second, P and Q: the mean of their losses, and
    weight · (KL(P‖Q) + KL(Q‖P)). The gradient of the sum of both is written over the logits.
    [2N, V], [N] -> [N], [N]"""
    rows, width = len(logits) // 2, logits.shape[1]
    losses, divergences = torch.empty(2, rows, device=logits.device, dtype=torch.float32)
    if rows:
        sizes = {"WIDTH": width, "VOCABULARY": vocabulary, "BLOCK": min(PAIR_BLOCK, triton.next_power_of_2(width))}
        target = {"IGNORE": ignore_index, "SMOOTHING": label_smoothing}
        tensors = (logits, targets, losses, divergences)
        with torch.cuda.device_of(logits):
            _pair_losses_and_gradient[(rows,)](*tensors, rows, weight, **target, **sizes, num_warps=8)
    return losses, divergences


@triton.jit
def _losses_and_gradient(
    logits, targets, losses, IGNORE: tl.constexpr, SMOOTHING: tl.constexpr, WIDTH: tl.constexpr,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    here = logits + row * WIDTH
    # Each lane keeps the largest of its logits and a sum of exponentials relative to it; they are put together once.
    peaks = tl.full((BLOCK,), -1e30, dtype=tl.float32)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    logit_sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        others = (column < VOCABULARY) & (column != target)
        values = tl.load(here + column, mask=others, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peaks, values)
        sums = sums * tl.exp(peaks - higher) + tl.exp(values - higher)
        peaks = higher
        if SMOOTHING > 0:
            logit_sums += tl.where(others, values, 0.0)
    # A target that is no token makes the loss not a number, and training stops there.
    own = tl.load(here + target, mask=(target >= 0) & (target < VOCABULARY), other=float("nan")).to(tl.float32)
    rest, own_exp, peak, loss = _own_loss(peaks, sums, own)
    # Label smoothing gives a part of the target's probability to all tokens.
    share = tl.where(target == IGNORE, 0.0, SMOOTHING / VOCABULARY)
    if SMOOTHING > 0:
        loss += SMOOTHING * own - SMOOTHING / VOCABULARY * (tl.sum(logit_sums, axis=0) + own)
    scale = tl.where(target == IGNORE, 0.0, 1 / (rest + own_exp))
    tl.store(losses + row, tl.where(target == IGNORE, 0.0, loss))
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(here + column, mask=column < VOCABULARY, other=-float("inf")).to(tl.float32)
        gradient = tl.where(column == target, SMOOTHING - rest * scale, tl.exp(values - peak) * scale)
        gradient = tl.where(column < VOCABULARY, gradient - share, 0.0)
        tl.store(here + column, gradient.to(logits.dtype.element_ty), mask=column < WIDTH)


@triton.jit(do_not_specialize=["rows", "weight"])
def _pair_losses_and_gradient(
    logits, targets, losses, divergences, rows, weight, IGNORE: tl.constexpr, SMOOTHING: tl.constexpr,
    WIDTH: tl.constexpr, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    first, second = logits + row * WIDTH, logits + (row + rows) * WIDTH
    # Of each lane: its largest logit, a sum of exponentials relative to it, and one weighted by differences of logits.
    peak_p, peak_q = tl.full((BLOCK,), -1e30, dtype=tl.float32), tl.full((BLOCK,), -1e30, dtype=tl.float32)
    sum_p, sum_q = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK,), dtype=tl.float32)
    weighted_p, weighted_q = tl.zeros((BLOCK,), dtype=tl.float32), tl.zeros((BLOCK,), dtype=tl.float32)
    logit_sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        others = (column < VOCABULARY) & (column != target)
        # Converted first: in float16 that number is infinite, and the difference of two of them is not a number.
        a = tl.where(others, tl.load(first + column, mask=others, other=0.0).to(tl.float32), -1e30)
        b = tl.where(others, tl.load(second + column, mask=others, other=0.0).to(tl.float32), -1e30)
        higher_p, higher_q = tl.maximum(peak_p, a), tl.maximum(peak_q, b)
        shrink_p, shrink_q = tl.exp(peak_p - higher_p), tl.exp(peak_q - higher_q)
        p, q = tl.where(others, tl.exp(a - higher_p), 0.0), tl.where(others, tl.exp(b - higher_q), 0.0)
        sum_p, sum_q = sum_p * shrink_p + p, sum_q * shrink_q + q
        weighted_p, weighted_q = weighted_p * shrink_p + p * (a - b), weighted_q * shrink_q + q * (a - b)
        peak_p, peak_q = higher_p, higher_q
        if SMOOTHING > 0:
            logit_sums += tl.where(others, a + b, 0.0)
    is_token = (target >= 0) & (target < VOCABULARY)
    own_a = tl.load(first + target, mask=is_token, other=float("nan")).to(tl.float32)
    own_b = tl.load(second + target, mask=is_token, other=float("nan")).to(tl.float32)
    rest_p, own_p, top_p, loss_p = _own_loss(peak_p, sum_p, own_a)
    rest_q, own_q, top_q, loss_q = _own_loss(peak_q, sum_q, own_b)
    total_p, total_q = rest_p + own_p, rest_q + own_q
    log_p, log_q = top_p + tl.log(total_p), top_q + tl.log(total_q)
    mean_p = (tl.sum(weighted_p * tl.exp(peak_p - top_p), axis=0) + own_p * (own_a - own_b)) / total_p
    mean_q = (tl.sum(weighted_q * tl.exp(peak_q - top_q), axis=0) + own_q * (own_a - own_b)) / total_q
    p_to_q, q_to_p = mean_p - log_p + log_q, log_p - log_q - mean_q  # KL(P‖Q), KL(Q‖P)
    loss, share = (loss_p + loss_q) / 2, SMOOTHING / VOCABULARY
    if SMOOTHING > 0:
        loss += (SMOOTHING * (own_a + own_b) - share * (tl.sum(logit_sums, axis=0) + own_a + own_b)) / 2
    tl.store(losses + row, tl.where(target == IGNORE, 0.0, loss))
    tl.store(divergences + row, tl.where(target == IGNORE, 0.0, weight * (p_to_q + q_to_p)))
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        is_learned = (column < VOCABULARY) & (target != IGNORE)
        a = tl.load(first + column, mask=column < VOCABULARY, other=0.0).to(tl.float32) - log_p
        b = tl.load(second + column, mask=column < VOCABULARY, other=0.0).to(tl.float32) - log_q
        p, q = tl.exp(a), tl.exp(b)
        grad_a = tl.where(column == target, SMOOTHING - rest_p / total_p, p) - share
        grad_b = tl.where(column == target, SMOOTHING - rest_q / total_q, q) - share
        grad_a = grad_a / 2 + weight * (p * (a - b - p_to_q + 1) - q)
        grad_b = grad_b / 2 + weight * (q * (b - a - q_to_p + 1) - p)
        tl.store(first + column, tl.where(is_learned, grad_a, 0.0).to(logits.dtype.element_ty), mask=column < WIDTH)
        tl.store(second + column, tl.where(is_learned, grad_b, 0.0).to(logits.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def _own_loss(peaks, sums, own):
    """From the peak and the sum of each lane without the target, and the target's logit: the sums of exponentials of
    the others and of the target, what they are relative to, and the loss. What the target's probability lacks to one
    keeps its digits."""
    top = tl.maximum(tl.max(peaks, axis=0), tl.where(own == own, own, -1e30))
    rest, target = tl.sum(sums * tl.exp(peaks - top), axis=0), tl.exp(own - top)
    ratio = rest / tl.maximum(target, 1e-38)
    near_zero = ratio * (1 - ratio * (0.5 - ratio / 3))  # the series of log(1 + ratio)
    return rest, target, top, tl.where(ratio < 1e-2, near_zero, top - own + tl.log(rest + target))
