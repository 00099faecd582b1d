"""Commands of the page: stop a run that is trained on this computer, and resume one that was trained here and stopped.

Everything else that the page does reads. Only a run that `was_trained_here` is resumed, so that a folder that came from
someone else starts nothing; a process gets a signal only if the kernel says that it holds the lock of this run.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from anaphor.errors import ConfigError, DataError
from anaphor.training.trained_runs import was_trained_here
from anaphor.web.locks import LOCK, HeldLocks, read_holder
from anaphor.web.summary import RESULT, SPEC, find_task, read_file, read_json, read_yaml
from anaphor.web.worker import without_paths
from anaphor.yaml_files import MAX_FILE_BYTES

MAX_STARTED = 4
"""Trainings that were resumed by the page and still run, at a time."""
MAX_ERROR_BYTES = 4_000
PROGRAM = (sys.executable, "-P", "-m", "anaphor")
"""Without the current folder as a place of modules: it may hold files of others."""


@dataclass
class Started:
    """A training that the page has resumed."""

    process: subprocess.Popen[bytes]
    messages: IO[bytes]
    """What it prints."""

    def describe_failure(self) -> str | None:
        """The last line of one that ended with an error; None while it runs, and where it ended well or was stopped."""
        if self.process.poll() in (None, 0, 130, 143):
            return None
        size = self.messages.seek(0, os.SEEK_END)
        self.messages.seek(max(size - MAX_ERROR_BYTES, 0))
        lines = self.messages.read().decode(errors="replace").strip().splitlines()
        return without_paths(lines[-1][:1000]) if lines else f"it ended with exit code {self.process.returncode}"


class Commands:
    """What the page may start and stop, and what it has started. One request at a time."""

    def __init__(self) -> None:
        self._started: dict[str, Started] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Forget what was started; it goes on."""
        for started in self._started.values():
            started.process.poll()
            started.messages.close()
        self._started.clear()

    def describe(self, folder: Path, study: str | None) -> dict[str, Any]:
        """The command for a run as one would type it, whether the page may run it, and why it may not."""
        holder = find_holder(folder)
        if holder is not None:
            return {"verb": "stop", "command": f"kill -INT {holder}", "reason": None, "failure": None}
        started = self._started.get(str(folder))
        failure = None if started is None else started.describe_failure()
        try:
            command, reason = resume_command(folder), find_obstacle(folder, study)
        except (DataError, ConfigError, OSError) as error:
            return {"verb": None, "command": None, "reason": without_paths(str(error)), "failure": failure}
        return {"verb": "resume", "command": shlex.join(command), "reason": reason, "failure": failure}

    def stop(self, folder: Path) -> dict[str, Any]:
        """End a training as Ctrl-C does: the current step ends, and the best checkpoint is scored."""
        holder = find_holder(folder)
        if holder is None:
            raise ConfigError("no process of this computer trains this run now")
        try:
            os.kill(holder, signal.SIGINT)
        except ProcessLookupError:
            raise ConfigError("the process that trained this run has just ended") from None
        except PermissionError:
            raise ConfigError("the process that trains this run is another user's") from None
        return {"command": f"kill -INT {holder}"}

    def resume(self, folder: Path, study: str | None) -> dict[str, Any]:
        """Resume a training in a process of its own, which goes on when the page and its server end."""
        with self._lock:
            if find_holder(folder) is not None:
                raise ConfigError("this run is being trained already")
            reason = find_obstacle(folder, study)
            if reason is not None:
                raise ConfigError(f"the page cannot resume this run: {reason}")
            running = [one for one in self._started.values() if one.process.poll() is None]
            before = self._started.get(str(folder))
            if before in running:
                raise ConfigError("this run is being resumed already")
            if len(running) >= MAX_STARTED:
                raise ConfigError(f"{MAX_STARTED} trainings that the page resumed still run: wait for one, or stop it")
            command = resume_command(folder)
            messages = tempfile.TemporaryFile()  # noqa: SIM115 (it is read while the process runs)
            process = subprocess.Popen(
                [*PROGRAM, *command[1:-1], str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                start_new_session=True,
            )
            if before is not None:
                before.messages.close()
            self._started[str(folder)] = Started(process, messages)
        return {"command": shlex.join(command)}


def resume_command(folder: Path) -> list[str]:
    """The words that resume a run, with its path as short as it can be from here. DataError where nothing can."""
    task = read_yaml(folder / SPEC).get("task")
    if not isinstance(task, str):
        raise DataError("its spec names no task")
    here = Path.cwd()
    path = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return [
        "anaphor",
        "train",
        task[:100],
        "--resume",
        "--out",
        f"./{path}" if str(path).startswith("-") else str(path),
    ]


def find_obstacle(folder: Path, study: str | None) -> str | None:
    """Why the page may not resume a run; None where it may."""
    spec, document = read_file(folder / SPEC, MAX_FILE_BYTES), read_yaml(folder / SPEC)
    if study is not None:
        return "it is a cell of a study: resume the study"
    if document.get("imports") or find_task(document.get("task")) is None:
        return "it has parts of your own: add --import and your file"
    if not was_trained_here(folder, spec):
        return "it was not trained in this folder on this computer: look at its spec.yaml before you resume it"
    status = read_json(folder / RESULT).get("status")
    if status == "converted":
        return "it was converted, and has no training to resume"
    if status == "finished":
        return "it is finished: to train longer, add --steps, --epochs or --minutes"
    return None


def find_holder(folder: Path) -> int | None:
    """The process that trains a run, if the kernel says that it holds the lock; the file alone could name any."""
    holder = read_holder(folder)
    if holder is None or holder.host != socket.gethostname():
        return None
    with suppress(OSError):
        status = os.lstat(folder / LOCK)
        held = HeldLocks().by_file or {}
        if status.st_nlink == 1 and (holder.process, status.st_dev) in held.get(status.st_ino, ()):
            return holder.process
    return None
