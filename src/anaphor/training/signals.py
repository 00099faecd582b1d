"""Signals: Ctrl-C, a terminal that is closed, and a request to end are recorded, so that training stops in order."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from anaphor.progress_listener import Cancelled, progress_listener

HANGUP: int | None = getattr(signal, "SIGHUP", None)
"""Windows has no such signal."""
ENDING = tuple(number for number in (signal.SIGTERM, HANGUP) if number is not None)
"""Signals that end a command as soon as its state is saved."""


class Interruption:
    """Inside the block the first SIGINT, SIGTERM or SIGHUP is recorded; a second SIGINT ends the program at once.

    SIGHUP says that the terminal is gone. Where it is ignored, as `nohup` has it, it stays ignored.
    """

    handled = (*ENDING, signal.SIGINT)

    def __init__(self) -> None:
        self.received: int | None = None
        """The signal that this process has received last."""
        self.signal: int | None = None
        """The signal that training follows: that one, and where there are several processes, one that all know of."""
        self.is_shared = False
        """Whether several processes train together, so that none of them may act alone."""
        self._handlers: dict[int, Any] = {}
        self._terminals: list[int] = []
        self._cancels = False

    def is_requested(self) -> bool:
        """Whether a signal was received."""
        return self.signal is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # signals cannot be caught in other threads
            self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
            hangup = () if HANGUP is None or signal.getsignal(HANGUP) == signal.SIG_IGN else (HANGUP,)
            for number in (signal.SIGINT, signal.SIGTERM, *hangup):
                self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT and not self.is_shared:
            raise KeyboardInterrupt
        self.received = number
        if not self.is_shared:
            self.signal = number
        if number == HANGUP and self._terminals:  # to write there would fail, before the checkpoint is saved
            with open(os.devnull, "wb") as nowhere:
                for stream in self._terminals:
                    os.dup2(nowhere.fileno(), stream)
        if self._cancels:
            raise Cancelled

    @contextmanager
    def cancel_on_signal(self) -> Iterator[None]:
        """Inside the block the next signal cancels work that reports its progress, such as a validation: it raises
        `Cancelled`. An earlier signal does not: after Ctrl-C has ended training, the best model is still scored."""
        before = self.received

        def listen(name: str, fraction: float) -> None:
            if self.received != before:
                raise Cancelled

        with progress_listener(listen):
            yield

    @contextmanager
    def raise_on_signal(self) -> Iterator[None]:
        """Inside the block the next signal raises `Cancelled` at once, for work that does not report its progress."""
        before, self._cancels, hook = self.received, True, sys.unraisablehook
        # Where an object is being deleted, Python prints the exception and continues.
        sys.unraisablehook = lambda raised: None if isinstance(raised.exc_value, Cancelled) else hook(raised)
        try:
            yield
        except Exception:
            if self.received == before:
                raise
        finally:
            self._cancels, sys.unraisablehook = False, hook
        if self.received != before:  # a library may have caught the exception, or made another one of it
            raise Cancelled
