"""Where derived files are kept, and how one is written so that nobody ever sees half of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from anaphor.errors import DataError

VARIABLE = "ANAPHOR_CACHE"


def folder() -> Path:
    """`$ANAPHOR_CACHE`, else the place that the platform has for such files."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("anaphor"))


def write(path: Path, content: bytes | memoryview) -> bool:
    """Put a file there in one move; True when it is there.

    A cache that the user chose must work. The platform's own may be read-only: then nothing is kept, and the next call
    does its work again.
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
        if os.environ.get(VARIABLE):
            raise DataError(
                f"cannot write {path} ({error.strerror}): point ${VARIABLE} at a folder with room"
            ) from None
        return False
    return True
