"""Engines run the workers of a study: processes of this machine, or tasks of a Ray cluster."""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self

from anaphor.errors import ConfigError, count_noun
from anaphor.files import open_file
from anaphor.processor import count_cores
from anaphor.studies.cell import OUTPUT

OUTPUT_TAIL = 4000  # bytes of a worker's output that are searched for its last line
MPS_CONTROL = "nvidia-cuda-mps-control"
TERMINATED = 143  # exit code of a worker that was stopped and saved a checkpoint
ENGINES = {"local": "processes of this machine", "ray": "tasks of a Ray cluster"}


@dataclass(frozen=True)
class Job:
    """Work of one process: `train` or `test` a cell."""

    action: str
    folder: Path
    threads: int = 1
    following: int | None = None
    """Most jobs that are submitted after this one; None: not known."""


@dataclass(frozen=True)
class JobResult:
    """How a process ended: its exit code (negative for a signal) and the last line of its output."""

    exit_code: int
    last_line: str = ""


class Engine(ABC):
    """Runs jobs. Leaving its block closes it."""

    slots: int
    """Number of jobs that run at the same time."""

    @abstractmethod
    def submit(self, job: Job) -> Future[JobResult]: ...

    @abstractmethod
    def close(self) -> None:
        """Ask all running workers to save a checkpoint and stop."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class LocalEngine(Engine):
    """Jobs of this machine: `per_device` on each GPU, or on those that each needs, or one for every `threads` cores.

    Every job has a process of its own. On a GPU the process of the next job is started while the one before works, so
    that it has loaded its libraries when it gets its job. It holds memory of the GPU, so that no more of them wait than
    there are jobs left for them.
    """

    def __init__(
        self,
        *,
        devices: Sequence[str] = (),
        per_device: int = 1,
        threads: int = 1,
        processes: int = 1,
        slots: int | None = None,
    ) -> None:
        """`devices` has the GPUs of each job, as CUDA_VISIBLE_DEVICES has them, which has so many `processes`."""
        if per_device < 1 or (slots is not None and slots < 1):
            raise ConfigError(f"per_device={per_device}, workers={slots}: both must be at least 1")
        default = len(devices) * per_device if devices else max(1, count_cores() // (threads * processes))
        self.slots = default if slots is None else slots
        self._pool = ThreadPoolExecutor(self.slots)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._contexts = ExitStack()
        self._environment: dict[str, str] = {}
        if devices and self.slots > len(devices):
            self._environment = self._contexts.enter_context(share_gpus())
        self._closed = False
        self._threads = threads
        self._spares: dict[str, list[subprocess.Popen[bytes]]] = {device: [] for device in devices}
        self._stopped: list[subprocess.Popen[bytes]] = []
        self._following: int | None = None
        self._submitted = 0  # jobs that have no process yet
        self._lock = threading.Lock()
        of_slots = [devices[slot % len(devices)] for slot in range(self.slots)] if devices else []
        self._free = Counter(of_slots)  # slots of each device
        self._devices: queue.SimpleQueue[str] | None = queue.SimpleQueue() if devices else None
        for device in of_slots:
            assert self._devices is not None
            self._devices.put(device)

    def submit(self, job: Job) -> Future[JobResult]:
        with self._lock:
            self._following = job.following
            self._submitted += 1
        return self._pool.submit(self._run, job)

    def _run(self, job: Job) -> JobResult:
        device = None if self._devices is None else self._devices.get()
        try:
            if self._closed:
                return JobResult(TERMINATED, "the study was stopped")
            process = self._start(job, device)
            with process:
                self._running.add(process)
                if self._closed:  # while it was started
                    stop_worker(process)
                code = process.wait()
                self._running.discard(process)
            return JobResult(code, read_last_line(job.folder))
        finally:
            if self._devices is not None and device is not None:
                self._devices.put(device)
                with self._lock:
                    self._free[device] += 1
                if self._following:  # later jobs, such as those on test, find their processes ready
                    self._adjust_spares(device)

    def _start(self, job: Job, device: str | None) -> subprocess.Popen[bytes]:
        if device is None:
            return start_worker(job, self._environment)
        process: subprocess.Popen[bytes] | None = None
        with suppress(IndexError), self._lock:  # the thread of another job may take the last one
            self._submitted -= 1
            self._free[device] -= 1
            process = self._spares[device].pop()
        if process is None or not assign(process, job):
            process = start_worker(job, self._environment_of(device))
        self._adjust_spares(device)
        return process

    def _environment_of(self, device: str) -> dict[str, str]:
        return {**self._environment, "CUDA_VISIBLE_DEVICES": device}

    def _adjust_spares(self, device: str) -> None:
        """Start a waiting process of this device if a job is left for it; one for each free slot, and one more. Those
        that no job is left for are stopped."""
        with suppress(OSError), self._lock:  # too many processes: the next job starts its own
            if self._closed:
                return
            spares, waiting = self._spares[device], sum(map(len, self._spares.values()))
            left = waiting + 1 if self._following is None else self._following + self._submitted
            if waiting < left and len(spares) <= self._free[device]:
                spares.append(start_spare(self._threads, self._environment_of(device)))
            for others in self._spares.values():
                while waiting > left and others:
                    waiting -= 1
                    self._stopped.append(others.pop())
                    stop_worker(self._stopped[-1])

    def close(self) -> None:
        self._closed = True
        for process in list(self._running):
            stop_worker(process)
        self._pool.shutdown(cancel_futures=True)
        for process in itertools.chain(self._stopped, *self._spares.values()):
            stop_worker(process)
            process.wait()
        self._contexts.close()


class RayEngine(Engine):
    """Tasks of a Ray cluster, an existing one or one that is started here.

    On every node the study's folder and the data must have the same paths, and Anaphor must be installed.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        gpus: bool = False,
        per_device: int = 1,
        threads: int = 1,
        devices_per_job: int = 1,
    ) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise ConfigError("--engine ray needs Ray: pip install 'anaphor[ray]'") from None
        check_address(address)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._ray = ray
        self._contexts = ExitStack()
        self._contexts.enter_context(redirect_stdout(sys.stderr))  # Ray prints messages of its nodes
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        except ConnectionError as error:
            self._contexts.close()
            raise ConfigError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from None
        of_gpus = devices_per_job if devices_per_job > 1 else 1 / per_device  # Ray divides one GPU only
        resources = {"num_cpus": threads * devices_per_job, "num_gpus": of_gpus if gpus else 0}
        # A Ray worker that dies takes the process of its cell with it; Ray restarts both.
        self._task = ray.remote(max_retries=5, **resources)(run_job)
        available = ray.cluster_resources()
        slots = available.get("GPU", 0) / of_gpus if gpus else available.get("CPU", 1) // resources["num_cpus"]
        self.slots = max(1, int(slots))

    def submit(self, job: Job) -> Future[JobResult]:
        future: Future[JobResult] = self._task.remote(job).future()
        return future

    def close(self) -> None:
        self._ray.shutdown()
        self._contexts.close()


def check_address(address: str | None) -> None:
    """Raise at once if nothing listens at an address: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon:  # none, or `auto`
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster at {address}: {error}") from None


def run_job(job: Job) -> JobResult:
    """Run a job on this machine and wait for it."""
    with start_worker(job, {}) as process:
        code = process.wait()
    return JobResult(code, read_last_line(job.folder))


def start_worker(job: Job, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker. It stops when its standard input is closed, and gets no Ctrl-C of this process."""
    with open(open_file(job.folder / OUTPUT), "wb") as output:
        return _start_process([job.action, str(job.folder)], output, job.threads, environment)


def start_spare(threads: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker that waits for its job."""
    return _start_process([], subprocess.DEVNULL, threads, environment)


def assign(process: subprocess.Popen[bytes], job: Job) -> bool:
    """Send a job to a worker that waits for one. False: the worker has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps([job.action, str(job.folder)]).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        with suppress(OSError):  # of what it did not read
            process.stdin.close()
        process.wait()
        return False
    return True


def _start_process(
    argv: list[str], output: IO[bytes] | int, threads: int, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    of_threads = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return subprocess.Popen(
        # -P: `-m` alone would put the current folder on the path, and execute a torch.py that lies there.
        [sys.executable, "-P", "-m", "anaphor.studies.worker", *argv],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **of_threads, **environment},
        start_new_session=True,
    )


def stop_worker(process: subprocess.Popen[bytes]) -> None:
    """Ask a worker to save a checkpoint and stop."""
    assert process.stdin is not None
    process.stdin.close()


def read_last_line(folder: Path) -> str:
    """Last line of a worker's output: the reason, if it failed."""
    try:
        with (folder / OUTPUT).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - OUTPUT_TAIL))
            lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:500] if lines else ""


def visible_gpus() -> list[str]:
    """Values of CUDA_VISIBLE_DEVICES for one GPU each."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def build_engine(name: str, *, device: str, devices_per_job: int = 1, **options: Any) -> Engine:
    """An engine by name, for runs on that device, or on several."""
    gpus = [] if device == "cpu" else visible_gpus()
    if 0 < len(gpus) < devices_per_job:
        raise ConfigError(f"devices={devices_per_job}: there are only {count_noun(len(gpus), 'GPU')} here")
    if name == "ray":
        options.pop("slots", None)
        return RayEngine(gpus=bool(gpus), devices_per_job=devices_per_job, **options)
    places = range(len(gpus) // devices_per_job)
    devices = [",".join(gpus[place * devices_per_job : (place + 1) * devices_per_job]) for place in places]
    options["processes"] = devices_per_job
    options.pop("address", None)
    return LocalEngine(devices=devices, **options)


@contextmanager
def share_gpus() -> Iterator[dict[str, str]]:
    """Run NVIDIA's multi-process service (MPS), so that kernels of several processes run on a GPU at the same time.

    Yields the environment of the processes; empty where MPS is not installed, runs already or fails to start: then the
    processes use the GPU in turns.
    """
    if shutil.which(MPS_CONTROL) is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="anaphor-mps-", ignore_cleanup_errors=True) as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

        def control(*argv: str, **options: Any) -> None:
            full = {**os.environ, **environment}
            subprocess.run([MPS_CONTROL, *argv], env=full, capture_output=True, timeout=20, **options)

        try:
            control("-d", check=True)
        except (OSError, subprocess.SubprocessError):
            yield {}
            return
        try:
            yield environment
        finally:
            with suppress(OSError, subprocess.SubprocessError):
                control(input=b"quit\n")
