"""Where a run computes: its device, its precision, its CPU threads; and the record of it that a run keeps."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anaphor
from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.mixers.base import use_threads
from anaphor.operations import kernels_are_on
from anaphor.training.options import check_threads
from anaphor.training.spec import DEVICES
from anaphor.yaml_files import read_mapping


def choose_device(name: str) -> torch.device:
    """The device of that name. Torch is asked for a GPU only where the name leaves it open, or asks for one."""
    look_up(DEVICES, name, "device")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")  # mps is untested: only if asked for
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda': torch finds no GPU here; use --device auto or --device cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device='mps': torch finds no GPU of Apple here; use --device auto or --device cpu")
    return torch.device(name)


def name_device(device: torch.device) -> str:
    """A device for people: the CPU, or the name of the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "the CPU" if device.type == "cpu" else "the GPU of this Mac"


def check_hardware(recipe: str, file: Path, device: str) -> None:
    """Raise for a recipe that is made for a GPU where there is none: its minutes would end before the model has learned
    anything. `device="cpu"` is taken as it is."""
    hardware = read_mapping(file).get("hardware")
    if hardware is not None and device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(
            f"recipe {recipe!r} is made for {hardware}, and torch finds no GPU here: its time would end after a few "
            f"steps; use --device cpu to train it anyway"
        )


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Precision of the forward pass: auto is float32 on a CPU, where bfloat16 is far slower."""
    is_half = name == "bfloat16" or (name == "auto" and device.type == "cuda")
    return torch.bfloat16 if is_half else torch.float32


def autocast_of(name: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """A context manager for the forward pass."""
    if choose_dtype(name, device) is torch.bfloat16:
        return partial(torch.autocast, device.type, torch.bfloat16)
    return nullcontext


def set_threads(threads: int | None) -> None:
    """Use so many CPU threads in this process; None leaves the number as it is."""
    check_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)


def thread_count(threads: int | None) -> AbstractContextManager[None]:
    """So many CPU threads inside the block, as before afterwards; None leaves the number as it is."""
    check_threads(threads)
    return use_threads(torch.get_num_threads() if threads is None else threads)


def describe_environment(device: torch.device, dtype: str, model: nn.Module) -> dict[str, Any]:
    """Versions, the device and dtype that are used, threads, and whether kernels are off, for a run's spec and
    checkpoints."""
    is_half = choose_dtype(dtype, device) is torch.bfloat16
    used = torch.bfloat16 if is_half else next(weight.dtype for weight in model.parameters())
    environment = {
        "anaphor": anaphor.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device.type,
        "dtype": str(used).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }
    return environment if kernels_are_on() else environment | {"kernels": False}
