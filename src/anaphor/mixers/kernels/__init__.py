"""Fast paths written by hand. Each has a readable twin that the tests compare it with."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch


@cache
def load_kernels(name: str, device: torch.device) -> ModuleType | None:
    """A module of kernels in Triton, if they run on that device; None: torch does the same, only slower."""
    try:
        kernels = import_module(f"{__name__}.{name}")
    except ImportError:  # without Triton
        return None
    return kernels if kernels.is_supported(device) else None
