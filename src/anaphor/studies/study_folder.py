"""The folder of a study: the names of its files, and its lock. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from anaphor.errors import ConfigError
from anaphor.files import refuse_links
from anaphor.training.lock import hold_lock
from anaphor.training.run_folder import STUDY, RunFolder

FROZEN, LOG, CELLS = "seal.json", "log.jsonl", "cells"  # by these names in all studies
LOCK = ".lock"


@contextmanager
def lock_study(folder: Path) -> Iterator[None]:
    """Be the only process that runs the study in this folder."""
    if RunFolder(folder).exists:
        raise ConfigError(f"{folder} has a run in it: use another --out")
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (STUDY, LOG, FROZEN, CELLS):  # before anything is trained
                refuse_links(folder / name, folder)
            held.enter_context(hold_lock(folder / LOCK, str(folder)))
        except OSError as error:
            raise ConfigError(f"cannot write to {folder}: {error.strerror or error}; use another --out") from None
        yield


def refuse_running(folder: Path) -> None:
    """Raise where a study runs in this folder. A folder that is not there is not created."""
    if (folder / LOCK).exists():
        with lock_study(folder):
            pass
