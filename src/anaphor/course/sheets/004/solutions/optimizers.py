"""Sheet 004, 4.4: optimizers. Each gets parameters, and changes them in place by their gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor


class SGD:
    """004.3.4e: b = momentum · b + g, where b is g at first; p = p − lr · b."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        self.params, self.lr, self.momentum = list(params), lr, momentum
        self.buffers = {}

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient (p.grad is not None)."""
        for number, p in enumerate(self.params):
            if p.grad is not None:
                old = self.buffers.get(number)
                self.buffers[number] = p.grad.clone() if old is None else self.momentum * old + p.grad
                p -= self.lr * self.buffers[number]


class Adagrad:
    """004.3.4e: s = s + g², p = p − lr · g / (√s + eps)."""

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float = 1e-10) -> None:
        self.params, self.lr, self.eps = list(params), lr, eps
        self.sums = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient (p.grad is not None)."""
        for p, total in zip(self.params, self.sums, strict=True):
            if p.grad is not None:
                total += p.grad**2
                p -= self.lr * p.grad / (total.sqrt() + self.eps)


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
        self.means = [torch.zeros_like(p) for p in self.params]
        self.squares = [torch.zeros_like(p) for p in self.params]
        self.steps = [0] * len(self.params)

    @torch.no_grad()
    def step(self) -> None:
        """Change every parameter that has a gradient (p.grad is not None)."""
        first, second = self.betas
        for number, (p, m, v) in enumerate(zip(self.params, self.means, self.squares, strict=True)):
            if p.grad is None:
                continue
            self.steps[number] += 1
            m.mul_(first).add_((1 - first) * p.grad)
            v.mul_(second).add_((1 - second) * p.grad**2)
            corrected = m / (1 - first ** self.steps[number])
            size = (v / (1 - second ** self.steps[number])).sqrt()
            p -= self.lr * self.weight_decay * p
            p -= self.lr * corrected / (size + self.eps)
