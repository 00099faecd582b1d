"""Updates by a multiple of the gradients without a pass over all of them: where torch's fused update can scale
gradients while it reads them, and in plain SGD on a CPU, where the learning rate is multiplied instead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anaphor.training.optimizers import step_once
from anaphor.training.state_dicts import OPTIMIZER_STATE


def applies(weights: list[Tensor], part: torch.optim.Optimizer, factor: Tensor | None) -> bool:
    # On a GPU the host would have to wait until it can read the factor.
    return factor is not None and (scales_gradients(part) or (is_linear(part) and factor.is_cpu))


def update(weights: list[Tensor], part: Any, factor: Tensor) -> None:
    if scales_gradients(part):
        part.grad_scale = factor.float().reciprocal()  # which gradients are divided by
        step_once(part)
        part.grad_scale = None
        return
    rates = [group["lr"] for group in part.param_groups]
    for group, rate in zip(part.param_groups, rates, strict=True):
        group["lr"] = rate * factor.item()
    step_once(part)
    for group, rate in zip(part.param_groups, rates, strict=True):
        group["lr"] = rate


def scales_gradients(part: torch.optim.Optimizer) -> bool:
    return type(part) in OPTIMIZER_STATE and bool(part.defaults.get("fused"))


def is_linear(part: torch.optim.Optimizer) -> bool:
    """Whether it subtracts a multiple of the gradient, and nothing else."""
    others = ("momentum", "weight_decay", "maximize")
    return type(part) is torch.optim.SGD and not any(group[name] for group in part.param_groups for name in others)
