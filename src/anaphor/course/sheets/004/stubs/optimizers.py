"""Sheet 004, 4.4: optimizers. Each gets parameters, and changes them in place by their gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor


class SGD:
    """004.3.4e: b = momentum · b + g, where b is g at first; p = p − lr · b."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        self.params, self.lr, self.momentum = list(params), lr, momentum
        self.buffers = ...  # 004.3.4e: your code

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient (p.grad is not None)."""
        ...  # 004.3.4e: your code


class Adagrad:
    """004.3.4e: s = s + g², p = p − lr · g / (√s + eps)."""

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float = 1e-10) -> None:
        self.params, self.lr, self.eps = list(params), lr, eps
        self.sums = ...  # 004.3.4e: your code

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient (p.grad is not None)."""
        ...  # 004.3.4e: your code


class AdamW:
    """004.3.4e: m and v are running means of g and g², corrected for their start at zero; weights shrink apart.

    p = p − lr · weight_decay · p, then p = p − lr · m̂ / (√v̂ + eps); m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ) at step t.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self.params, self.lr, self.betas, self.eps, self.weight_decay = list(params), lr, betas, eps, weight_decay
        self.means = ...  # 004.3.4e: your code
        self.squares = ...

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient (p.grad is not None)."""
        ...  # 004.3.4e: your code
