"""Layer norm, gradients of biases and embeddings, and plain updates, in training on a GPU: kernels in Triton.

Under autocast torch's layer norm reads and writes single precision, with kernels before and after it that only convert,
and takes most of its backward pass for the gradients of its weights. Here values are converted where they are loaded
and stored, and everything is read once. The gradient of a bias is a sum over all tokens, which torch's general
reduction does at a third of the memory's speed. Tests compare all with torch's.

Triton comes with torch where there is a GPU: import this module only where that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from anaphor.mixers.base import multiply

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 8192
TILE = 2048  # values that a program holds at once, unless one row has more
MIN_CAPABILITY = 8  # major version: from Ampere on there are bfloat16 and asynchronous copies
MIN_ROWS = 256  # tokens of a batch from which on the sum over them is worth a kernel
SUM_TILE = 8192  # values of a matrix that a program adds up at once
FEW_ROWS = 2048  # up to here one program adds up all rows
UPDATE_BLOCK, UPDATE_WEIGHTS = 4096, 16  # numbers of a weight that a program updates, and weights of one launch
MERGE_BLOCK = 512  # indices of rows that are compared at once


def is_supported(device: torch.device) -> bool:
    """Whether the kernels are made for a device."""
    return torch.cuda.get_device_capability(device)[0] >= MIN_CAPABILITY


def run_once(device: torch.device) -> None:
    """Compile the kernels for a device and run them, forward and backward; raises where that fails."""
    row = torch.zeros(1, 16, device=device, dtype=torch.float32, requires_grad=True)
    layer_norm(row, None, row[0], row[0], 1e-5, row.dtype).sum().backward()


def can_normalize(x: Tensor, added: Tensor | None) -> bool:
    if added is not None and not (added.dtype in DTYPES and added.shape == x.shape):
        return False
    return x.dtype in DTYPES and 0 < x.shape[-1] <= MAX_WIDTH and x.numel() > 0


def is_linear_faster(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear` is faster than torch's for that input, under the present autocast."""
    is_cast = torch.is_autocast_enabled(x.device.type)  # which leaves double precision alone
    is_valid = x.dtype in DTYPES and (is_cast or x.dtype == weight.dtype)
    return is_valid and x.numel() >= MIN_ROWS * x.shape[-1] > 0


def layer_norm(x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Layer norm over the last axis of x, or of the sum of two tensors, computed in single precision and rounded to the
    given type. [..., D] -> [..., D]"""
    y: Tensor = _LayerNorm.apply(x, added, weight, bias, eps, dtype)  # type: ignore[no-untyped-call]
    return y


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
    ) -> Tensor:
        x = x.contiguous()
        ctx.dtypes, total = (x.dtype, None), x
        if added is not None:
            added = added.contiguous()
            ctx.dtypes = x.dtype, added.dtype
            total = torch.empty_like(x, dtype=torch.promote_types(*ctx.dtypes))
        rows, sizes = x.numel() // x.shape[-1], _choose_sizes(x.shape[-1])
        y = torch.empty_like(x, dtype=dtype)
        means, scales = torch.empty(2, rows, device=x.device, dtype=torch.float32)
        tensors = (x, x if added is None else added, total, y, weight, bias, means, scales)
        with torch.cuda.device_of(x):
            _forward[(triton.cdiv(rows, sizes["ROWS"]),)](*tensors, rows, eps, ADDS=added is not None, **sizes)
        ctx.save_for_backward(total, weight, means, scales)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, means, scales = ctx.saved_tensors
        sizes = _choose_sizes(x.shape[-1])
        tiles = triton.cdiv(len(means), sizes["ROWS"])
        programs = min(tiles, _count_programs(x.device) // 2)  # of more of them, the sums take longer than they save
        grad_x = torch.empty_like(x)
        # Each program adds up its own rows; the few sums are added in a fixed order, so that a run can be repeated.
        sums = torch.empty(programs, 2, x.shape[-1], device=x.device, dtype=torch.float32)
        tensors = (x, grad_y.contiguous(), weight, means, scales, grad_x, sums)
        with torch.cuda.device_of(x):
            _backward[(programs,)](*tensors, len(means), tiles, programs, **sizes)
        grad_weight, grad_bias = sum_rows(sums.flatten(1)).view(2, -1).to(weight.dtype)
        x_dtype, added_dtype = ctx.dtypes
        grad_added = None if added_dtype is None else grad_x.to(added_dtype)
        return grad_x.to(x_dtype), grad_added, grad_weight, grad_bias, None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A linear map in the given precision; gradients of the weights have theirs. [..., D] -> [..., E]"""
    y: Tensor = _Linear.apply(x, weight, bias, dtype)  # type: ignore[no-untyped-call]
    return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtypes = x.dtype, weight.dtype, bias.dtype
        x, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, weight, bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        rows = grad_y.to(weight.dtype).reshape(-1, weight.shape[0])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_x = (rows @ weight).view(x.shape).to(x_dtype) if needs_x else None
        grad_weight = multiply(rows.mT, x.reshape(-1, x.shape[-1]), weight_dtype) if needs_weight else None
        return grad_x, grad_weight, sum_rows(rows).to(bias_dtype) if needs_bias else None, None


def sum_rows(x: Tensor) -> Tensor:
    """Sum over the rows of a matrix in single precision. [N, D] -> [D]"""
    x = x.contiguous()
    rows, width = x.shape
    # The fastest of those tried; with few rows, enough programs for all multiprocessors.
    columns = (16 if width <= SUM_TILE else 64) if rows <= FEW_ROWS else (64 if width <= 1024 else 128)
    block, across = SUM_TILE // columns, triton.cdiv(width, columns)
    # Each program adds up every so many-th block of rows; the few sums are added in a fixed order.
    parts = 1 if rows <= FEW_ROWS else min(triton.cdiv(rows, block), max(1, _count_programs(x.device) // across))
    sums = torch.empty(parts, width, device=x.device, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _sum_rows[(across, parts)](x, sums, rows, parts, WIDTH=width, ROWS=block, COLUMNS=columns)
    return sums[0] if parts == 1 else sum_rows(sums)


def merge_rows(indices: Tensor, rows: Tensor) -> Tensor:
    """Rows of the same index added up at its first place, zeros at its others. Their number stays the same, so that no
    value must be read on the host. [N], [N, D] -> [N, D]"""
    merged = torch.empty_like(rows, memory_format=torch.contiguous_format)
    if len(rows):
        sizes = {"WIDTH": rows.shape[1], "COLUMNS": triton.next_power_of_2(rows.shape[1])}
        tensors = indices.contiguous(), rows.contiguous(), merged
        with torch.cuda.device_of(rows):
            _merge_rows[(len(rows),)](*tensors, len(rows), **sizes, BLOCK=MERGE_BLOCK, num_warps=1)
    return merged


@torch.no_grad()
def subtract(weights: Sequence[Tensor], rate: Tensor | float) -> None:
    """Each weight minus `rate` times its gradient, in place. In a sparse gradient each row occurs once, but for rows of
    zeros."""
    if not weights:
        return
    # No copy from the host, which would wait for all that the GPU still has to do.
    rate = rate.to(weights[0]) if isinstance(rate, Tensor) else weights[0].new_full((), rate)
    plain, strided = list[Tensor](), list[Tensor]()
    for weight in weights:
        gradient = weight.grad
        assert gradient is not None, "all weights have a gradient"
        if gradient.is_sparse:
            weight.index_add_(0, gradient._indices()[0], gradient._values() * -rate)
        else:
            (plain if weight.is_contiguous() and gradient.is_contiguous() else strided).append(weight)
    for start in range(0, len(plain), UPDATE_WEIGHTS):
        together = plain[start : start + UPDATE_WEIGHTS]
        sizes, gradients = tuple(weight.numel() for weight in together), tuple(weight.grad for weight in together)
        if blocks := sum(triton.cdiv(size, UPDATE_BLOCK) for size in sizes):
            with torch.cuda.device_of(rate):
                _subtract[(blocks,)](tuple(together), gradients, sizes, rate, BLOCK=UPDATE_BLOCK, num_warps=8)
        for weight in together:
            torch.autograd.graph.increment_version(weight)  # as torch's functions do
    if strided:
        steps = torch._foreach_mul([weight.grad for weight in strided if weight.grad is not None], rate)
        torch._foreach_sub_(strided, list(steps))


def _choose_sizes(width: int) -> dict[str, int]:
    columns = triton.next_power_of_2(width)
    warps = 4 if columns <= TILE else 8
    return {"WIDTH": width, "COLUMNS": columns, "ROWS": max(1, TILE // columns), "num_warps": warps}


@cache
def _count_programs(device: torch.device) -> int:
    """Number of programs that share the rows of a matrix."""
    return 8 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x, added, total, y, weight, bias, means, scales, rows, eps,
    ADDS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    is_row, is_column = row < rows, column < WIDTH
    inside = is_row[:, None] & is_column[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        values += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        values = values.to(total.dtype.element_ty)  # what the backward pass reads
        tl.store(total + at, values, mask=inside)
        values = values.to(tl.float32)
    mean = tl.sum(values, axis=1) / WIDTH
    centered = tl.where(is_column[None, :], values - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centered * centered, axis=1) / WIDTH + eps)
    w = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    normed = centered * scale[:, None] * w[None, :] + b[None, :]
    tl.store(y + at, normed.to(y.dtype.element_ty), mask=inside)
    tl.store(means + row, mean, mask=is_row)
    tl.store(scales + row, scale, mask=is_row)


@triton.jit(do_not_specialize=["rows", "tiles", "programs"])
def _backward(
    x, grad_y, weight, means, scales, grad_x, sums, rows, tiles, programs,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    is_column = column < WIDTH
    w = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    sum_weight = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    sum_bias = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    tile = tl.program_id(0)
    while tile < tiles:
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        is_row = row < rows
        inside = is_row[:, None] & is_column[None, :]
        at = row[:, None] * WIDTH + column[None, :]
        mean = tl.load(means + row, mask=is_row, other=0.0)
        scale = tl.load(scales + row, mask=is_row, other=0.0)
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_y + at, mask=inside, other=0.0).to(tl.float32)
        normed = tl.where(inside, (values - mean[:, None]) * scale[:, None], 0.0)
        sum_weight += grad * normed
        sum_bias += grad
        grad = grad * w[None, :]
        along = tl.sum(grad * normed, axis=1) / WIDTH
        mean_grad = tl.sum(grad, axis=1) / WIDTH
        result = (grad - normed * along[:, None] - mean_grad[:, None]) * scale[:, None]
        tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=inside)
        tile += programs
    here = sums + tl.program_id(0) * 2 * WIDTH + column
    tl.store(here, tl.sum(sum_weight, axis=0), mask=is_column)
    tl.store(here + WIDTH, tl.sum(sum_bias, axis=0), mask=is_column)


@triton.jit(do_not_specialize=["rows", "parts"])
def _sum_rows(x, sums, rows, parts, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < WIDTH
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    first = tl.program_id(1) * ROWS
    while first < rows:
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & is_column[None, :]
        total += tl.load(x + row[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)
        first += parts * ROWS
    tl.store(sums + tl.program_id(1) * WIDTH + column, tl.sum(total, axis=0), mask=is_column)


@triton.jit(do_not_specialize=["count"])
def _merge_rows(indices, rows, merged, count, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    here = tl.program_id(0)
    own = tl.load(indices + here)
    column = tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    first = here * 0
    while first < count:
        at = first + tl.arange(0, BLOCK)
        same = tl.load(indices + at, mask=at < count, other=-1) == own
        place = tl.min(tl.where(same, at, count), axis=0)
        # Where an earlier row has the same index, that one's program adds this row.
        first = tl.where(place < here, count, first + BLOCK)
        while (place >= here) & (place < count):
            total += tl.load(rows + place.to(tl.int64) * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
            place = tl.min(tl.where(same & (at > place), at, count), axis=0)
    tl.store(merged + here.to(tl.int64) * WIDTH + column, total.to(merged.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def _subtract(weights, gradients, sizes, rate, BLOCK: tl.constexpr):
    # Torch's functions of many tensors give 65,536 numbers to one block of threads: too many for few weights.
    block = tl.program_id(0)
    for number in tl.static_range(len(weights)):
        blocks = tl.cdiv(sizes[number], BLOCK)
        if (block >= 0) & (block < blocks):
            weight = weights[number]
            at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            inside = at < sizes[number]
            step = tl.load(rate) * tl.load(gradients[number] + at, mask=inside, other=0.0)
            tl.store(weight + at, tl.load(weight + at, mask=inside, other=0.0) - step, mask=inside)
        block -= blocks
