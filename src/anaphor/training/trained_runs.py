"""Which runs were trained here: the live page starts no other ones. Imports no torch.

Training leaves an empty file in the user's state folder, whose name is a digest of the run's folder and of its spec. A
run that was copied, moved, unpacked or edited has none.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import platformdirs

from anaphor.user_paths import user_path

STATE_VARIABLE = "ANAPHOR_STATE"


def state_folder() -> Path:
    """`$ANAPHOR_STATE`, else the platform's folder for the state of programs. An OSError where there is none."""
    chosen = os.environ.get(STATE_VARIABLE)
    try:
        return user_path(chosen) if chosen else Path(platformdirs.user_state_dir("anaphor"))
    except RuntimeError as error:  # the user has no home folder
        raise FileNotFoundError(str(error)) from None


def record_run(folder: Path, spec: str) -> None:
    """Record that a run is trained here, in this folder and with this spec document."""
    with suppress(OSError):
        record = _record(folder, spec.encode())
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.touch()


def was_trained_here(folder: Path, spec: bytes) -> bool:
    """Whether a run was trained here, in this folder and with the settings of this spec document."""
    with suppress(OSError):
        return _record(folder, spec).exists()
    return False


def _record(folder: Path, spec: bytes) -> Path:
    name = os.fsencode(os.path.realpath(folder)) + b"\0" + spec
    return state_folder() / "trained-runs" / hashlib.sha256(name).hexdigest()
