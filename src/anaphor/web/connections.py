"""How many connections the server has at a time, so that it never runs out of file descriptors."""

from __future__ import annotations

import logging
import sys
from asyncio import AbstractEventLoop
from typing import Any

from anaphor.errors import ConfigError

NEEDED = 128
"""File descriptors of a server with few connections: libraries, folders that are read, the process with models."""
WANTED = 2048
BACKLOG = 64
"""Connections that are accepted before the first of them can be refused."""
MAX_CONNECTIONS = 512

logger = logging.getLogger(__name__)


def reserve_descriptors() -> int:
    """Raise the process's limit of open files where it is low, and return how many connections there may be. A limit
    with which the server could not work is an error."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS  # there is no such limit
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (WANTED if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    wanted = min(hard, WANTED)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        soft = wanted
    if soft < NEEDED + BACKLOG:
        raise ConfigError(
            f"this process may open {soft} files at a time, and the server needs {NEEDED + BACKLOG}: raise the limit, "
            f"for example by `ulimit -n {WANTED}`"
        )
    # Some are accepted in the moment in which others are refused.
    return int(min(MAX_CONNECTIONS, (soft - NEEDED) // 2))


def log_once(loop: AbstractEventLoop) -> None:
    """From now on an error of the event loop is one line, and the same one is said once: who connects a thousand times
    must not fill a terminal."""
    said = set[str]()

    def handle(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        line = str(context.get("message", "error")) + (f": {type(error).__name__}: {error}" if error else "")
        key = line.split(":")[0]
        if key not in said:
            said.add(key)
            logger.error("%s (said once)", " ".join(line.split())[:300])

    loop.set_exception_handler(handle)
