"""Workers of one study that share its folder: how they begin, keep logs of their own, and end."""

from __future__ import annotations

import hashlib
import json
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from anaphor.errors import ConfigError
from anaphor.files import append_file, make_folder, refuse_links
from anaphor.studies.claims import CLAIMS, Claims
from anaphor.studies.spec import StudySpec
from anaphor.studies.study import FINAL, POLL, Study, read_logged
from anaphor.studies.study_folder import CELLS, FROZEN, LOG, refuse_running
from anaphor.training.run_folder import STUDY, RunFolder

WORKERS = "workers"  # folder with a log of each of them
PATIENCE = 5.0  # seconds: other workers look at the lock of the folder for a moment, too


@contextmanager
def join_folder(spec: StudySpec, folder: Path) -> Iterator[Claims]:
    """The claims in a folder that workers of the same study share."""
    if RunFolder(folder).exists:
        raise ConfigError(f"{folder} has a run in it: use another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (STUDY, LOG, FROZEN, CELLS, CLAIMS, WORKERS):  # before anything is trained
            refuse_links(folder / name, folder)
        wait_until_free(folder)
        make_folder(folder / WORKERS, within=folder)
        claims = Claims(folder, report_claim(spec))
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror or error}; use another --out") from None
    with stop_on_sigterm(), claims:
        yield claims


def wait_until_free(folder: Path) -> None:
    """Raise where the study runs in this folder without --worker."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return refuse_running(folder)
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL)


def report_claim(spec: StudySpec) -> str:
    """The claim of the one that reports; that of a study with other settings is another one."""
    plain = json.dumps(spec.to_plain(), sort_keys=True, default=str)
    return f"report-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def choose_log(folder: Path) -> Path:
    """The log of this worker: two that append to one file on different machines may overwrite each other's lines."""
    host = "".join(character if character.isalnum() else "-" for character in socket.gethostname())
    return folder / WORKERS / f"{host}-{secrets.token_hex(4)}.jsonl"


def run_shared(study: Study, claims: Claims) -> bool:
    """Train cells until none is left. Returns whether this worker is the one that reports."""
    is_complete = study.run()
    while is_complete and claims.stays():
        if claims.take(claims.report):
            merge_logs(study.folder)
            study.log_file = None
            study.write_spec()
            return True
        time.sleep(POLL)
    return False


def merge_logs(folder: Path) -> None:
    """Append the lines of all workers to the log of the study, by time; the end of a cell once."""
    log = folder / LOG
    before = set(log.read_bytes().splitlines()) if log.exists() else set()
    ended = read_logged(log)
    lines = []
    for path in (folder / WORKERS).glob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            if line not in before and (found := parse_line(line)) is not None:
                lines.append((str(found.get("time")), line, found))
    for _, line, found in sorted(lines, key=lambda one: one[:2]):
        if found["event"] in FINAL:
            if found["cell"] in ended:
                continue
            ended.add(found["cell"])
        append_file(log, line + b"\n")


def parse_line(line: bytes) -> dict[str, Any] | None:
    """A line of a log; None for one that was cut off."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_complete = isinstance(found, dict) and "event" in found and ("cell" in found or found["event"] not in FINAL)
    return found if is_complete else None


@contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """Inside the block SIGTERM, which clusters send first, ends the worker as Ctrl-C does: its cells save checkpoints,
    and its claims are given back."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
