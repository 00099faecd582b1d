"""Updates of plain SGD on a GPU: one Triton kernel for many weights reads weights and gradients and writes weights.
Clipped gradients are not written back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from anaphor.kernels.gpu import is_supported
from anaphor.training.optimizers import has_step_hooks

UPDATE_BLOCK, UPDATE_WEIGHTS = 4096, 16  # numbers of a weight that a program updates, and weights of one launch


def applies(weights: list[Tensor], part: torch.optim.Optimizer, clip: float, norm: Tensor | None) -> bool:
    """Whether the optimizer is SGD that subtracts a multiple of the gradient, and nothing else."""
    others = ("momentum", "weight_decay", "maximize")
    if type(part) is not torch.optim.SGD or any(group[name] for group in part.param_groups for name in others):
        return False
    if has_step_hooks(part) or not is_supported(weights[0].device):
        return False
    dense = (weight.grad is None or not weight.grad.is_sparse for weight in weights)
    return all(weight.dtype == torch.float32 for weight in weights) and all(dense)


def update(weights: list[Tensor], part: torch.optim.Optimizer, clip: float, norm: Tensor | None) -> None:
    """The update with clipping as part of the learning rate."""
    factor = (clip / (norm + 1e-6)).clamp(max=1) if clip and norm is not None else None  # as torch clips
    for group in part.param_groups:
        rate = group["lr"] if factor is None else group["lr"] * factor
        subtract([weight for weight in group["params"] if weight.grad is not None], rate)


@torch.no_grad()
def subtract(weights: Sequence[Tensor], rate: Tensor | float) -> None:
    """Each weight minus `rate` times its gradient, in place."""
    if not weights:
        return
    # No copy from the host, which would wait for all that the GPU still has to do.
    rate = rate.to(weights[0]) if isinstance(rate, Tensor) else weights[0].new_full((), rate)
    plain, strided = list[Tensor](), list[Tensor]()
    for weight in weights:
        gradient = weight.grad
        assert gradient is not None, "all weights have a gradient"
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
