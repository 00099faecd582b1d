"""Engines run the workers of a study: processes of this machine, or a Ray cluster. Neither schedules; they adapt."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from anaphor.errors import ConfigError
from anaphor.studies.cell import OUTPUT
from anaphor.studies.sharing import shared_gpus

LAST_WORDS = 4000  # bytes of a worker's output in which its reason is looked for


@dataclass(frozen=True)
class Job:
    """One process: what it does, in which folder, on how many threads."""

    what: str
    folder: Path
    threads: int = 1


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, negative for a signal, and the last line it wrote."""

    code: int
    reason: str = ""


class Engine(Protocol):
    """Takes jobs and gives promises of their end."""

    slots: int
    """How many jobs make it busy."""

    def submit(self, job: Job) -> Future[Ended]: ...

    def close(self) -> None:
        """Ask all that still run to save and to end."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalEngine:
    """Processes of this machine, `per_device` of them on each GPU, or one for every `threads` cores."""

    def __init__(self, *, devices: Sequence[str] = (), per_device: int = 1, threads: int = 1, slots: int | None = None):
        if per_device < 1 or (slots is not None and slots < 1):
            raise ConfigError(f"per_device={per_device}, workers={slots}: at least 1 of each")
        usual = len(devices) * per_device if devices else max(1, len(os.sched_getaffinity(0)) // threads)
        self.slots = usual if slots is None else slots
        self._pool = ThreadPoolExecutor(self.slots)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._held = ExitStack()
        self._environment: dict[str, str] = {}
        if devices and self.slots > len(devices):
            self._environment = self._held.enter_context(shared_gpus())
        self._closed = False
        self._devices: queue.SimpleQueue[str] | None = queue.SimpleQueue() if devices else None
        for slot in range(self.slots if devices else 0):
            assert self._devices is not None
            self._devices.put(devices[slot % len(devices)])

    def submit(self, job: Job) -> Future[Ended]:
        return self._pool.submit(self._run, job)

    def _run(self, job: Job) -> Ended:
        device = None if self._devices is None else self._devices.get()
        try:
            if self._closed:
                return Ended(143, "the study was stopped")
            own = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
            process = start(job, {**self._environment, **own})
            with process:
                self._running.add(process)
                if self._closed:  # while it was being started
                    let_go(process)
                code = process.wait()
                self._running.discard(process)
            return Ended(code, last_line(job.folder))
        finally:
            if self._devices is not None and device is not None:
                self._devices.put(device)

    def close(self) -> None:
        self._closed = True
        for process in list(self._running):
            let_go(process)
        self._pool.shutdown(cancel_futures=True)
        self._held.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RayEngine:
    """Tasks of a Ray cluster, an existing one or one that is started here.

    Every node must see the study's folder and the data under the same paths, and have Anaphor installed.
    """

    def __init__(self, *, address: str | None = None, gpus: bool = False, per_device: int = 1, threads: int = 1):
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise ConfigError("--engine ray needs Ray: pip install 'anaphor[ray]'") from None
        require_listener(address)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._ray = ray
        self._held = ExitStack()
        self._held.enter_context(redirect_stdout(sys.stderr))  # Ray tells there what happens on its nodes
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        except ConnectionError as error:
            self._held.close()
            raise ConfigError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from None
        share = {"num_cpus": threads, "num_gpus": 1 / per_device if gpus else 0}
        # A worker of Ray that dies takes its cell's process with it; Ray starts both again.
        self._task = ray.remote(max_retries=5, **share)(run_here)
        room = ray.cluster_resources()
        fitting = room.get("GPU", 0) * per_device if gpus else room.get("CPU", 1) // threads
        self.slots = max(1, int(fitting))

    def submit(self, job: Job) -> Future[Ended]:
        promise: Future[Ended] = self._task.remote(job).future()
        return promise

    def close(self) -> None:
        self._ray.shutdown()
        self._held.close()

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def require_listener(address: str | None) -> None:
    """Refuse an address where nobody listens at once: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon:  # none, or a word such as `auto`
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster at {address}: {error}") from None


def run_here(job: Job) -> Ended:
    """A job on whatever machine this is."""
    with start(job, {}) as process:
        code = process.wait()
    return Ended(code, last_line(job.folder))


def start(job: Job, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Begin a worker. It reads its input only to learn that we are gone, and hears no Ctrl-C of ours."""
    threads = {name: str(job.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with (job.folder / OUTPUT).open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "anaphor.studies.worker", job.what, str(job.folder)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads, **environment},
            start_new_session=True,
        )


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Ask a worker to save and to end."""
    assert process.stdin is not None
    process.stdin.close()


def last_line(folder: Path) -> str:
    """What a worker said at the end: the reason, if it failed."""
    try:
        with (folder / OUTPUT).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
            lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:500] if lines else ""


def visible_gpus() -> list[str]:
    """Names by which a process can be given one GPU."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def build_engine(name: str, *, device: str, **options: Any) -> Engine:
    """`local` or `ray`, for runs on that device."""
    devices = [] if device == "cpu" else visible_gpus()
    if name == "ray":
        options.pop("slots", None)
        return RayEngine(gpus=bool(devices), **options)
    options.pop("address", None)
    return LocalEngine(devices=devices, **options)


ENGINES = {"local": "processes of this machine", "ray": "a Ray cluster, this machine alone if none is named"}
