"""Norms and linear maps: torch's, as operations that kernels may compute in training on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.operations import operation


class LayerNorm(nn.LayerNorm):
    """As torch's. Where only a layer reads the output (`for_layer`), a kernel may give it the precision that autocast
    gives to the layer's products: torch's norm writes single precision, which is then rounded."""

    def __init__(self, width: int, eps: float, *, for_layer: bool = False) -> None:
        super().__init__(width, eps=eps)
        self.for_layer = for_layer

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The norm of x, or of the sum of two tensors of a shape."""
        return layer_norm(x, added, self)


@operation
def layer_norm(x: Tensor, added: Tensor | None, norm: LayerNorm) -> Tensor:
    """Layer norm of x, or of x + added. Kernels replace it where they apply."""
    total = x if added is None else x + added
    return F.layer_norm(total, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class RMSNorm(nn.RMSNorm):
    """As torch's: divided by the root of the mean square, without a mean that is subtracted and without bias (Zhang and
    Sennrich, 2019). It is called as `LayerNorm` is."""

    eps: float

    def __init__(self, width: int, eps: float, *, for_layer: bool = False) -> None:
        super().__init__(width, eps=eps)

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The norm of x, or of the sum of two tensors of a shape, in the wider type of the two and of the weights."""
        total = x if added is None else x + added
        if total.dtype != self.weight.dtype:
            total = total.to(torch.promote_types(total.dtype, self.weight.dtype))
        return F.rms_norm(total, self.normalized_shape, self.weight, self.eps)


Norm = LayerNorm | RMSNorm
NORM_KINDS: dict[str, Callable[..., Norm]] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


class Linear(nn.Linear):
    """As torch's."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.training)


@operation
def linear(x: Tensor, weight: Tensor, bias: Tensor | None, training: bool) -> Tensor:
    """The same with given weights. Kernels have another backward pass, in training. [..., D] -> [..., E]"""
    return F.linear(x, weight, bias)
