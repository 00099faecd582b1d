"""Memory of training on a CPU: what one step frees is kept for the next.

Gradients and activations are freed and wanted again in each step. The C library gives large blocks back to the system
meanwhile, and every page of a new one is filled with zeros before it can be used. See docs/training.md.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MEBIBYTE = 1 << 20
KEPT, USUAL = (1024 * MEBIBYTE, 256 * MEBIBYTE), (64 * MEBIBYTE, 32 * MEBIBYTE)
"""How many free bytes are kept at the end of the heap, and how large a block is that has memory of its own, which is
given back as soon as it is free: while training, and what glibc itself comes to where large blocks are freed."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h of glibc numbers them


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """Inside the block memory of the host that was freed is used again, where the model is on a CPU and the C library
    can be told so."""
    is_changed = device.type == "cpu" and _set_thresholds(*KEPT)
    try:
        yield
    finally:
        if is_changed:
            _set_thresholds(*USUAL)


def _set_thresholds(trim: int, mmap: int) -> bool:
    """Whether the C library has them; that of macOS and of Alpine Linux has not."""
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    return set_option is not None and bool(set_option(_TRIM_THRESHOLD, trim) and set_option(_MMAP_THRESHOLD, mmap))
