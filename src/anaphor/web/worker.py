"""The worker of the live page: a process that holds the models and answers one request after the other.

`python -P -m anaphor.web.worker [--force] [FILE…]`, with Python files of the user's. Requests come as lines of JSON on
standard input; it stops when that is closed.
Answers go to standard output: a line of JSON with the kind and the length, then so many bytes of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn

from anaphor.errors import AnaphorError, ConfigError, TooLarge
from anaphor.imported_files import import_file
from anaphor.plain_values import replace_nonfinite
from anaphor.training.run_folder import RunFolder

NICENESS = 10
FORCE = "--force"
PROGRESS_SECONDS = 0.2
ProgressListener = Callable[[str, float], None]
Answer = Callable[[dict[str, Any], ProgressListener], dict[str, Any]]
_WORD, _NEXT_WORD = r"[^\s/\\'\"`:;,()]+", r"[^\s/\\'\"`:;,()=~]+"
# Spaces belong to a path in the name of a folder: where a separator follows after few words.
_PATH = re.compile(
    rf"(?<![\w.:/<])(?:~|[A-Za-z]:)?(?:[/\\]{_WORD}(?: {_NEXT_WORD}){{1,4}}(?=[/\\])|[/\\]{_WORD})+[/\\]?"
)


class Cancelled(Exception):
    """The server does not want the answer any more."""


def require_imports(folder: Path, *, force: bool) -> None:
    """Files of Python that a run names are not executed for a page, unless the command of the server names them."""
    try:
        RunFolder(folder).check_imports(force=force, warn=lambda line: None)
    except ConfigError as error:
        raise ConfigError(f"{error}: these are flags of `anaphor serve`") from None


class Channel:
    """Requests in, answers out. Cancelling and the end of the input are noticed while a request is worked on."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._cancelled = ""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._source:
            message = json.loads(line)
            if "cancel" in message:
                self._cancelled = message["cancel"]
            else:
                self._requests.put(message)
        os._exit(0)  # the server is gone

    def receive(self) -> dict[str, Any]:
        return self._requests.get()

    def is_cancelled(self, job: str) -> bool:
        return job == self._cancelled

    def send(self, kind: str, value: Any) -> None:
        body = json.dumps(replace_nonfinite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )
        self._sink.write(json.dumps({"kind": kind, "length": len(body)}).encode() + b"\n" + body)
        self._sink.flush()


def respond(message: dict[str, Any], channel: Channel, answer: Answer, *, force: bool = False) -> None:
    """Work on one request and send one answer, whatever happens."""
    last_report = 0.0

    def listen(name: str, fraction: float) -> None:
        nonlocal last_report
        if channel.is_cancelled(message["job"]):
            raise Cancelled
        if time.monotonic() - last_report > PROGRESS_SECONDS:
            last_report = time.monotonic()
            channel.send("progress", [round(fraction * 1000), 1000, name])

    try:
        listen("loading", 0.0)
        for path in message["names"]:
            require_imports(Path(path), force=force)
        channel.send("done", answer(message["request"], listen))
    except Cancelled:
        channel.send("failed", "cancelled")
    except TooLarge as error:
        channel.send("too large", without_paths(str(error), message["names"]))
    except AnaphorError as error:
        channel.send("failed", without_paths(str(error), message["names"]))
    except OSError as error:
        channel.send("failed", f"a file of the run cannot be read: {error.strerror or type(error).__name__}")
    except MemoryError:
        channel.send("failed", "the memory is full")
    except Exception:  # noqa: BLE001 (a bug of ours: the page gets one line, the terminal the rest)
        traceback.print_exc()
        channel.send("failed", "internal error: the terminal of `anaphor serve` shows the details")


def without_paths(line: str, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """A message for the page: runs by their names, of other files the last part."""
    for path, name in names.items():
        line = line.replace(path, name)
    return " ".join(_PATH.sub(lambda match: re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], line).split())


def main(answer: Answer | None = None, imports: Sequence[str] = (), *, force: bool = False) -> NoReturn:
    """Answer until the input is closed, by `anaphor.web.inference` or by another function. `imports` are files of the
    user's; `force` accepts those that were edited since a run was trained."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    with contextlib.suppress(OSError):  # where the memory is full, Linux is to kill this process and no training
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    # Of this process's own, so that nothing a library prints gets between the answers.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    channel = Channel(source, sink)
    if answer is None:
        answer = load_inference(force=force)
    for path in imports:
        import_file(path)
    while True:
        respond(channel.receive(), channel, answer, force=force)


def load_inference(*, force: bool = False) -> Answer:
    import torch

    from anaphor.progress_listener import progress_listener
    from anaphor.web import inference

    torch.set_num_threads(1)
    cache = inference.Cache(force=force)

    def answer(request: dict[str, Any], listen: ProgressListener) -> dict[str, Any]:
        with progress_listener(listen):
            return inference.answer(request, cache)

    return answer


if __name__ == "__main__":
    main(imports=[word for word in sys.argv[1:] if word != FORCE], force=FORCE in sys.argv[1:])
