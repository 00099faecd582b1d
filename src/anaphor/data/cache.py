"""The cache folder: what can be computed or downloaded again. Without it everything works, and takes longer."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anaphor.errors import DataError, print_warning
from anaphor.file_locks import lock_file, wait_for_lock
from anaphor.user_paths import user_path

CACHE_VARIABLE = "ANAPHOR_CACHE"
NOWHERE = Path(os.devnull) / "anaphor"
"""A folder that never exists."""


def cache_folder() -> Path:
    """`$ANAPHOR_CACHE`, else the platform's folder for caches."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return user_path(chosen)
    import platformdirs

    try:
        return Path(platformdirs.user_cache_dir("anaphor"))
    except RuntimeError:  # no home folder is known: nothing is kept
        return NOWHERE


def write_cache(path: Path, content: bytes | memoryview) -> bool:
    """Write a file of the cache atomically; True on success.

    A folder that the user chose must be writable. The platform's own may be read-only: then nothing is kept, and the
    next call computes the content again.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        if os.environ.get(CACHE_VARIABLE):
            raise DataError(
                f"cannot write {path} ({error.strerror}): point ${CACHE_VARIABLE} at a folder with room"
            ) from None
        return False
    return True


@contextmanager
def lock_cache(target: Path) -> Iterator[None]:
    """One process makes a file or folder of the cache; others wait for it and then find it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f"{target.name}.lock")
    while True:
        with path.open("a") as handle:
            try:
                lock_file(handle.fileno())
            except BlockingIOError:
                print_warning(f"another process makes {target}: waiting for it")
                wait_for_lock(handle.fileno())
            # If the last holder has just deleted the file, there could be locks on two files of one name.
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(handle.fileno())):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
