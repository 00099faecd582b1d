"""The recurrence of small LSTM layers in training on a GPU: one Triton kernel forward, and one for each step backward.

cuDNN launches a matrix product and a kernel for the gates of each step, and a third kernel in the backward pass. Each
waits for the one before, and in a small layer that latency dominates. Here the forward pass is one persistent kernel:
its programs keep their part of the recurrent weights, compute all steps, and wait for each other at a barrier between
two steps. Backward, and where not all programs can run at once, each step is a kernel of its own that loads its weights
while the step before still runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from anaphor.kernels.gpu import compute_capability
from anaphor.mixers.layers import linear

UNITS = 16
"""Hidden units per program, with all four gates."""
MAX_WIDTH = 512
"""Number of weights of each gate that a program can hold at once."""
MAX_ROWS = 256
WIDE = 256
"""Layers above this width take more shared memory, and pay off for fewer rows."""
MAX_WIDE_ROWS = {torch.float32: 32, torch.bfloat16: 64}
COMPUTE_CAPABILITIES = (9, 10)
"""Major versions: Hopper and data-center Blackwell. They have the shared memory and programmatic dependent launch."""
MIN_WIDTH = {torch.float32: 128, torch.bfloat16: 1}
"""Below, cuDNN runs a whole layer of single precision in one kernel."""


def applies(x: Tensor, hidden: Tensor, cell: Tensor, weights: list[Tensor], training: bool) -> bool:
    """Whether these kernels are faster than cuDNN for inputs [B, T, ...]."""
    rows, steps = x.shape[:2]
    width = hidden.shape[-1]
    if not training or compute_capability(x.device) not in COMPUTE_CAPABILITIES:
        return False
    return is_faster(rows, steps, width, x.dtype)


def is_faster(rows: int, steps: int, width: int, dtype: torch.dtype) -> bool:
    """The same for given sizes, on a device that the kernels are made for."""
    if dtype not in MIN_WIDTH or not MIN_WIDTH[dtype] <= width <= MAX_WIDTH:
        return False
    if dtype == torch.float32 and _choose_precision() != "tf32":
        return False  # without tensor cores these kernels need more registers than there are
    max_rows = MAX_ROWS if width <= WIDE else MAX_WIDE_ROWS[dtype]
    return rows <= max_rows and 0 < rows * steps * 4 * width < 2**31  # offsets are 32 bits


def run_lstm(
    x: Tensor, hidden: Tensor, cell: Tensor, weights: list[Tensor], training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    w_ih, w_hh, b_ih, b_hh = weights
    gate_inputs = linear(x, w_ih, b_ih + b_hh, training)
    hiddens, last = recurrence(gate_inputs, hidden.squeeze(0), cell.squeeze(0), w_hh)
    return hiddens[:, 1:], hiddens[None, :, -1], last[None]


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
        _launch_forward((rows, steps), (gate_inputs, weight, hiddens, cells, gates))
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
        _launch_backward((rows, steps), (grad_hiddens, weight, grad_cell, cells, gates, grad_gates))
        _, needs_hidden, needs_cell, needs_weight = ctx.needs_input_grad
        grad_hidden = grad_hiddens[:, 0] + grad_gates[:, 0] @ weight if needs_hidden else None
        grad_weight = grad_gates.flatten(0, 1).t() @ hiddens[:, :-1].flatten(0, 1) if needs_weight else None
        return grad_gates, grad_hidden, grad_cell.to(hiddens.dtype) if needs_cell else None, grad_weight


def _launch_forward(sizes: tuple[int, int], tensors: tuple[Tensor, ...]) -> None:
    """One kernel for all steps where all its programs can run at once, else one for each step."""
    weight, (rows, steps) = tensors[1], sizes
    grid, options = _choose_layout(weight, rows)
    options["num_warps"] = options["UNITS"] // 2  # the fastest of those tried for all steps at once
    counters = torch.zeros(grid[1], device=weight.device, dtype=torch.int32)
    with torch.cuda.device_of(weight):
        if _can_run_together(grid, weight.device):
            # A cooperative launch starts all programs or fails: no program waits for one that cannot start.
            cooperative = {"launch_cooperative_grid": True} if weight.is_cuda else {}
            _forward[grid](0, steps, *sizes, *tensors, counters, **options, EARLY=False, **cooperative)
        else:
            for step, launch in _plan_launches(range(steps), weight.is_cuda):
                _forward[grid](step, 1, *sizes, *tensors, counters, **options, **launch)


def _can_run_together(grid: tuple[int, int], device: torch.device) -> bool:
    """Whether all programs can run at once, for sure. Triton's interpreter runs one after the other, so that there the
    same rows must have a single one. Processes that share a GPU by MPS compete for it, in unknown number: no program
    waits there."""
    if device.type == "cpu":
        return grid[0] == 1
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        return False
    return grid[0] * grid[1] <= torch.cuda.get_device_properties(device).multi_processor_count


def _launch_backward(sizes: tuple[int, int], tensors: tuple[Tensor, ...]) -> None:
    """One kernel for each step: all steps in one were slower."""
    weight, (rows, steps) = tensors[1], sizes
    grid, options = _choose_layout(weight, rows)
    options["num_warps"] = options["ROWS"] // 8  # the fastest of those tried
    with torch.cuda.device_of(weight):
        for step, launch in _plan_launches(reversed(range(steps)), weight.is_cuda):
            _backward[grid](step, *sizes, *tensors, **options, **launch)


def _choose_layout(weight: Tensor, rows: int) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid, programs over units and blocks of rows, and the options that kernels are compiled for."""
    width, block = weight.shape[1], 16 if rows <= 64 else 32
    # The weights of a wide layer in single precision fit for half as many; with few rows, more programs are faster.
    units = UNITS // 2 if width > WIDE and rows <= 32 else UNITS
    options = {"WIDTH": width, "TERMS": max(triton.next_power_of_2(width), 16), "ROWS": block, "UNITS": units}
    return (triton.cdiv(width, units), triton.cdiv(rows, block)), options | {"PRECISION": _choose_precision()}


def _choose_precision() -> str:
    """Precision of float32 products, as everywhere: TF32 in training, full in scores."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def _plan_launches(order: Iterable[int], is_cuda: bool) -> Iterator[tuple[int, dict[str, bool]]]:
    """Each step with the launch options of its kernel. From the second on, each starts while the one before still runs,
    and waits before it reads what that one writes. Triton's interpreter has no such launch."""
    for place, step in enumerate(order):
        yield step, {"EARLY": is_cuda, "launch_pdl": is_cuda and place > 0}


@triton.jit(do_not_specialize=["first", "count", "rows", "steps"])
def _forward(
    first,  # step
    count,  # number of steps
    rows,
    steps,
    gate_inputs,  # [B, T, 4, D]
    weight,  # [4, D, D]
    hiddens,  # [B, T+1, D]
    cells,  # [B, T+1, D]
    gates,  # [B, T, 4, D]
    counters,  # one for each block of rows
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
    # One product for all four gates, so that each warp has columns of its own and holds their weights only.
    column = tl.arange(0, 4 * UNITS)
    gate_unit = ((column % 4) * WIDTH + tl.program_id(0) * UNITS + column // 4)[None, :]  # place among all gates
    is_unit = (tl.program_id(0) * UNITS + column // 4 < WIDTH)[None, :]
    w = tl.load(weight + gate_unit * WIDTH + term[:, None], is_unit & (term[:, None] < WIDTH), 0.0)
    here = (row * steps + first) * 4 * WIDTH
    inputs = tl.load(gate_inputs + here + gate_unit, (row < rows) & is_unit, 0.0).to(tl.float32)
    before = (row * (steps + 1) + first) * WIDTH
    if EARLY:  # nothing so far was written by the step before
        tl.extra.cuda.gdc_wait()
    cell = tl.load(cells + before + unit, mask, 0.0)
    done = count * 0  # of the type of `count`, which a loop needs
    while done < count:
        h_mask = (row < rows) & (term[None, :] < WIDTH)
        h = tl.load(hiddens + before + term[None, :], h_mask, 0.0, cache_modifier=".cg")  # others wrote it
        sums = tl.dot(h, w, inputs, input_precision=PRECISION)
        i, f, g, o = split_gates(sums, ROWS, UNITS)
        cell = f * cell + i * g
        tl.store(hiddens + before + WIDTH + unit, o * tanh(cell), mask)
        done += 1
        arrive(counters, done < count)
        # What the others need not wait for.
        tl.store(cells + before + WIDTH + unit, cell, mask)
        store_gates(gates + here + unit, WIDTH, mask, i, f, g, o)
        here += 4 * WIDTH
        before += WIDTH
        next_mask = (row < rows) & is_unit & (done < count)
        inputs = tl.load(gate_inputs + here + gate_unit, next_mask, 0.0).to(tl.float32)
        wait(counters, done, done < count)


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
    w_i, w_f, w_g, w_o = load_gates(columns, WIDTH * WIDTH, weight_mask)
    here = (row * steps + step) * 4 * WIDTH + unit
    i, f, g, o = load_gates(gates + here, WIDTH, mask)
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
    grad_i, grad_f, grad_g, grad_o = load_gates(following, WIDTH, following_mask)
    # Separate sums: none waits for another.
    grad_h = tl.dot(grad_i, w_i, grad_h, input_precision=PRECISION)
    grad_h_f = tl.dot(grad_f, w_f, input_precision=PRECISION)
    grad_h_g = tl.dot(grad_g, w_g, input_precision=PRECISION)
    grad_h_o = tl.dot(grad_o, w_o, input_precision=PRECISION)
    grad_h += grad_h_f + grad_h_g + grad_h_o
    grad_c += grad_h * o * (1 - tanh_c * tanh_c)
    store_gate_gradients(grad_gates + here, WIDTH, mask, (i, f, g, o), cell, tanh_c, grad_h, grad_c)
    tl.store(grad_cell + row * WIDTH + unit, grad_c * f, mask)


@triton.jit
def _block_indices(rows, WIDTH: tl.constexpr, TERMS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """Rows and hidden units of a program, the terms of its sums, and the mask of its results."""
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    unit = (tl.program_id(0) * UNITS + tl.arange(0, UNITS))[None, :]
    return row, unit, tl.arange(0, TERMS), (row < rows) & (unit < WIDTH)


@triton.jit
def arrive(counters, is_needed):
    """Count this program as arrived: the others of the same rows can read what it wrote."""
    if is_needed:
        tl.debug_barrier()  # other threads read what each has stored
    if is_needed & (tl.num_programs(0) > 1):
        tl.atomic_add(counters + tl.program_id(1), 1, sem="release", scope="gpu")


@triton.jit
def wait(counters, times, is_needed):
    """Wait until all programs of the same rows have arrived so many times."""
    if is_needed & (tl.num_programs(0) > 1):
        while tl.atomic_add(counters + tl.program_id(1), 0, sem="acquire", scope="gpu") < times * tl.num_programs(0):
            pass
        tl.debug_barrier()


@triton.jit
def load_gates(first, stride, mask):
    """One block for each gate; zero outside the mask."""
    i, f = tl.load(first, mask, 0.0), tl.load(first + stride, mask, 0.0)
    return i, f, tl.load(first + 2 * stride, mask, 0.0), tl.load(first + 3 * stride, mask, 0.0)


@triton.jit
def store_gates(first, stride, mask, i, f, g, o):
    tl.store(first, i, mask)
    tl.store(first + stride, f, mask)
    tl.store(first + 2 * stride, g, mask)
    tl.store(first + 3 * stride, o, mask)


@triton.jit
def split_gates(sums, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """The gates of each unit, from sums whose columns have those of a unit side by side."""
    i_and_g, f_and_o = tl.split(tl.reshape(sums, (ROWS, UNITS, 2, 2)))
    i, g = tl.split(i_and_g)
    f, o = tl.split(f_and_o)
    return tl.sigmoid(i), tl.sigmoid(f), tanh(g), tl.sigmoid(o)


@triton.jit
def store_gate_gradients(first, stride, mask, gates, cell, tanh_c, grad_h, grad_c):
    """Gradients of the pre-activations of the gates, given the cell before the step, and the gradients of the hidden
    vector and the cell after it."""
    i, f, g, o = gates
    grad_i, grad_f = grad_c * g * i * (1 - i), grad_c * cell * f * (1 - f)
    grad_g, grad_o = grad_c * i * (1 - g * g), grad_h * tanh_c * o * (1 - o)
    store_gates(first, stride, mask, grad_i, grad_f, grad_g, grad_o)


@triton.jit
def tanh(x):
    # Near zero the difference loses its digits; there two terms of the series are exact.
    return tl.where(tl.abs(x) < 0.03, x - x * x * x / 3, 2 * tl.sigmoid(2 * x) - 1)
