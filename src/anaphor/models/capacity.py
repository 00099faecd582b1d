"""Capacity: a model that no memory holds is refused in one line, with the number of its parameters.

The system promises more memory than it has, and ends the program when it is taken at its word. So large models are
counted before anything is written to their weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from anaphor.errors import ConfigError

Model = TypeVar("Model", bound=nn.Module)
Spec = TypeVar("Spec")

LARGE = 2**30
"""From how many bytes on a model is counted as a whole: to count takes longer than to make a small one."""
# How the framework says that there is no memory, that a size in bytes is no number of its own, nor a size itself.
_SAYINGS = ("can't allocate memory", "out of memory", "calculation overflowed", "Overflow when unpacking")


def memory() -> int | None:
    """Bytes that this machine has; None means that it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def built(maker: Callable[[Spec], Model], spec: Spec) -> Model:
    """What the maker makes of the spec, unless it is too large for this machine."""
    taken = 0

    def count(module: nn.Module, name: str, weight: nn.Parameter) -> None:
        nonlocal taken
        before, taken = taken, taken + (weight.nbytes if weight.device.type == "cpu" else 0)
        if before <= LARGE < taken:
            held, parameters = memory(), _parameters(maker, spec)
            if parameters is None or (held is not None and parameters * weight.element_size() > held):
                raise _refusal(parameters)

    watch = register_module_parameter_registration_hook(count)
    try:
        return maker(spec)
    except (RuntimeError, TypeError) as error:
        if not _is_of_size(error):
            raise
    finally:
        watch.remove()
    raise _refusal(_parameters(maker, spec))


def _is_of_size(error: Exception) -> bool:
    return any(saying in str(error) for saying in _SAYINGS)


def _parameters(maker: Callable[[Spec], Model], spec: Spec) -> int | None:
    """Counted on a model without memory for its weights; None means that even a single matrix is beyond all sizes."""
    try:
        with torch.device("meta"):
            return sum(weight.numel() for weight in maker(spec).parameters())
    except (RuntimeError, TypeError) as error:
        if not _is_of_size(error):
            raise
        return None


def _refusal(parameters: int | None) -> ConfigError:
    said = "more than 10^18" if parameters is None else f"{parameters:,}"
    return ConfigError(
        f"the model would have {said} parameters, and the memory of this machine does not hold them: "
        f"give it less width, fewer layers or a smaller vocabulary"
    )
