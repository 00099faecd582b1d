"""Sheet 003, part 2: gradients by your own formulas. `backward` and `torch.autograd` are not used."""

import torch
from torch import Tensor


def cross_entropy_backward(logits: Tensor, targets: Tensor) -> Tensor:
    """003.2.2d: the gradient of the mean cross entropy with respect to logits [N, V]; targets [N] are classes."""
    return ...  # 003.2.2d: your code, with the formula of 003.2.2a


def linear_backward(grad_y: Tensor, x: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """003.2.2d: gradients of y = x Wᵀ + b with respect to x [N, in], W [out, in] and b [out]; grad_y is [N, out]."""
    dx = ...  # 003.2.2d: your code
    dW = ...
    db = ...
    return dx, dW, db


def attention_backward(grad_y: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """003.3.6: gradients of y = softmax(q kᵀ / √K) v for q, grad_y [B, T, K] and k, v [B, S, K]."""
    dq = ...  # 003.3.6: your code
    dk = ...
    dv = ...
    return dq, dk, dv
