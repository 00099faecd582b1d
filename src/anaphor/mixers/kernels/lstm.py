"""The walk of small LSTM layers in training on a GPU: every step is one kernel, forward and back.

cuDNN makes a product and a kernel for the gates of each step, and of each step back a third one. Each waits for the one
before, and in a small layer that waiting is what takes the time. Here the product with the recurrent weights and the
gates are one kernel, which fetches its weights while the step before still runs. The framework's kernel is the slow
twin, and tests hold the two together.

Triton comes with torch where there is a GPU. Nothing else may import this file at its top.
"""

from __future__ import annotations

from collections.abc import Iterable
from subprocess import SubprocessError
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.errors import TritonError

UNITS = 16
"""Hidden units that one program computes, all four gates of them: the least that tensor cores take."""
WIDEST = 256
"""So many weights of each gate a program can hold at once."""
MOST_ROWS = 256
# Of devices: Hopper, and the Blackwell of data centres. They have room for all these weights, and begin kernels early.
GENERATIONS = (9, 10)
# Below, cuDNN walks a layer of single precision in one kernel.
NARROWEST = {torch.float32: 128, torch.bfloat16: 1}


def suits(x: Tensor, width: int) -> bool:
    """Whether this is the faster way for rows [B, T, ...] and a layer of that width."""
    return x.dtype in NARROWEST and NARROWEST[x.dtype] <= width <= WIDEST and 0 < len(x) <= MOST_ROWS


def able(device: torch.device) -> bool:
    """Whether a device has what this needs, and kernels can be compiled for it and run."""
    if torch.cuda.get_device_capability(device)[0] not in GENERATIONS:
        return False
    try:
        with torch.inference_mode(False), torch.enable_grad():  # whoever asks first may want no gradients
            row = torch.zeros(1, 16, device=device, dtype=torch.float32, requires_grad=True)
            recurrence(row.new_zeros(1, 2, 64), row, row, row.new_zeros(64, 16))[0].sum().backward()
    except (TritonError, SubprocessError, OSError, RuntimeError):  # there is no compiler for its launcher, or it fails
        return False
    return True


def recurrence(drive: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """All hidden states, the first one included, and the last cell. `drive` is what the input says to the gates.
    [B, T, 4D], [B, D], [B, D], [4D, D] -> [B, T+1, D], [B, D]"""
    hiddens, last = _Recurrence.apply(drive, hidden, cell, weight)  # type: ignore[no-untyped-call]
    return hiddens, last


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, drive: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        rows, steps, _ = drive.shape
        drive, weight = drive.contiguous(), weight.contiguous()
        hiddens = drive.new_empty(rows, steps + 1, weight.shape[1])
        cells = torch.empty_like(hiddens, dtype=torch.float32)
        gates = torch.empty_like(drive)
        hiddens[:, 0], cells[:, 0] = hidden, cell
        _walk(_forward, range(steps), (rows, steps), (drive, weight, hiddens, cells, gates))
        ctx.save_for_backward(hiddens, cells, gates, weight)
        ctx.set_materialize_grads(False)
        return hiddens, cells[:, -1].to(cell.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_hiddens: Tensor | None, by_last: Tensor | None) -> tuple[Tensor | None, ...]:
        hiddens, cells, gates, weight = ctx.saved_tensors
        rows, steps, _ = gates.shape
        by_hiddens = torch.zeros_like(hiddens) if by_hiddens is None else by_hiddens.contiguous()
        by_cell = torch.zeros_like(cells[:, 0]) if by_last is None else by_last.to(torch.float32, copy=True)
        by_gates = torch.empty_like(gates)
        tensors = (by_hiddens, weight, by_cell, cells, gates, by_gates)
        _walk(_backward, reversed(range(steps)), (rows, steps), tensors)
        _, needs_hidden, needs_cell, needs_weight = ctx.needs_input_grad
        by_hidden = by_hiddens[:, 0] + by_gates[:, 0] @ weight if needs_hidden else None
        by_weight = by_gates.flatten(0, 1).t() @ hiddens[:, :-1].flatten(0, 1) if needs_weight else None
        return by_gates, by_hidden, by_cell.to(hiddens.dtype) if needs_cell else None, by_weight


def _walk(kernel: Any, order: Iterable[int], sizes: tuple[int, int], tensors: tuple[Tensor, ...]) -> None:
    """One kernel after the other. From the second on, each is begun while the one before still runs; it waits where it
    reads what that one writes."""
    weight = tensors[1]
    width, rows = weight.shape[1], sizes[0]
    block, warps = (16, 2) if rows <= 64 else (32, 4)  # rows of one program; found by trying
    grid = triton.cdiv(width, UNITS), triton.cdiv(rows, block)
    # As everywhere: tensor cores round single precision in training and leave it alone in scores.
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    early = weight.is_cuda  # there is no such thing in Triton's interpreter
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
    drive,  # [B, T, 4, D]
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
    row, unit, term, real = _own(rows, WIDTH, TERMS, ROWS, UNITS)
    columns, known = weight + unit * WIDTH + term[:, None], (unit < WIDTH) & (term[:, None] < WIDTH)
    for_take, for_keep, for_proposal, for_show = _four(columns, WIDTH * WIDTH, known)
    here = (row * steps + step) * 4 * WIDTH + unit
    take, keep, proposal, show = _four(drive + here, WIDTH, real)
    before = (row * (steps + 1) + step) * WIDTH
    if EARLY:  # up to here nothing was read that the step before writes
        tl.extra.cuda.gdc_wait()
    hidden = tl.load(hiddens + before + term[None, :], (row < rows) & (term[None, :] < WIDTH), 0.0)
    cell = tl.load(cells + before + unit, real, 0.0)
    take = tl.sigmoid(tl.dot(hidden, for_take, take.to(tl.float32), input_precision=PRECISION))
    keep = tl.sigmoid(tl.dot(hidden, for_keep, keep.to(tl.float32), input_precision=PRECISION))
    proposal = _tanh(tl.dot(hidden, for_proposal, proposal.to(tl.float32), input_precision=PRECISION))
    show = tl.sigmoid(tl.dot(hidden, for_show, show.to(tl.float32), input_precision=PRECISION))
    cell = keep * cell + take * proposal
    tl.store(hiddens + before + WIDTH + unit, show * _tanh(cell), real)
    tl.store(cells + before + WIDTH + unit, cell, real)
    _store_four(gates + here, WIDTH, real, take, keep, proposal, show)


@triton.jit(do_not_specialize=["step", "rows", "steps"])
def _backward(
    step,
    rows,
    steps,
    by_hiddens,  # [B, T+1, D]
    weight,  # [4, D, D]
    by_cell,  # [B, D]: first by the cell after this step, then by the one before
    cells,  # [B, T+1, D]
    gates,  # [B, T, 4, D]
    by_gates,  # [B, T, 4, D]
    WIDTH: tl.constexpr,
    TERMS: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row, unit, term, real = _own(rows, WIDTH, TERMS, ROWS, UNITS)
    to_unit, known = weight + term[:, None] * WIDTH + unit, (unit < WIDTH) & (term[:, None] < WIDTH)
    of_take, of_keep, of_proposal, of_show = _four(to_unit, WIDTH * WIDTH, known)
    here = (row * steps + step) * 4 * WIDTH + unit
    take, keep, proposal, show = _four(gates + here, WIDTH, real)
    take, keep, proposal, show = take.to(tl.float32), keep.to(tl.float32), proposal.to(tl.float32), show.to(tl.float32)
    after = (row * (steps + 1) + step + 1) * WIDTH + unit
    shown, cell = _tanh(tl.load(cells + after, real, 0.0)), tl.load(cells + after - WIDTH, real, 0.0)
    through_hidden = tl.load(by_hiddens + after, real, 0.0).to(tl.float32)
    if EARLY:  # up to here nothing was read that the step before writes
        tl.extra.cuda.gdc_wait()
    through_cell = tl.load(by_cell + row * WIDTH + unit, real, 0.0)
    # What the gates of the following step want of this one's hidden state; the last has none.
    wanted = by_gates + (row * steps + step + 1) * 4 * WIDTH + term[None, :]
    there = (row < rows) & (term[None, :] < WIDTH) & (step + 1 < steps)
    by_take, by_keep, by_proposal, by_show = _four(wanted, WIDTH, there)
    # Each product is a sum of its own: none waits for another.
    through_hidden = tl.dot(by_take, of_take, through_hidden, input_precision=PRECISION)
    through_keep = tl.dot(by_keep, of_keep, input_precision=PRECISION)
    through_proposal = tl.dot(by_proposal, of_proposal, input_precision=PRECISION)
    through_show = tl.dot(by_show, of_show, input_precision=PRECISION)
    through_hidden += through_keep + through_proposal + through_show
    through_cell += through_hidden * show * (1 - shown * shown)
    by_take, by_keep = through_cell * proposal * take * (1 - take), through_cell * cell * keep * (1 - keep)
    by_proposal, by_show = through_cell * take * (1 - proposal * proposal), through_hidden * shown * show * (1 - show)
    _store_four(by_gates + here, WIDTH, real, by_take, by_keep, by_proposal, by_show)
    tl.store(by_cell + row * WIDTH + unit, through_cell * keep, real)


@triton.jit
def _own(rows, WIDTH: tl.constexpr, TERMS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """What a program computes: rows and hidden units, the terms of its sums, and which of the results are real."""
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    unit = (tl.program_id(0) * UNITS + tl.arange(0, UNITS))[None, :]
    return row, unit, tl.arange(0, TERMS), (row < rows) & (unit < WIDTH)


@triton.jit
def _four(first, apart, real):
    """One block for each gate; zero where nothing real lies."""
    take, keep = tl.load(first, real, 0.0), tl.load(first + apart, real, 0.0)
    return take, keep, tl.load(first + 2 * apart, real, 0.0), tl.load(first + 3 * apart, real, 0.0)


@triton.jit
def _store_four(first, apart, real, take, keep, proposal, show):
    tl.store(first, take, real)
    tl.store(first + apart, keep, real)
    tl.store(first + 2 * apart, proposal, real)
    tl.store(first + 3 * apart, show, real)


@triton.jit
def _tanh(x):
    # Near zero the difference would lose its digits, and two terms of the series have them all.
    return tl.where(tl.abs(x) < 0.03, x - x * x * x / 3, 2 * tl.sigmoid(2 * x) - 1)
