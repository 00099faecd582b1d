"""The command in children of this process, which need not import torch again; on the folders of a try alone."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forked


def environment(place: Path) -> dict[str, str]:
    """Caches and state of a try are its own."""
    return {"ANAPHOR_CACHE": str(place / "cache"), "ANAPHOR_STATE": str(place / "state"), "OMP_NUM_THREADS": "1"}


def run(place: Path, words: Sequence[str], *, first: Callable[[], object] = bool) -> subprocess.CompletedProcess[str]:
    """`anaphor WORDS` to its end; state and cache are in `place`."""
    return forked.run(words, environment(place), first=first)


def start(place: Path, words: Sequence[str], *, first: Callable[[], object] = bool) -> subprocess.Popen[str]:
    """`anaphor WORDS`, to be killed. What it prints is lost."""
    return forked.start(words, environment(place), first=first, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """What has to work before anything can be tried."""
    if done.returncode:
        raise RuntimeError(f"anaphor {' '.join(done.args)}: {done.stderr}")
    return done


def hash_tensors(run_folder: Path) -> dict[str, str]:
    """SHA-256 of the weights, the optimizer state and the carried state of the last checkpoint."""
    last = max((run_folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
    files: dict[str, Any] = json.loads((last / "manifest.json").read_text(encoding="utf-8"))["files"]
    return {"step": last.name, **{name: str(found) for name, found in files.items() if name.endswith(".safetensors")}}


def skip_fsync() -> None:
    """A process may be killed in a try, the machine is not: to wait for the disk takes long and shows nothing."""
    os.fsync = lambda handle: None
