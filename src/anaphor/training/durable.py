"""Files that survive a kill: whoever looks finds the old content or the new, whole, never something between."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk and not on its way there."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk. Its name in the folder may still be on its way."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Give a file a new content, or leave it as it was."""
    draft = path.with_name(f"{path.name}.tmp")
    try:
        write_file(draft, content)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync(path.parent)
