"""Fast paths written by hand. Each has a readable twin that the tests compare it with."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from functools import cache
from importlib import import_module
from subprocess import SubprocessError
from types import ModuleType

import torch

from anaphor.errors import KernelWarning

PROCESSES_PER_GPU = "ANAPHOR_PROCESSES_PER_GPU"
"""Environment variable: how many processes share each GPU at the same time."""
FAILURES: list[str] = []
"""Why kernels failed in use. After that none is used in this process."""


def count_processes() -> int:
    """Number of processes that share the GPU at the same time, this one included; 1 unless the environment says so."""
    return int(os.environ.get(PROCESSES_PER_GPU, 1))


@cache
def load_kernels(name: str, device: torch.device) -> ModuleType | None:
    """The module of Triton kernels of that name; None where they do not run on the device: torch does the same work,
    more slowly. Where they are made for the device but fail, a warning says why, once.

    Only some of them are compiled here, because that takes time; `disable_kernels` is for one that fails later."""
    if FAILURES:
        return None
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
        if is_out_of_memory(error):
            raise
        line = f"the {name} kernels cannot be used on {device}, so that training is slower: {describe_failure(error)}"
        warnings.warn(line, KernelWarning, stacklevel=2)
        return None
    return kernels


def is_kernel_failure(error: BaseException) -> bool:
    """Whether Triton raised it for a kernel of ours, which it compiles when the kernel is first launched."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    callers = [place for place, name in enumerate(names) if name.startswith(f"{__name__}.")]
    is_ours = bool(callers) and any(name.partition(".")[0] == "triton" for name in names[callers[-1] :])
    return is_ours and not is_out_of_memory(error) and not _has_gpu_failed()


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was missing, also where that ended the capture of a graph, which has an error of its own."""
    while error is not None:
        # cuBLAS and cuDNN say ALLOC_FAILED, and an error of Triton has the driver's words.
        if isinstance(error, torch.OutOfMemoryError) or re.search("ALLOC_FAILED|out of memory", str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _has_gpu_failed() -> bool:
    """Whether the GPU reports an error of anything that ran there, as of an index out of bounds. It does so at the next
    launch, which may be one of ours, and from then on at everything: without kernels training would fail, too."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def disable_kernels(reason: str) -> None:
    """Use no kernel of ours in this process from now on, and warn of it. Models and optimizers must be built again."""
    FAILURES.append(reason)
    load_kernels.cache_clear()
    warnings.warn(f"the kernels cannot be used, so that training is slower: {reason}", KernelWarning, stacklevel=2)


def describe_failure(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
