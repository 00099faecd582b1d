"""The random generators that a run draws from: the CPU's, and that of its GPU if it trains on one.

Torch is asked for generators of the run's own device alone. To ask for those of a GPU opens a CUDA context on it, which
takes memory and time, and a run on the CPU has no use for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def use_seed(seed: int, keep_state: bool) -> Iterator[None]:
    """Draw initial weights from the seed. With `keep_state` the global random state is restored afterwards."""
    if not keep_state:
        torch.manual_seed(seed)
        yield
        return
    with torch.random.fork_rng(devices=()):  # weights are drawn on the CPU
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def keep_random_state(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside the block, on the CPU or on the device: afterwards the generators are as before."""
    with torch.random.fork_rng([torch.cuda.current_device()] if device.type == "cuda" else []):
        yield


def get_random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators by kind of device, for a checkpoint."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    elif device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Continue from what `get_random_state` returned, perhaps on another device. Raises KeyError, RuntimeError or
    TypeError for tensors that are no such states."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
    elif device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])
