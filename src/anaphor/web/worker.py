"""The worker of the live page: a process that holds the models and answers one request after the other.

`python -P -m anaphor.web.worker`. Requests come as lines of JSON on standard input; it stops when that is closed.
Answers go to standard output: a line of JSON with the kind and the length, then so many bytes of JSON.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from anaphor.config import finite
from anaphor.errors import AnaphorError, ConfigError, TooLarge
from anaphor.training.run_folder import RunFolder

if TYPE_CHECKING:
    from anaphor.training.load import Run

MAX_MODELS = 2
NICENESS = 10
PROGRESS_SECONDS = 0.2
Answer = Callable[[dict[str, Any], "Models"], dict[str, Any]]
_PATH = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\'\"`:;,()]+)+[/\\]?")


class Models:
    """Loaded runs, at most two. One whose checkpoints have changed since is loaded again."""

    def __init__(self) -> None:
        self._runs: OrderedDict[Path, tuple[object, Run]] = OrderedDict()

    def load(self, folder: Path | str) -> Run:
        folder = Path(folder)
        refuse_own_parts(folder)
        stamp = read_stamp(folder)
        if folder in self._runs and self._runs[folder][0] == stamp:
            self._runs.move_to_end(folder)
            return self._runs[folder][1]

        from anaphor.training.load import load_run

        self._runs.pop(folder, None)
        while len(self._runs) >= MAX_MODELS:
            self._runs.popitem(last=False)  # before the next one is loaded: two fit into memory
        run = load_run(folder, device="cpu", threads=1, warn=lambda line: None)
        self._runs[folder] = stamp, run
        return run


def read_stamp(folder: Path) -> object:
    """Changes when the run gets another checkpoint."""
    paths = [RunFolder(folder).spec, *sorted(RunFolder(folder).checkpoints.glob("*"))]
    return [(path.name, path.stat().st_mtime_ns) for path in paths if path.exists()]


def refuse_own_parts(folder: Path) -> None:
    """Files of Python that a run names are not executed for a page."""
    if RunFolder(folder).read_document().get("imports"):
        raise ConfigError(
            f"{folder} was trained with Python files of your own, which the page does not execute: "
            f"use `anaphor look` or `anaphor score` with --import"
        )


class Channel:
    """Requests in, answers out. Cancelling and the end of the input are noticed while a request is worked on."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.is_cancelled = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._source:
            message = json.loads(line)
            if message.get("cancel"):
                self.is_cancelled.set()
            else:
                self._requests.put(message)
        os._exit(0)  # the server is gone

    def receive(self) -> dict[str, Any]:
        message = self._requests.get()
        self.is_cancelled.clear()
        return message

    def send(self, kind: str, value: Any) -> None:
        body = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
        self._sink.write(json.dumps({"kind": kind, "length": len(body)}).encode() + b"\n" + body)
        self._sink.flush()


def respond(request: dict[str, Any], models: Models, channel: Channel, answer: Answer) -> None:
    """Work on one request and send one answer, whatever happens."""
    from anaphor.evaluation import Cancelled, progress_listener

    told = 0.0

    def listen(name: str, fraction: float) -> None:
        nonlocal told
        if channel.is_cancelled.is_set():
            raise Cancelled
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            channel.send("progress", [round(fraction * 1000), 1000, name])

    try:
        with progress_listener(listen):
            channel.send("done", answer(request, models))
    except Cancelled:
        channel.send("failed", "cancelled")
    except TooLarge as error:
        channel.send("too large", without_paths(str(error), request))
    except AnaphorError as error:
        channel.send("failed", without_paths(str(error), request))
    except OSError as error:
        channel.send("failed", f"a file of the run cannot be read: {error.strerror or type(error).__name__}")
    except MemoryError:
        channel.send("failed", "the memory is full")
    except Exception:  # noqa: BLE001 (a bug of ours: the page gets one line, the terminal the rest)
        traceback.print_exc()
        channel.send("failed", "internal error: the terminal of `anaphor serve` shows the details")


def without_paths(line: str, request: dict[str, Any]) -> str:
    """A message for the page: runs by their names, of other files the last part."""
    for path, name in request.get("names", {}).items():
        line = line.replace(path, name)
    return " ".join(_PATH.sub(lambda match: re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], line).split())


def main(answer: Answer | None = None) -> NoReturn:
    """Answer until the input is closed, with `anaphor.web.inference.answer` or another function."""
    os.nice(NICENESS)
    # Of this process's own, so that nothing a library prints gets between the answers.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    channel, models = Channel(source, sink), Models()
    if answer is None:
        from anaphor.web.inference import answer
    while True:
        respond(channel.receive(), models, channel, answer)


if __name__ == "__main__":
    main()
