"""A report as PDF: printed by a Chromium that is installed, which is told what to do through two pipes.

The page copies its views for paper when it is idle, and says when it has done so. A browser that is only told on its
command line to print would not wait for it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anaphor.files import replace_file

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
SECONDS = 120.0
COMMANDS, ANSWERS = 3, 4
"""Numbers of the files by which a browser with `--remote-debugging-pipe` reads commands and answers them."""
START = f"""import os, sys
os.dup2(int(sys.argv[1]), {COMMANDS})
os.dup2(int(sys.argv[2]), {ANSWERS})
os.execv(sys.argv[3], sys.argv[3:])"""
"""Passes on the pipes as these numbers in the process that becomes the browser."""
IS_PRINTABLE = """new Promise((done) => {
  const look = () => ("printable" in (document.documentElement?.dataset ?? {}) ? done(true) : setTimeout(look, 50));
  look();
})"""


class PrintingFailed(Exception):
    """The browser ended, took too long, or could not print."""


def find_browser() -> str | None:
    """The path of a Chromium, or of a browser made from it; None where none is found."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def print_page(browser: str, page: Path, out: Path) -> None:
    """Print a report in an HTML file to a PDF file. PrintingFailed where it cannot be."""
    with start_browser(browser) as chromium:
        target = chromium.ask("Target.createTarget", url="about:blank")["targetId"]
        session = chromium.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        chromium.ask("Page.navigate", session, url=page.resolve().as_uri())
        waited = chromium.ask("Runtime.evaluate", session, expression=IS_PRINTABLE, awaitPromise=True)
        if "exceptionDetails" in waited:
            raise PrintingFailed(str(waited["exceptionDetails"].get("text")))
        printed = chromium.ask("Page.printToPDF", session, printBackground=True, preferCSSPageSize=True)
    replace_file(out, base64.b64decode(printed["data"]))


class Chromium:
    """A browser that runs, by its two pipes. Each message is JSON and ends with a NUL."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = commands, answers
        self.number = 0
        self.rest = b""

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol, of the browser or of a page that it is attached to."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {} if session is None else {"sessionId": session}
        try:
            os.write(self.commands, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise PrintingFailed("the browser ended") from None
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self.number:
                break
        if "error" in answer:
            raise PrintingFailed(str(answer["error"].get("message")))
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> bytes:
        parts = [self.rest]
        while b"\0" not in parts[-1]:
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise PrintingFailed("the browser ended")
            parts.append(part)
        message, _, self.rest = b"".join(parts).partition(b"\0")
        return message


@contextmanager
def start_browser(path: str) -> Iterator[Chromium]:
    """A browser without a window and without anything of the user's; it is killed after the block, or if it takes too
    long."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        argv = [path, "--headless", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}"]
        argv.append("--remote-debugging-pipe")
        if os.geteuid() == 0:
            argv.append("--no-sandbox")  # it refuses to start as root with one
        # Above the two numbers that they get in the browser, so that neither takes the place of the other there.
        import fcntl  # Windows has none

        pipes = [os.pipe(), os.pipe()]
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for pipe in pipes for end in pipe]
        for end in (end for pipe in pipes for end in pipe):
            os.close(end)
        read_commands, write_commands, read_answers, write_answers = ends

        try:
            running = subprocess.Popen(
                [sys.executable, "-c", START, str(read_commands), str(write_answers), *argv],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(read_commands, write_answers), start_new_session=True,
            )  # fmt: skip
            os.close(read_commands)
            os.close(write_answers)
            timer = threading.Timer(SECONDS, kill, (running,))
            timer.start()
            try:
                yield Chromium(write_commands, read_answers)
            finally:
                timer.cancel()
                kill(running)
                running.wait()
        except OSError as error:
            raise PrintingFailed(error.strerror or str(error)) from None
        finally:
            os.close(write_commands)
            os.close(read_answers)


def kill(running: subprocess.Popen[bytes]) -> None:
    """End the browser and the processes that it has started."""
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
