"""Several processes on one GPU: NVIDIA's multi-process service lets their kernels run at once instead of in turns."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"


@contextmanager
def shared_gpus() -> Iterator[dict[str, str]]:
    """Start the service for as long as the block lasts; gives what a process needs in its environment to use it.

    Where it is not installed, already runs, or does not start, nothing is given: the GPU is then shared in turns.
    """
    if shutil.which(CONTROL) is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="anaphor-mps-", ignore_cleanup_errors=True) as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:
            subprocess.run(
                [CONTROL, "-d"], env={**os.environ, **environment}, capture_output=True, check=True, timeout=20
            )
        except (OSError, subprocess.SubprocessError):
            yield {}
            return
        try:
            yield environment
        finally:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [CONTROL], input=b"quit\n", env={**os.environ, **environment}, capture_output=True, timeout=20
                )
