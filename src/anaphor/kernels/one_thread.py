"""Layer norm of few values on a CPU: one thread is faster than several, all of which torch wakes for any number of
rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.mixers.base import use_threads
from anaphor.mixers.layers import LayerNorm

MAX_VALUES = 2**15


def is_small(x: Tensor, added: Tensor | None, norm: LayerNorm) -> bool:
    return x.numel() <= MAX_VALUES and torch.get_num_threads() > 1 and not torch.compiler.is_compiling()


def layer_norm(x: Tensor, added: Tensor | None, norm: LayerNorm) -> Tensor:
    """The same to the last bit: no sum is over several rows."""
    total = x if added is None else x + added
    with use_threads(1):
        return F.layer_norm(total, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
