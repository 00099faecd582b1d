"""Layer norm and linear maps: torch's, with faster ones for long batches in training on a GPU."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anaphor.mixers.base import use_threads
from anaphor.mixers.kernels import load_kernels

layer_kernels = partial(load_kernels, "layers")
"""Our kernels for these layers, if they run on a device."""
# Values that one CPU thread normalizes faster than several: torch's norm wakes all threads for any number of rows.
MAX_VALUES_ON_ONE_THREAD = 2**15


class LayerNorm(nn.LayerNorm):
    """As torch's. Where only a layer reads the output (`for_layer`), it has the precision that autocast gives to the
    layer's products: torch's norm would write single precision, and a further kernel would round it."""

    def __init__(self, width: int, eps: float, *, for_layer: bool = False) -> None:
        super().__init__(width, eps=eps)
        self.for_layer = for_layer

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The norm of x, or of the sum of two tensors of a shape."""
        kernels = layer_kernels(x.device) if x.is_cuda and self.training else None
        if kernels is None or not kernels.can_normalize(x, added):
            return self._normalize(x if added is None else x + added)
        dtype = x.dtype if added is None else torch.promote_types(x.dtype, added.dtype)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type) if self.for_layer else torch.float32
        y: Tensor = kernels.layer_norm(x, added, self.weight, self.bias, self.eps, dtype)
        return y

    def _normalize(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and x.numel() <= MAX_VALUES_ON_ONE_THREAD and not torch.compiler.is_compiling():
            with use_threads(1):  # the same to the last bit: no sum is over several rows
                return super().forward(x)
        return super().forward(x)


class Linear(nn.Linear):
    """As torch's. In training on a GPU the gradient of its bias is added up by a kernel of ours."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.training)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, training: bool) -> Tensor:
    """The same with given weights. [..., D] -> [..., E]"""
    kernels = layer_kernels(x.device) if x.is_cuda and training else None
    if kernels is None or bias is None or not kernels.is_linear_faster(x, weight):
        return F.linear(x, weight, bias)
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    y: Tensor = kernels.linear(x, weight, bias, dtype)
    return y
