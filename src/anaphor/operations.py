"""Operations, and the one place that decides whether a kernel of ours computes them. Torch's own fused functions are
chosen where they are called: attention in `mixers/attention/heads.py`, updates of weights in `training/optimizers.py`.

An operation is a readable function with `@operation` above it. A call of it runs this code, unless a kernel computes
the same faster: a function written by hand for a kind of device, registered under the operation's name. `find_kernel`
decides: there is a kernel for the device of the first argument, kernels are on (`--no-kernels` turns them off), and the
kernel's `applies` says yes to these arguments.

The kernels of this package are a shelf, `anaphor.kernels`; its `__init__` is the table of all of them. Without that
folder every operation runs its readable code. A kernel that fails ends the command: `kernel_errors`.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

from anaphor.errors import KernelError, describe_exception
from anaphor.registry import Registry, import_object

P = ParamSpec("P")
R = TypeVar("R")
OFF_VARIABLE = "ANAPHOR_NO_KERNELS"
"""Environment variable that turns all kernels off, in this process and in those that it starts."""
OPERATIONS: dict[str, Callable[..., Any]] = {}
"""The operations of the modules that were imported, by name. `__wrapped__` of one is its readable code."""
KERNELS = Registry("kernel")
"""Kernels by operation and kind of device, as "linear.cuda"."""


@dataclass(frozen=True)
class Kernel:
    """A fast twin of an operation."""

    operation: str
    device: str
    """Kind of device: "cpu" or "cuda"."""
    applies: Callable[..., bool] | str
    """Whether it computes the operation for these arguments; a function or "module:function"."""
    function: Callable[..., Any] | str
    """What is called in place of the operation; a function or "module:function"."""

    @cached_property
    def loaded_applies(self) -> Callable[..., bool]:
        found: Callable[..., bool] = import_object(self.applies)
        return found

    @cached_property
    def loaded_function(self) -> Callable[..., Any]:
        found: Callable[..., Any] = import_object(self.function)
        return found

    @property
    def module(self) -> str:
        """The module of the function, which may not be imported yet."""
        return self.function.partition(":")[0] if isinstance(self.function, str) else self.function.__module__


def operation(function: Callable[P, R]) -> Callable[P, R]:
    """Declare an operation: its name is that of the function, which is its readable code. The first argument is a
    tensor or a list of tensors, whose device the kernel is for."""

    on_cpu = f"{function.__name__}.cpu"

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # In a step of generation on a CPU, the way to the readable code takes longer than small products.
        if getattr(args[0], "is_cpu", False) and on_cpu not in KERNELS:
            return function(*args, **kwargs)
        try:
            kernel = find_kernel(function.__name__, args, kwargs)
            if kernel is not None:
                result: R = kernel.loaded_function(*args, **kwargs)
                return result
        except Exception as error:
            _raise_if_kernel_failed(error)
            raise
        return function(*args, **kwargs)

    OPERATIONS[function.__name__] = run
    return run


def find_kernel(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Kernel | None:
    """The kernel that computes an operation for these arguments; None where the readable code does."""
    kernel: Kernel | None = KERNELS.get(f"{name}.{device_type(args[0])}")
    is_chosen = kernel is not None and kernels_are_on() and kernel.loaded_applies(*args, **kwargs)
    return kernel if is_chosen else None


def device_type(argument: Any) -> str:
    """The kind of device of a tensor or of the first tensor in a list."""
    tensor = argument[0] if isinstance(argument, list) else argument
    kind: str = tensor.device.type
    return kind


def register_kernel(
    operation: str, device: str, applies: Callable[..., bool] | str, function: Callable[..., Any] | str
) -> None:
    """Add a kernel.

    Args:
        operation: Name of the operation that it computes.
        device: Kind of device that it is for: "cpu" or "cuda".
        applies: Whether it computes the operation for given arguments; a function or "module:function", which is
            imported when the operation first runs on such a device.
        function: What is called in place of the operation, with the same arguments; as `applies`.
    """
    KERNELS.add(f"{operation}.{device}", Kernel(operation, device, applies, function))


def kernels_are_on() -> bool:
    """Whether kernels may run at all: `--no-kernels` is not given, and its environment variable is not set."""
    return not os.environ.get(OFF_VARIABLE)


@contextmanager
def kernel_errors() -> Iterator[None]:
    """Inside the block a kernel that cannot be compiled or launched raises a `KernelError`, which names its operation.
    An operation does so itself; the block is for backward passes, which autograd calls."""
    try:
        yield
    except Exception as error:
        _raise_if_kernel_failed(error)
        raise


def _raise_if_kernel_failed(error: Exception) -> None:
    name = failed_operation(error)
    if name is not None:
        reason = describe_exception(error, "")
        raise KernelError(f"the kernel of {name} failed: {reason}; --no-kernels runs without kernels") from error


def failed_operation(error: BaseException) -> str | None:
    """The operation whose kernel Triton, which compiles a kernel when it is first launched, could not run; None for
    other errors, for missing memory, and where the GPU itself has failed."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    by_module: dict[str, list[str]] = {}
    for kernel in KERNELS.values():
        by_module.setdefault(kernel.module, []).append(kernel.operation)
    for place, module in enumerate(modules):
        if module in by_module and any(name.partition(".")[0] == "triton" for name in modules[place:]):
            has_other_cause = is_out_of_memory(error) or _has_gpu_failed()
            return None if has_other_cause else " or ".join(by_module[module])
    return None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was missing, also where that ended the capture of a graph, which has an error of its own."""
    import torch  # not above: the shelf of kernels, which the registry loads for `--help`, imports this module

    while error is not None:
        # cuBLAS and cuDNN say ALLOC_FAILED, and an error of Triton has the driver's words.
        if isinstance(error, torch.OutOfMemoryError) or re.search("ALLOC_FAILED|out of memory", str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _has_gpu_failed() -> bool:
    """Whether the GPU reports an error of anything that ran there, as of an index out of bounds. It does so at the next
    launch, which may be one of ours, and from then on at everything: without kernels training would fail, too."""
    import torch

    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
