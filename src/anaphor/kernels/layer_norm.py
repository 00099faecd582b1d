"""Layer norm in training on a GPU: a Triton kernel each way.

Under autocast torch's layer norm reads and writes single precision, with kernels before and after it that only convert,
and takes most of its backward pass for the gradients of its weights. Here values are converted where they are loaded
and stored, and everything is read once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from anaphor.kernels.gpu import DTYPES, count_programs, is_supported
from anaphor.kernels.linear import sum_rows
from anaphor.mixers.layers import LayerNorm

MAX_WIDTH = 8192
TILE = 2048  # values that a program holds at once, unless one row has more


def applies(x: Tensor, added: Tensor | None, norm: LayerNorm) -> bool:
    if not norm.training or not is_supported(x.device):
        return False
    if added is not None and not (added.dtype in DTYPES and added.shape == x.shape):
        return False
    return x.dtype in DTYPES and 0 < x.shape[-1] <= MAX_WIDTH and x.numel() > 0


def layer_norm(x: Tensor, added: Tensor | None, norm: LayerNorm) -> Tensor:
    """The norm of x or of a sum, in the type that autocast has for it, or for the layer that reads it."""
    dtype, device = x.dtype if added is None else torch.promote_types(x.dtype, added.dtype), x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device) if norm.for_layer else torch.float32
    return normalize(x, added, norm.weight, norm.bias, norm.eps, dtype)


def normalize(x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
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
        programs = min(tiles, count_programs(x.device) // 2)  # of more of them, the sums take longer than they save
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


def _choose_sizes(width: int) -> dict[str, int]:
    columns = triton.next_power_of_2(width)
    warps = 4 if columns <= TILE else 8
    return {"WIDTH": width, "COLUMNS": columns, "ROWS": max(1, TILE // columns), "num_warps": warps}


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
