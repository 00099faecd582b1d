"""The command in a process of its own that need not import torch first: a child of the one that tests."""

import contextlib
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from anaphor.cli.main import main


def start(
    words: Sequence[str], environment: dict[str, str], *, first: Callable[[], object] = bool, **pipes: Any
) -> subprocess.Popen[str]:
    """Begin `anaphor WORDS`: a real process, to be killed or signaled, with pipes as `subprocess.Popen` makes them.

    `first` is called in the new process before the command begins.
    """
    if torch.cuda.is_initialized():
        pytest.skip("a copy of a process that has used a GPU can neither use it nor run backward passes")
    inherited = _open_files()

    def become_the_command() -> None:
        # Popen returns when the pipe on which it waits for a failed exec is closed; here no exec follows.
        for number in _open_files() - inherited - {0, 1, 2}:
            with contextlib.suppress(OSError):  # the one by which they were listed is closed already
                os.close(number)
        code = 1
        try:
            first()
            code = _run(words, environment)
        except BaseException:  # noqa: BLE001  # whatever happens, this copy of the tests must end here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    with warnings.catch_warnings():
        # From Python 3.12 on a fork beside other threads is warned about; the one of the test runner only waits.
        warnings.simplefilter("ignore", DeprecationWarning)
        return subprocess.Popen(
            [sys.executable], preexec_fn=become_the_command, restore_signals=False, text=True, **pipes
        )


def run(
    words: Sequence[str], environment: dict[str, str], *, first: Callable[[], object] = bool
) -> subprocess.CompletedProcess[str]:
    with start(words, environment, first=first, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            output, errors = process.communicate(timeout=120)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, output, errors)


def _run(words: Sequence[str], environment: dict[str, str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
    # The tokenizers library complains of a fork unless it is told to stay on one thread.
    os.environ.update(environment, TOKENIZERS_PARALLELISM="false")
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    return main(list(words))


def _open_files() -> set[int]:
    return {int(entry.name) for entry in Path("/dev/fd").iterdir() if entry.name.isdigit()}
