"""The recurrence of small LSTM layers in training on a GPU: one Triton kernel per step, forward and backward.

cuDNN launches a matrix product and a kernel for the gates of each step, and a third kernel in the backward pass. Each
waits for the one before, and in a small layer that latency dominates. Here the product with the recurrent weights and
the gates are one kernel, which loads its weights while the step before still runs. Tests compare it with torch's LSTM.

Triton comes with torch where there is a GPU: import this module only where that is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

UNITS = 16
"""Hidden units per program, with all four gates: the minimum for tensor cores."""
MAX_WIDTH = 256
"""Number of weights of each gate that a program can hold at once."""
MAX_ROWS = 256
COMPUTE_CAPABILITIES = (9, 10)
"""Major versions: Hopper and data-center Blackwell. They have the shared memory and programmatic dependent launch."""
MIN_WIDTH = {torch.float32: 128, torch.bfloat16: 1}
"""Below, cuDNN runs a whole layer of single precision in one kernel."""


def is_faster(x: Tensor, width: int) -> bool:
    """Whether these kernels are faster than cuDNN for inputs [B, T, ...] and a layer of that width."""
    return x.dtype in MIN_WIDTH and MIN_WIDTH[x.dtype] <= width <= MAX_WIDTH and 0 < len(x) <= MAX_ROWS


def is_supported(device: torch.device) -> bool:
    """Whether the kernels are made for a device."""
    return torch.cuda.get_device_capability(device)[0] in COMPUTE_CAPABILITIES


def run_once(device: torch.device) -> None:
    """Compile the kernels for a device and run them, forward and backward; raises where that fails."""
    row = torch.zeros(1, 16, device=device, dtype=torch.float32, requires_grad=True)
    recurrence(row.new_zeros(1, 2, 64), row, row, row.new_zeros(64, 16))[0].sum().backward()


def recurrence(gate_inputs: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """All hidden states, the initial one included, and the last cell.
    [B, T, 4D], [B, D], [B, D], [4D, D] -> [B, T+1, D], [B, D]"""
    hiddens, last = _Recurrence.apply(gate_inputs, hidden, cell, weight)  # type: ignore[no-untyped-call]
    return hiddens, last


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_inputs: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        rows, steps, _ = gate_inputs.shape
        gate_inputs, weight = gate_inputs.contiguous(), weight.contiguous()
        hiddens = gate_inputs.new_empty(rows, steps + 1, weight.shape[1])
        cells = torch.empty_like(hiddens, dtype=torch.float32)
        gates = torch.empty_like(gate_inputs)
        hiddens[:, 0], cells[:, 0] = hidden, cell
        _launch(_forward, range(steps), (rows, steps), (gate_inputs, weight, hiddens, cells, gates))
        ctx.save_for_backward(hiddens, cells, gates, weight)
        ctx.set_materialize_grads(False)
        return hiddens, cells[:, -1].to(cell.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hiddens: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        hiddens, cells, gates, weight = ctx.saved_tensors
        rows, steps, _ = gates.shape
        grad_hiddens = torch.zeros_like(hiddens) if grad_hiddens is None else grad_hiddens.contiguous()
        grad_cell = torch.zeros_like(cells[:, 0]) if grad_last is None else grad_last.to(torch.float32, copy=True)
        grad_gates = torch.empty_like(gates)
        tensors = (grad_hiddens, weight, grad_cell, cells, gates, grad_gates)
        _launch(_backward, reversed(range(steps)), (rows, steps), tensors)
        _, needs_hidden, needs_cell, needs_weight = ctx.needs_input_grad
        grad_hidden = grad_hiddens[:, 0] + grad_gates[:, 0] @ weight if needs_hidden else None
        grad_weight = grad_gates.flatten(0, 1).t() @ hiddens[:, :-1].flatten(0, 1) if needs_weight else None
        return grad_gates, grad_hidden, grad_cell.to(hiddens.dtype) if needs_cell else None, grad_weight


def _launch(kernel: Any, order: Iterable[int], sizes: tuple[int, int], tensors: tuple[Tensor, ...]) -> None:
    """One kernel per step. From the second on, each starts while the one before still runs and waits before it reads
    what that one writes."""
    weight = tensors[1]
    width, rows = weight.shape[1], sizes[0]
    block, warps = (16, 2) if rows <= 64 else (32, 4)  # rows per program; the fastest of those tried
    grid = triton.cdiv(width, UNITS), triton.cdiv(rows, block)
    # As everywhere: TF32 in training, full single precision in scores.
    precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
    early = weight.is_cuda  # Triton's interpreter has no dependent launch
    options = {"WIDTH": width, "TERMS": max(triton.next_power_of_2(width), 16), "ROWS": block, "UNITS": UNITS}
    with torch.cuda.device_of(weight):
        for place, step in enumerate(order):
            launch = {"num_warps": warps, "launch_pdl": early and place > 0}
            kernel[grid](step, *sizes, *tensors, **options, PRECISION=precision, EARLY=early, **launch)


@triton.jit(do_not_specialize=["step", "rows", "steps"])
def _forward(
    step,
    rows,
    steps,
    gate_inputs,  # [B, T, 4, D]
    weight,  # [4, D, D]
    hiddens,  # [B, T+1, D]
    cells,  # [B, T+1, D]
    gates,  # [B, T, 4, D]
    WIDTH: tl.constexpr,
    TERMS: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row, unit, term, mask = _block_indices(rows, WIDTH, TERMS, ROWS, UNITS)
    columns, weight_mask = weight + unit * WIDTH + term[:, None], (unit < WIDTH) & (term[:, None] < WIDTH)
    w_i, w_f, w_g, w_o = _load_gates(columns, WIDTH * WIDTH, weight_mask)
    here = (row * steps + step) * 4 * WIDTH + unit
    i, f, g, o = _load_gates(gate_inputs + here, WIDTH, mask)
    before = (row * (steps + 1) + step) * WIDTH
    if EARLY:  # nothing so far was written by the step before
        tl.extra.cuda.gdc_wait()
    h = tl.load(hiddens + before + term[None, :], (row < rows) & (term[None, :] < WIDTH), 0.0)
    cell = tl.load(cells + before + unit, mask, 0.0)
    i = tl.sigmoid(tl.dot(h, w_i, i.to(tl.float32), input_precision=PRECISION))
    f = tl.sigmoid(tl.dot(h, w_f, f.to(tl.float32), input_precision=PRECISION))
    g = tanh(tl.dot(h, w_g, g.to(tl.float32), input_precision=PRECISION))
    o = tl.sigmoid(tl.dot(h, w_o, o.to(tl.float32), input_precision=PRECISION))
    cell = f * cell + i * g
    tl.store(hiddens + before + WIDTH + unit, o * tanh(cell), mask)
    tl.store(cells + before + WIDTH + unit, cell, mask)
    _store_gates(gates + here, WIDTH, mask, i, f, g, o)


@triton.jit(do_not_specialize=["step", "rows", "steps"])
def _backward(
    step,
    rows,
    steps,
    grad_hiddens,  # [B, T+1, D]
    weight,  # [4, D, D]
    grad_cell,  # [B, D]: of the cell after this step, replaced by that of the one before
    cells,  # [B, T+1, D]
    gates,  # [B, T, 4, D]
    grad_gates,  # [B, T, 4, D]
    WIDTH: tl.constexpr,
    TERMS: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row, unit, term, mask = _block_indices(rows, WIDTH, TERMS, ROWS, UNITS)
    columns, weight_mask = weight + term[:, None] * WIDTH + unit, (unit < WIDTH) & (term[:, None] < WIDTH)
    w_i, w_f, w_g, w_o = _load_gates(columns, WIDTH * WIDTH, weight_mask)
    here = (row * steps + step) * 4 * WIDTH + unit
    i, f, g, o = _load_gates(gates + here, WIDTH, mask)
    i, f, g, o = i.to(tl.float32), f.to(tl.float32), g.to(tl.float32), o.to(tl.float32)
    after = (row * (steps + 1) + step + 1) * WIDTH + unit
    tanh_c, cell = tanh(tl.load(cells + after, mask, 0.0)), tl.load(cells + after - WIDTH, mask, 0.0)
    grad_h = tl.load(grad_hiddens + after, mask, 0.0).to(tl.float32)
    if EARLY:  # nothing so far was written by the step before
        tl.extra.cuda.gdc_wait()
    grad_c = tl.load(grad_cell + row * WIDTH + unit, mask, 0.0)
    # Gradient of the gates of the following step; the last step has none.
    following = grad_gates + (row * steps + step + 1) * 4 * WIDTH + term[None, :]
    following_mask = (row < rows) & (term[None, :] < WIDTH) & (step + 1 < steps)
    grad_i, grad_f, grad_g, grad_o = _load_gates(following, WIDTH, following_mask)
    # Separate sums: none waits for another.
    grad_h = tl.dot(grad_i, w_i, grad_h, input_precision=PRECISION)
    grad_h_f = tl.dot(grad_f, w_f, input_precision=PRECISION)
    grad_h_g = tl.dot(grad_g, w_g, input_precision=PRECISION)
    grad_h_o = tl.dot(grad_o, w_o, input_precision=PRECISION)
    grad_h += grad_h_f + grad_h_g + grad_h_o
    grad_c += grad_h * o * (1 - tanh_c * tanh_c)
    grad_i, grad_f = grad_c * g * i * (1 - i), grad_c * cell * f * (1 - f)
    grad_g, grad_o = grad_c * i * (1 - g * g), grad_h * tanh_c * o * (1 - o)
    _store_gates(grad_gates + here, WIDTH, mask, grad_i, grad_f, grad_g, grad_o)
    tl.store(grad_cell + row * WIDTH + unit, grad_c * f, mask)


@triton.jit
def _block_indices(rows, WIDTH: tl.constexpr, TERMS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """Rows and hidden units of a program, the terms of its sums, and the mask of its results."""
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    unit = (tl.program_id(0) * UNITS + tl.arange(0, UNITS))[None, :]
    return row, unit, tl.arange(0, TERMS), (row < rows) & (unit < WIDTH)


@triton.jit
def _load_gates(first, stride, mask):
    """One block for each gate; zero outside the mask."""
    i, f = tl.load(first, mask, 0.0), tl.load(first + stride, mask, 0.0)
    return i, f, tl.load(first + 2 * stride, mask, 0.0), tl.load(first + 3 * stride, mask, 0.0)


@triton.jit
def _store_gates(first, stride, mask, i, f, g, o):
    tl.store(first, i, mask)
    tl.store(first + stride, f, mask)
    tl.store(first + 2 * stride, g, mask)
    tl.store(first + 3 * stride, o, mask)


@triton.jit
def tanh(x):
    # Near zero the difference loses its digits; there two terms of the series are exact.
    return tl.where(tl.abs(x) < 0.03, x - x * x * x / 3, 2 * tl.sigmoid(2 * x) - 1)
