"""Progress of long computations: each reports how far it is, and a listener may show that, or cancel the computation.

A computation needs not know who listens: listeners are set for a block of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

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


def current_listeners() -> tuple[ProgressListener, ...]:
    """All listeners, the earliest first."""
    return _listeners.get()


@contextmanager
def use_listeners(listeners: tuple[ProgressListener, ...]) -> Iterator[None]:
    """Inside the block these listeners are called, and no others."""
    before = _listeners.set(listeners)
    try:
        yield
    finally:
        _listeners.reset(before)


@contextmanager
def progress_part(number: int, parts: int) -> Iterator[None]:
    """Inside the block a computation is one of several equal parts, of which `number` are done."""

    def scale(listener: ProgressListener) -> ProgressListener:
        return lambda name, fraction: listener(name, (number + fraction) / parts)

    before = _listeners.set(tuple(map(scale, _listeners.get())))
    try:
        yield
    finally:
        _listeners.reset(before)


def report_progress(name: str, done: int, total: int) -> None:
    """Call all listeners. Costs next to nothing where there are none."""
    for listener in _listeners.get():
        listener(name, done / max(total, 1))


def track_progress(name: str, items: Sequence[Item]) -> Iterator[Item]:
    """Each item in turn; all listeners are called before the first and after each."""
    report_progress(name, 0, len(items))
    for number, item in enumerate(items, 1):
        yield item
        report_progress(name, number, len(items))
