"""Muon: momentum whose every step is made orthogonal, for the matrices inside a network (Jordan et al., 2024).

Settings, checks and state are torch's, and only the step is ours. Torch's takes one matrix after the other and reads
the learning rate on the host: on an H200 it takes 12 to 24 ms for a transformer of 6 to 12 layers, where ours takes 3
to 6, or 0.7 in a CUDA graph, in which torch's fails. On a CPU torch's casts to bf16: without instructions for it that
takes 10 times as long as fp32, and where a CPU has them, results would depend on the CPU.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """As `torch.optim.Muon`; `lr` may be a tensor that changes between the replays of a captured step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None, "the loop computes the loss, not the optimizer"
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    alike[weight.shape].append(weight)
            for weights in alike.values():
                self._step_alike(weights, group)

    def _step_alike(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Matrices of one shape at once: the layers of a stack make one product instead of many small ones."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight, gradient in zip(weights, gradients, strict=True):
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(gradient)
        averages, momentum = [self.state[weight]["momentum_buffer"] for weight in weights], group["momentum"]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, averages, momentum) if group["nesterov"] else averages
        straight = orthogonalize(torch.stack(updates), group["ns_coefficients"], group["ns_steps"], group["eps"])
        lr = group["lr"]
        straight = straight.to(weights[0].dtype) * (lr * _scale(weights[0], group["adjust_lr_fn"]))
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        torch._foreach_sub_(weights, straight.unbind())


def orthogonalize(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, least: float) -> Tensor:
    """Newton and Schulz: U S Vᵀ becomes nearly U Vᵀ by odd polynomials, that is, by matrix products alone. [N, R, C]"""
    a, b, c = coefficients
    # Where the tensor cores are, half of the digits suffice. Elsewhere they cost time instead of saving it.
    dtype = torch.bfloat16 if matrices.is_cuda else torch.promote_types(matrices.dtype, torch.float32)
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=least)  # now no singular value is above 1
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _scale(weight: Tensor, rule: str | None) -> float:
    """What the learning rate is multiplied by, so that it means the same for every shape."""
    rows, columns = weight.shape
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
