"""The recurrence of LSTM layers where several processes share a GPU: one Triton kernel for all steps, either way.

With many processes the GPU is busy starting kernels, so that one for each step is slow, whatever it computes. But
programs that wait for each other must all run, and if those of all processes together were more than fit, none would
ever end. So each process has a share of the multiprocessors, and no more programs than that. A program then has more
weights than it could keep: they are read again in every step, in chunks, some of which are on their way while another
is multiplied. Tests compare the kernels with torch's LSTM.

Triton comes with torch where there is a GPU: import this module only where that is known.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from anaphor.mixers.kernels import count_processes

UNITS = 16
"""Hidden units that a program computes at once, with all four gates; twice as many where it has more of them."""
STAGES = tl.constexpr(4)
"""Chunks that are in flight at once."""
CHUNKS = {"forward": 64, "backward": 128}
"""Terms of a product that are read at once, in either pass."""

Layout = tuple[tuple[int, int], dict[str, Any]]
"""The grid, programs over units and blocks of rows, and the options that kernels are compiled for."""


def choose_layout(width: int, rows: int, device: torch.device, precision: str) -> Layout | None:
    """None where no GPU is shared, or where this process's share of it is less than a program for each block of
    rows."""
    if count_processes() == 1:
        return None
    block = 16 if rows <= 16 else 32
    row_blocks = triton.cdiv(rows, block)
    programs = _count_programs(device, row_blocks)
    if programs == 0:
        return None
    units = UNITS if width <= UNITS * programs else 2 * UNITS
    programs = min(programs, triton.cdiv(width, units))
    sizes = {"WIDTH": width, "ROWS": block, "UNITS": units, "BLOCKS": triton.cdiv(width, units * programs)}
    # Three products of TF32 are about as exact as one of single precision.
    return (programs, row_blocks), sizes | {"PRECISION": "tf32" if precision == "tf32" else "tf32x3", "num_warps": 8}


def _count_programs(device: torch.device, row_blocks: int) -> int:
    """Number of programs for each block of rows, which wait for each other. It is one in Triton's interpreter, which
    runs one program after the other. On a GPU all processes together have no more of them than there are
    multiprocessors: then one is always free of them. More might fit, but whether they do depends on how each
    multiprocessor has divided its memory for the programs that it runs already."""
    if device.type == "cpu":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count // count_processes() // row_blocks


def launch_forward(layout: Layout, sizes: tuple[int, int], tensors: tuple[Tensor, ...]) -> None:
    _launch(_forward, layout, sizes, tensors, chunk=CHUNKS["forward"])


def launch_backward(layout: Layout, sizes: tuple[int, int], tensors: tuple[Tensor, ...]) -> None:
    _launch(_backward, layout, sizes, tensors, chunk=CHUNKS["backward"])


def _launch(kernel: Any, layout: Layout, sizes: tuple[int, int], tensors: tuple[Tensor, ...], *, chunk: int) -> None:
    grid, options = layout
    counters = torch.zeros(grid[1], device=tensors[0].device, dtype=torch.int32)
    with torch.cuda.device_of(tensors[0]):
        kernel[grid](*sizes, *tensors, counters, **options, CHUNK=chunk)


@triton.jit(do_not_specialize=["rows", "steps"])
def _forward(
    rows,
    steps,
    gate_inputs,  # [B, T, 4, D]
    weight,  # [4, D, D]
    hiddens,  # [B, T+1, D]
    cells,  # [B, T+1, D]
    gates,  # [B, T, 4, D]
    counters,  # one for each block of rows
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, 4 * UNITS)[None, :]
    step = steps * 0  # of the type of `steps`, which a loop needs
    while step < steps:
        here = (row * steps + step) * 4 * WIDTH
        before = (row * (steps + 1) + step) * WIDTH
        for block in range(BLOCKS):
            first = (tl.program_id(0) * BLOCKS + block) * UNITS
            gate_unit = (column % 4) * WIDTH + first + column // 4  # place among all gates
            is_unit = first + column // 4 < WIDTH
            sums = tl.load(gate_inputs + here + gate_unit, (row < rows) & is_unit, 0.0).to(tl.float32)
            for start in tl.range(0, WIDTH, CHUNK, num_stages=STAGES):
                term = start + tl.arange(0, CHUNK)
                h = tl.load(
                    hiddens + before + term[None, :], (row < rows) & (term[None, :] < WIDTH), 0.0, cache_modifier=".cg"
                )
                w = tl.load(weight + gate_unit * WIDTH + term[:, None], is_unit & (term[:, None] < WIDTH), 0.0)
                sums = tl.dot(h, w, sums, input_precision=PRECISION)
            i, f, g, o = split_gates(sums, ROWS, UNITS)
            unit = first + tl.arange(0, UNITS)[None, :]
            mask = (row < rows) & (unit < WIDTH)
            cell = f * tl.load(cells + before + unit, mask, 0.0) + i * g
            tl.store(hiddens + before + WIDTH + unit, o * tanh(cell), mask)
            tl.store(cells + before + WIDTH + unit, cell, mask)
            store_gates(gates + here + unit, WIDTH, mask, i, f, g, o)
        step += 1
        arrive(counters, step < steps)
        wait(counters, step, step < steps)


@triton.jit(do_not_specialize=["rows", "steps"])
def _backward(
    rows,
    steps,
    grad_hiddens,  # [B, T+1, D]
    weight,  # [4, D, D]
    grad_cell,  # [B, D]: of the last cell, replaced by that of the first
    cells,  # [B, T+1, D]
    gates,  # [B, T, 4, D]
    grad_gates,  # [B, T, 4, D]
    counters,  # one for each block of rows
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    done = steps * 0
    while done < steps:
        step = steps - 1 - done
        here = (row * steps + step) * 4 * WIDTH
        for block in range(BLOCKS):
            unit = ((tl.program_id(0) * BLOCKS + block) * UNITS + tl.arange(0, UNITS))[None, :]
            mask = (row < rows) & (unit < WIDTH)
            after = (row * (steps + 1) + step + 1) * WIDTH + unit
            grad_h = tl.load(grad_hiddens + after, mask, 0.0).to(tl.float32)
            for start in tl.range(0, 4 * WIDTH, CHUNK, num_stages=STAGES):
                term = start + tl.arange(0, CHUNK)
                # Gradient of the gates of the following step; the last step has none.
                following_mask = (row < rows) & (term[None, :] < 4 * WIDTH) & (done > 0)
                following = tl.load(
                    grad_gates + here + 4 * WIDTH + term[None, :], following_mask, 0.0, cache_modifier=".cg"
                )
                w = tl.load(weight + term[:, None] * WIDTH + unit, (term[:, None] < 4 * WIDTH) & (unit < WIDTH), 0.0)
                grad_h = tl.dot(following, w, grad_h, input_precision=PRECISION)
            i, f, g, o = load_gates(gates + here + unit, WIDTH, mask)
            i, f, g, o = i.to(tl.float32), f.to(tl.float32), g.to(tl.float32), o.to(tl.float32)
            tanh_c, cell = tanh(tl.load(cells + after, mask, 0.0)), tl.load(cells + after - WIDTH, mask, 0.0)
            grad_c = tl.load(grad_cell + row * WIDTH + unit, mask, 0.0) + grad_h * o * (1 - tanh_c * tanh_c)
            store_gate_gradients(grad_gates + here + unit, WIDTH, mask, (i, f, g, o), cell, tanh_c, grad_h, grad_c)
            tl.store(grad_cell + row * WIDTH + unit, grad_c * f, mask)
        done += 1
        arrive(counters, done < steps)
        wait(counters, done, done < steps)


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
