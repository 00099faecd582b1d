"""Long work and those who wait for it: they hear how far it is, and may ask for its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float], None]
"""Is told what is being done and which share of it is. Whoever raises `Ended` ends it there."""

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


class Ended(Exception):
    """Somebody does not want to wait any longer."""


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """Inside the block the listener hears of all long work, beside those who listen already."""
    before = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(before)


def reached(what: str, done: int, whole: int) -> None:
    """Tell all who wait. Costs next to nothing where there is nobody."""
    for listener in _listeners.get():
        listener(what, done / max(whole, 1))
