"""Jobs: work with a model, one at a time, in a worker process that can be killed. The server itself loads no model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anaphor.imported_files import ImportedFile

MAX_WAITING = 16
MAX_KEPT = 32  # finished jobs
MAX_KEPT_BYTES = 256_000_000
MAX_RESULT = 64_000_000  # bytes
JOB_SECONDS = 900.0
POLL_SECONDS = 150.0  # a job that no page asks for is cancelled; a hidden page asks once a minute
CANCEL_SECONDS = 3.0  # for a job to end by itself before its process is killed
IDLE_SECONDS = 600.0  # then the worker and its models leave the memory
TICK = 0.1
CLOSED = ("done", "failed", "cancelled")
# -P: `-m` alone would put the current folder on the path, and execute a torch.py that lies there.
COMMAND = (sys.executable, "-P", "-m", "anaphor.web.worker")


def worker_command(imports: Iterable[ImportedFile], *, force: bool) -> list[str]:
    """The command of a worker that imports files of the user's; `force` accepts edited ones."""
    return [*COMMAND, *(["--force"] if force else []), *(str(file.path) for file in imports)]


class Busy(Exception):
    """Too many jobs are waiting."""


@dataclass(eq=False)
class Job:
    """One request to the worker and what became of it."""

    request: dict[str, Any]
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "waiting"
    progress: list[Any] = field(default_factory=lambda: [0, 1, "waiting"])
    result: bytes = b"null"
    """JSON, as the worker wrote it."""
    error: str = ""
    is_too_large: bool = False
    is_begun: bool = False
    """Whether the worker has said anything about it."""
    polled: float = field(default_factory=time.monotonic)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_closed(self) -> bool:
        return self.state in CLOSED

    def update(self, state: str, **values: Any) -> None:
        self.state = state
        for name, value in values.items():
            setattr(self, name, value)
        self.changed.set()
        self.changed = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for news, at most so long."""
        self.polled = time.monotonic()
        if not self.is_closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), seconds)
        self.polled = time.monotonic()


class Jobs:
    """The queue and its worker, which is started for a page, at the latest at the first job, and again after it was
    killed or has died."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.jobs: dict[str, Job] = {}
        self.seconds = JOB_SECONDS
        self._command = command
        self._waiting: deque[Job] = deque()
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def submit(self, request: dict[str, Any]) -> Job:
        self._cancel_abandoned()
        if len(self._waiting) >= MAX_WAITING:
            raise Busy
        job = Job(request)
        self.jobs[job.id] = job
        self._forget()
        self._waiting.append(job)
        self._news.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return job

    def warm(self) -> None:
        """Start the worker before its first job: it loads torch, which takes seconds."""
        if self._task is None:
            self._task = asyncio.create_task(self._work(is_early=True))

    def _forget(self) -> None:
        """Drop the oldest of too many results."""
        closed = [job for job in self.jobs.values() if job.is_closed]
        size = sum(len(job.result) for job in closed)
        for number, job in enumerate(closed):
            if len(closed) - number <= MAX_KEPT and size <= MAX_KEPT_BYTES:
                break
            size -= len(job.result)
            del self.jobs[job.id]

    def cancel(self, job: Job, reason: str = "cancelled") -> None:
        """Cancel a job. The process of a running one gets a message, and is killed if that does not help."""
        if job.is_closed:
            return
        if job in self._waiting:
            self._waiting.remove(job)
        job.update("cancelled", error=reason)

    def _cancel_abandoned(self) -> None:
        for job in self.jobs.values():
            if time.monotonic() - job.polled > POLL_SECONDS:
                self.cancel(job, "cancelled: the page stopped asking for the result")

    async def close(self) -> None:
        for job in self.jobs.values():
            self.cancel(job)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stop()

    async def _work(self, *, is_early: bool = False) -> None:
        if is_early:
            with contextlib.suppress(OSError):  # the first job says why
                self._process = await self._start()
        while True:
            while not self._waiting:
                self._news.clear()
                try:
                    await asyncio.wait_for(self._news.wait(), IDLE_SECONDS)
                except TimeoutError:
                    await self._stop()
            await self._run(self._waiting.popleft())

    async def _run(self, job: Job) -> None:
        job.update("running", progress=[0, 1, "starting"])
        exchange = asyncio.create_task(self._exchange(job))
        deadline = time.monotonic() + self.seconds
        is_sent, patience = False, deadline
        try:
            while not exchange.done():
                await asyncio.wait({exchange}, timeout=TICK)
                self._cancel_abandoned()
                now = time.monotonic()
                if job.state == "cancelled" and not is_sent and self._process is not None:
                    is_sent = True
                    await self._send({"cancel": job.id})
                if is_sent and job.is_begun:  # before that torch is loaded, which the next job needs too
                    patience = min(patience, now + CANCEL_SECONDS)
                if now > deadline and not job.is_closed:
                    job.update("failed", error=f"stopped: it took longer than {self.seconds:g} seconds")
                if now > min(deadline, patience):
                    await self._stop()
        finally:
            exchange.cancel()
            await asyncio.gather(exchange, return_exceptions=True)
        if not job.is_closed:
            await self._stop()
            job.update("failed", error="the process with the model gave no answer that can be read")

    async def _exchange(self, job: Job) -> None:
        """Send one request and read what comes back: progress, and at last one answer."""
        try:
            if self._process is None:
                self._process = await self._start()
            process = self._process
            await self._send({"job": job.id, **job.request})
            assert process.stdout is not None
            while True:
                head = json.loads(await process.stdout.readuntil())
                if head["length"] > MAX_RESULT:
                    raise ValueError(f"an answer of {head['length']} bytes")
                body = await process.stdout.readexactly(head["length"])
                job.is_begun = True
                if head["kind"] != "progress":
                    break
                if not job.is_closed:
                    job.update("running", progress=json.loads(body))
        except (EOFError, OSError) as error:
            code = await self._stop()
            reason = "it was killed, perhaps because the memory is full" if code == -9 else f"exit code {code}"
            if isinstance(error, OSError) and error.strerror:
                reason = error.strerror
            head, body = {"kind": "failed"}, json.dumps(f"the process with the model has ended: {reason}").encode()
        if job.is_closed:
            return
        if head["kind"] == "done":
            job.update("done", result=body, progress=[1, 1, "done"])
        else:
            job.update("failed", error=json.loads(body), is_too_large=head["kind"] == "too large")

    async def _send(self, message: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the end of its output shows it
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                await self._process.stdin.drain()

    async def _start(self) -> asyncio.subprocess.Process:
        """A process on one core, on no GPU, which gets no Ctrl-C of this one and ends with it."""
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **threads, "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
        )

    async def _stop(self) -> int | None:
        """Kill the worker. The result is how it ended, by our hand or another."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                await asyncio.wait_for(process.wait(), TICK)  # its output may end before it does
        code = process.returncode
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            if process.stdout is not None:  # asyncio waits for the end of the output, too
                with contextlib.suppress(RuntimeError):  # which is being read
                    await process.stdout.read()
            code = await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return code
