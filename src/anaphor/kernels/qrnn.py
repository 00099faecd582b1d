"""The recurrence of a QRNN on a GPU: one Triton kernel for all steps, and one for its gradient.

No step needs a product with weights, so that a program runs through all tokens of some channels of a row. Steps are so
short that they would wait for memory: gates of later steps are loaded while earlier ones are computed. Everything is
computed in single precision.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from anaphor.kernels.gpu import DTYPES, is_supported
from anaphor.kernels.lstm import tanh
from anaphor.taps import Tap

CHANNELS = 64
"""Channels per program, which is one warp: two per thread, the minimum that is copied asynchronously."""
STAGES = 6
"""Steps that are in flight at once."""


def applies(gate_inputs: Tensor, cell: Tensor, gates: Tap, states: Tap) -> bool:
    """Whether nobody looks at gates or cells."""
    is_recorded = gates.is_recorded or states.is_recorded
    is_possible = gate_inputs.dtype in DTYPES and gate_inputs.numel() > 0
    return is_possible and not is_recorded and is_supported(gate_inputs.device)


def scan_qrnn(gate_inputs: Tensor, cell: Tensor, gates: Tap, states: Tap) -> tuple[Tensor, Tensor]:
    needs_backward = torch.is_grad_enabled() and (gate_inputs.requires_grad or cell.requires_grad)
    y, last = _Recurrence.apply(gate_inputs, cell, needs_backward)  # type: ignore[no-untyped-call]
    return y, last


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_inputs: Tensor, cell: Tensor, needs_backward: bool) -> tuple[Tensor, Tensor]:
        rows, steps, _ = gate_inputs.shape
        gate_inputs = gate_inputs.contiguous()
        y = gate_inputs.new_empty(rows, steps, cell.shape[1])
        cells = torch.empty_like(y) if needs_backward else None  # the one before each step
        last = torch.empty_like(cell, dtype=torch.float32, memory_format=torch.contiguous_format)
        _launch(_forward, (gate_inputs, cell.contiguous(), y, cells, last), y)
        ctx.save_for_backward(gate_inputs, cells)
        ctx.dtype = cell.dtype
        return y, last.to(cell.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        gate_inputs, cells = ctx.saved_tensors
        grad_gates = torch.empty_like(gate_inputs)
        grad_cell = torch.empty_like(cells[:, 0], dtype=torch.float32, memory_format=torch.contiguous_format)
        tensors = (gate_inputs, cells, grad_y.contiguous(), grad_last.contiguous(), grad_gates, grad_cell)
        _launch(_backward, tensors, cells)
        return grad_gates, grad_cell.to(ctx.dtype), None


def _launch(kernel: Any, tensors: tuple[Tensor | None, ...], like: Tensor) -> None:
    """`like` is [B, T, D]."""
    rows, steps, width = like.shape
    with torch.cuda.device_of(like):
        kernel[(rows, triton.cdiv(width, CHANNELS))](
            *tensors, steps, WIDTH=width, CHANNELS=CHANNELS, STAGES=STAGES, num_warps=1
        )


@triton.jit(do_not_specialize=["steps"])
def _forward(
    gate_inputs,  # [B, T, 3, D]
    cell,  # [B, D]
    y,  # [B, T, D]
    cells,  # [B, T, D], or None
    last,  # [B, D]
    steps,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
):
    row, channel, mask = _block_indices(WIDTH, CHANNELS)
    c = tl.load(cell + row * WIDTH + channel, mask, 0.0).to(tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        place = row * steps + step
        here = place * WIDTH + channel
        z, f, o = _load_gates(gate_inputs + place * 3 * WIDTH + channel, WIDTH, mask)
        if cells is not None:
            tl.store(cells + here, c, mask)
        c = f * c + (1 - f) * z
        tl.store(y + here, o * c, mask)
    tl.store(last + row * WIDTH + channel, c, mask)


@triton.jit(do_not_specialize=["steps"])
def _backward(
    gate_inputs,  # [B, T, 3, D]
    cells,  # [B, T, D]
    grad_y,  # [B, T, D]
    grad_last,  # [B, D]
    grad_gates,  # [B, T, 3, D]
    grad_cell,  # [B, D]
    steps,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
):
    row, channel, mask = _block_indices(WIDTH, CHANNELS)
    grad_c = tl.load(grad_last + row * WIDTH + channel, mask, 0.0).to(tl.float32)
    for back in tl.range(0, steps, num_stages=STAGES):
        place = row * steps + steps - 1 - back
        here, first = place * WIDTH + channel, place * 3 * WIDTH + channel
        z, f, o = _load_gates(gate_inputs + first, WIDTH, mask)
        before = tl.load(cells + here, mask, 0.0).to(tl.float32)
        grad = tl.load(grad_y + here, mask, 0.0).to(tl.float32)
        grad_o = grad * (f * before + (1 - f) * z)
        grad_c += grad * o
        tl.store(grad_gates + first, grad_c * (1 - f) * (1 - z * z), mask)
        tl.store(grad_gates + first + WIDTH, grad_c * (before - z) * f * (1 - f), mask)
        tl.store(grad_gates + first + 2 * WIDTH, grad_o * o * (1 - o), mask)
        grad_c *= f
    tl.store(grad_cell + row * WIDTH + channel, grad_c, mask)


@triton.jit
def _block_indices(WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """Row and channels of a program, and which of them there are."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    return tl.program_id(0).to(tl.int64), channel, channel < WIDTH


@triton.jit
def _load_gates(first, stride, mask):
    """Candidate, forget and output gate from their pre-activations."""
    z = tanh(tl.load(first, mask, 0.0).to(tl.float32))
    f = tl.sigmoid(tl.load(first + stride, mask, 0.0).to(tl.float32))
    return z, f, tl.sigmoid(tl.load(first + 2 * stride, mask, 0.0).to(tl.float32))
