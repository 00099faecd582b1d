"""Muon: momentum whose every step is made orthogonal, for the matrices inside a network (Jordan et al., 2024).

Settings, checks and state are torch's. Only the step is ours, for two reasons: torch's casts to bf16, which a CPU
multiplies more slowly than fp32, and it reads the learning rate on the host, which no CUDA graph can do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """As `torch.optim.Muon`; `lr` may be a tensor that changes between the replays of a captured step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None, "the loop computes the loss; nobody asks an optimizer to"
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step_one(weight, weight.grad, group)

    def _step_one(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average, momentum = state["momentum_buffer"], group["momentum"]
        average.lerp_(gradient, 1 - momentum)
        update = gradient.lerp(average, momentum) if group["nesterov"] else average
        update = orthogonalise(update, group["ns_coefficients"], group["ns_steps"], group["eps"]).to(weight.dtype)
        lr = group["lr"]
        weight.mul_(1 - lr * group["weight_decay"])
        weight.sub_(update * (lr * _scale(weight, group["adjust_lr_fn"])))


def orthogonalise(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, least: float) -> Tensor:
    """Newton and Schulz: U S Vᵀ becomes nearly U Vᵀ by odd polynomials, that is, by matrix products alone."""
    a, b, c = coefficients
    # Where the tensor cores are, half of the digits suffice. Elsewhere they cost time instead of saving it.
    dtype = torch.bfloat16 if matrix.is_cuda else torch.promote_types(matrix.dtype, torch.float32)
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).to(dtype)
    x = x / x.norm().clamp(min=least)  # now no singular value is above 1
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def _scale(weight: Tensor, rule: str | None) -> float:
    """What the learning rate is multiplied by, so that it means the same for every shape."""
    rows, columns = weight.shape
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
