"""Locks on open files, which the system releases when their holder ends, however it ends.

POSIX has them in `fcntl`, Windows in `msvcrt`. There a lock covers bytes, and nobody can read these meanwhile, so that
it covers one far beyond what is written.
"""

from __future__ import annotations

import contextlib
import os
import sys

if sys.platform == "win32":
    import msvcrt

    _PLACE = 2**30

    def _lock_byte(handle: int, how: int) -> None:
        before = os.lseek(handle, 0, os.SEEK_CUR)
        os.lseek(handle, _PLACE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, how, 1)
        except OSError as error:
            raise BlockingIOError(error.errno, error.strerror) from None
        finally:
            os.lseek(handle, before, os.SEEK_SET)

    def lock_file(handle: int) -> None:
        """Lock an open file for this process alone. Raises BlockingIOError if another one has a lock on it."""
        _lock_byte(handle, msvcrt.LK_NBLCK)

    def wait_for_lock(handle: int) -> None:
        """The same, but wait until it is free."""
        while True:
            with contextlib.suppress(BlockingIOError):  # it has waited for ten seconds
                _lock_byte(handle, msvcrt.LK_LOCK)
                return

    def is_lockable(handle: int) -> bool:
        """Whether nobody has a lock on an open file."""
        try:
            _lock_byte(handle, msvcrt.LK_NBLCK)
        except OSError:
            return False
        _lock_byte(handle, msvcrt.LK_UNLCK)
        return True

else:
    import fcntl

    def lock_file(handle: int) -> None:
        """Lock an open file for this process alone. Raises BlockingIOError if another one has a lock on it."""
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait_for_lock(handle: int) -> None:
        """The same, but wait until it is free."""
        fcntl.flock(handle, fcntl.LOCK_EX)

    def is_lockable(handle: int) -> bool:
        """Whether nobody has a lock on an open file."""
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(handle, fcntl.LOCK_UN)
        return True
