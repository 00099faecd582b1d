"""Double precision where a device has it: Apple's GPUs (`mps`) compute in single precision at most."""

from __future__ import annotations

import torch
from torch import Tensor

WITHOUT_DOUBLE = frozenset({"mps"})
"""Kinds of devices without double precision."""


def widest_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has nothing wider."""
    return torch.float32 if device.type in WITHOUT_DOUBLE else torch.float64


def to_double(x: Tensor) -> Tensor:
    """The values in the widest precision that their device has."""
    return x.to(widest_dtype(x.device))
