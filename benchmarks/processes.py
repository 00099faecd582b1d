"""Other processes: a Python program that runs to its end, and a peer that answers calls."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch


def run_python(*arguments: str, source: Path | None = None) -> str:
    """Run Python to its end. Returns what it prints.

    Args:
        arguments: Of the interpreter.
        source: Folder whose packages win over those that are installed.
    """
    done = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=build_environment(source))
    return done.stdout.decode()


def build_environment(source: Path | None) -> dict[str, str]:
    """The environment of a process that imports from `source` first, and never from the current folder."""
    # Modules are compiled once and for all, as those of an installed package are.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if source is not None:
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONSAFEPATH": "1"}


SPIN_COUNT_VARIABLE = "GOMP_SPINCOUNT"
PEER_SPIN_COUNT = "300000"
"""How long waiting threads spin by default. Our processes set less, which would slow down a peer among them."""


@contextmanager
def spawn_peer(make: Callable[..., Callable[..., Any]], *arguments: Any) -> Iterator[Callable[..., Any]]:
    """The function that `make` returns, in a process of its own, where threads spin as they do without Anaphor."""
    context = multiprocessing.get_context("spawn")
    connection, its_end = context.Pipe()
    process = context.Process(target=_serve, args=(its_end, torch.get_num_threads(), make, arguments), daemon=True)
    before = os.environ.get(SPIN_COUNT_VARIABLE)
    os.environ[SPIN_COUNT_VARIABLE] = PEER_SPIN_COUNT
    try:
        process.start()
    finally:
        del os.environ[SPIN_COUNT_VARIABLE]
        if before is not None:
            os.environ[SPIN_COUNT_VARIABLE] = before
    its_end.close()

    def call(*given: Any) -> Any:
        connection.send(given)
        return connection.recv()

    try:
        yield call
    finally:
        connection.close()
        process.join()


def start_peer(
    device: torch.device, make: Callable[..., Callable[..., Any]], *arguments: Any
) -> AbstractContextManager[Callable[..., Any]]:
    """The peer that `make` returns: on a CPU in a process of its own; on a GPU, where threads hardly matter, here."""
    return spawn_peer(make, *arguments) if device.type == "cpu" else nullcontext(make(*arguments))


def _serve(connection: Connection, threads: int, make: Callable[..., Callable[..., Any]], arguments: Any) -> None:
    torch.set_num_threads(threads)
    work = make(*arguments)
    with suppress(EOFError):  # the other end is closed
        while True:
            connection.send(work(*connection.recv()))
