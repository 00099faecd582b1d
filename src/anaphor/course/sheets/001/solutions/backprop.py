"""Sheet 001, problem 1.2: backpropagation of the network with vectors, for any sizes."""

import torch
from torch import Tensor


def network_backward(x: Tensor, W: Tensor, b1: Tensor, u: Tensor, b2: Tensor) -> tuple[Tensor, ...]:
    """001.1.2d: gradients of z5 = u · ReLU(W x + b1) + b2 with respect to x [D], W [H, D], b1 [H], u [H] and b2.

    Only with products and sums: `backward` and `torch.autograd` are not used.
    """
    z2 = W @ x + b1
    db1 = u * (z2 > 0)
    return W.T @ db1, torch.outer(db1, x), db1, z2.clamp(min=0), torch.ones_like(b2)
