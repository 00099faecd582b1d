"""Progress of long computations: whoever waits is told how far it is and may cancel it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ProgressListener = Callable[[str, float], None]
"""Called with the name of the computation and the fraction done. It may raise `Cancelled`."""

_listeners: ContextVar[tuple[ProgressListener, ...]] = ContextVar("listeners", default=())


class Cancelled(Exception):
    """A listener cancelled the computation."""


@contextmanager
def progress_listener(listener: ProgressListener) -> Iterator[None]:
    """Inside the block the listener is called by all long computations, in addition to earlier listeners."""
    before = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(before)


def report_progress(name: str, done: int, total: int) -> None:
    """Call all listeners. Costs next to nothing where there are none."""
    for listener in _listeners.get():
        listener(name, done / max(total, 1))
