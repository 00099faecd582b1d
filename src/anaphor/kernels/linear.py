"""Linear maps in training on a GPU: the gradient of the bias is added up by a Triton kernel.

It is a sum over all tokens, which torch's general reduction does at a third of the memory's speed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from anaphor.kernels.gpu import DTYPES, count_programs, is_supported
from anaphor.mixers.base import multiply

MIN_ROWS = 256  # tokens of a batch from which on the sum over them is worth a kernel
SUM_TILE = 8192  # values of a matrix that a program adds up at once
FEW_ROWS = 2048  # up to here one program adds up all rows


def applies(x: Tensor, weight: Tensor, bias: Tensor | None, training: bool) -> bool:
    """Whether it is faster than torch's for that input, under the present autocast."""
    if bias is None or not training or not is_supported(x.device):
        return False
    is_cast = torch.is_autocast_enabled(x.device.type)  # which leaves double precision alone
    is_valid = x.dtype in DTYPES and (is_cast or x.dtype == weight.dtype)
    return is_valid and x.numel() >= MIN_ROWS * x.shape[-1] > 0


def linear(x: Tensor, weight: Tensor, bias: Tensor, training: bool) -> Tensor:
    """A linear map in the type that autocast has for it; gradients of the weights have theirs. [..., D] -> [..., E]"""
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
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
    parts = 1 if rows <= FEW_ROWS else min(triton.cdiv(rows, block), max(1, count_programs(x.device) // across))
    sums = torch.empty(parts, width, device=x.device, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _sum_rows[(across, parts)](x, sums, rows, parts, WIDTH=width, ROWS=block, COLUMNS=columns)
    return sums[0] if parts == 1 else sum_rows(sums)


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
