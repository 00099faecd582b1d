"""Limits of a process: memory, processor time, open files. Its own code cannot lift them."""

from __future__ import annotations

import resource
from pathlib import Path


def limit(*, memory: int, processor: int, files: int | None = None) -> None:
    """Limit this process.

    Args:
        memory: Bytes that it may have beyond those that it has now, libraries included.
        processor: Seconds of processor time.
        files: Files that it may have open.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + memory)
    _lower(resource.RLIMIT_CPU, processor)
    _lower(resource.RLIMIT_CORE, 0)
    if files is not None:
        _lower(resource.RLIMIT_NOFILE, files)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
