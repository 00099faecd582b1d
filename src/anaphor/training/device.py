"""Device, precision and environment of a run."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

import anaphor
from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.training.spec import DEVICES


def choose_device(name: str) -> torch.device:
    look_up(DEVICES, name, "device")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda': torch finds no GPU here; use --device auto or --device cpu")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Precision of the computation: auto is float32 on a CPU, where bfloat16 is far slower."""
    half = name == "bfloat16" or (name == "auto" and device.type == "cuda")
    return torch.bfloat16 if half else torch.float32


def autocast_of(name: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """A context manager for the forward pass."""
    if choose_dtype(name, device) is torch.bfloat16:
        return partial(torch.autocast, device.type, torch.bfloat16)
    return nullcontext


def describe_environment(device: torch.device, dtype: str) -> dict[str, Any]:
    """Versions, resolved device and dtype, and threads, for a run's spec and checkpoints."""
    return {
        "anaphor": anaphor.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device.type,
        "dtype": str(choose_dtype(dtype, device)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
