"""Where a run is computed, and in which kind of numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.training.spec import DEVICES


def choose_device(name: str) -> torch.device:
    look_up(DEVICES, name, "device")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda': there is no GPU that torch can use here; leave it to auto, or say cpu")
    return torch.device(name)


def device_meant(name: object) -> object:
    """What a name of a device comes to on this machine."""
    return choose_device("auto").type if name == "auto" else name


def choose_precision(name: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Single precision on a CPU, where half is far slower."""
    if name == "bfloat16" or (name == "auto" and device.type == "cuda"):
        return partial(torch.autocast, device.type, torch.bfloat16)
    return nullcontext
