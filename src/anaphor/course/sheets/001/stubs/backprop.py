"""Sheet 001, problem 1.2: backpropagation of the network with vectors, for any sizes."""

import torch
from torch import Tensor


def network_backward(x: Tensor, W: Tensor, b1: Tensor, u: Tensor, b2: Tensor) -> tuple[Tensor, ...]:
    """001.1.2d: gradients of z5 = u · ReLU(W x + b1) + b2 with respect to x [D], W [H, D], b1 [H], u [H] and b2.

    Only with products and sums: `backward` and `torch.autograd` are not used.
    """
    dx = ...  # 001.1.2d: your code
    dW = ...
    db1 = ...
    du = ...
    db2 = ...
    return dx, dW, db1, du, db2
