"""Work on the parts of a text in parallel, in processes that import no torch; answers come in the order of the text."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, BinaryIO, cast

from anaphor.data.part_worker import Answer, make_work, read_answer, write_message, write_part
from anaphor.data.text import Part
from anaphor.processor import count_cores

MAX_WORKERS = 16
# -P: `-m` alone would put the current folder on the path, and execute a numpy.py that lies there.
COMMAND = (sys.executable, "-P", "-m", "anaphor.data.part_worker")


def map_parts(
    setup: Mapping[str, Any], parts: Iterable[Part], workers: int | None = None
) -> Iterator[tuple[Part, Answer]]:
    """Each part with the answer to it.

    Args:
        setup: What is to be done, for `make_work`.
        parts: The parts, read as they are needed: at most two for each worker are in memory.
        workers: Number of processes; with one, the work is done in this process. None: one for each core.
    """
    workers = min(count_cores(), MAX_WORKERS) if workers is None else workers
    if workers == 1:
        work = make_work(setup)
        yield from ((part, work(part)) for part in parts)
        return
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        # The last to be entered is the first to be left: threads that wait for an answer see its end.
        for process in [_start(setup, stack) for _ in range(workers)]:
            idle.put(process)
        yield from _in_order(parts, lambda part: pool.submit(_ask, idle, part), 2 * workers)


def _in_order(
    parts: Iterable[Part], submit: Callable[[Part], Future[Answer]], most: int
) -> Iterator[tuple[Part, Answer]]:
    waiting: deque[tuple[Part, Future[Answer]]] = deque()
    try:
        for part in parts:
            waiting.append((part, submit(part)))
            if len(waiting) >= most:
                first, answer = waiting.popleft()
                yield first, answer.result()
        while waiting:
            first, answer = waiting.popleft()
            yield first, answer.result()
    finally:
        for _, answer in waiting:
            answer.cancel()


def _start(setup: Mapping[str, Any], stack: ExitStack) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([*filter(None, sys.path), *filter(None, [os.environ.get("PYTHONPATH")])])
    # The library's own threads would compete with the other processes.
    variables = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)
    stack.callback(_stop, process)
    with contextlib.suppress(BrokenPipeError):  # the first answer says that it has ended
        write_message(cast("BinaryIO", process.stdin), {"setup": dict(setup)})
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()


def _ask(idle: SimpleQueue[subprocess.Popen[bytes]], part: Part) -> Answer:
    process = idle.get()
    try:
        with contextlib.suppress(BrokenPipeError):
            write_part(cast("BinaryIO", process.stdin), part)
        return read_answer(cast("BinaryIO", process.stdout))
    finally:
        idle.put(process)
