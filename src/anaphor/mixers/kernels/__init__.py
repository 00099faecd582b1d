"""Fast paths written by hand. Each has a readable twin that the tests compare it with."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from subprocess import SubprocessError
from types import ModuleType

import torch

from anaphor.errors import KernelWarning


@cache
def load_kernels(name: str, device: torch.device) -> ModuleType | None:
    """A module of kernels in Triton, if they run on that device; None: torch does the same, only slower. Where they are
    made for the device and fail, a warning says why, once: otherwise nobody would see that they are not used."""
    try:
        from triton.errors import TritonError
    except ModuleNotFoundError:  # it comes with torch where there is a GPU, but not on every system
        return None
    try:
        kernels = import_module(f"{__name__}.{name}")
        if not kernels.is_supported(device):
            return None
        with torch.inference_mode(False), torch.enable_grad():  # the caller may have disabled gradients
            kernels.run_once(device)
    # There is no C compiler for the launcher, it fails, or the kernels themselves do.
    except (TritonError, SubprocessError, OSError, RuntimeError, ImportError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        line = f"the {name} kernels cannot be used on {device}, so that training is slower: {reason}"
        warnings.warn(line, KernelWarning, stacklevel=2)
        return None
    return kernels
