"""A worker without models: it does what the request's text says."""

import fcntl
import os
import signal
import stat
import sys
import time
from pathlib import Path

from anaphor.errors import ConfigError, TooLarge
from anaphor.web.worker import main

REFUSED = "/home/somebody/secret/data.txt is broken; see ~/notes/a.md and C:\\Users\\me\\b.txt, or use lr=1/2"


def answers():
    """The file of the worker's answers: the only pipe that it writes to."""
    return next(number for number in range(3, 20) if is_written(number))


def is_written(number):
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
        return is_pipe and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    except OSError:
        return False


def answer(request, listen):
    text = request.get("text", "")
    if text == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif text == "exits":
        os._exit(7)
    elif text == "refuses":
        raise ConfigError(REFUSED)
    elif text == "is too large":
        raise TooLarge("the text has 5,000 tokens")
    elif text == "fails":
        raise ZeroDivisionError("/home/somebody/secret")
    elif text == "disk":
        raise OSError(28, "No space left on device", "/home/somebody/secret")
    elif text == "prints":
        os.write(1, b'{"kind": "done", "length": 4}\nnull')
    elif text == "speaks nonsense":
        os.write(answers(), b"nonsense\n")
    elif text == "speaks too long":
        os.write(answers(), b"x" * 200_000)
    elif text == "hangs":
        time.sleep(60)
    elif text == "works for long":
        for step in range(6000):
            listen("working", step / 6000)
            time.sleep(0.01)
    return {
        "process": os.getpid(),
        "nice": os.nice(0),
        "kill first": Path("/proc/self/oom_score_adj").read_text().strip() if sys.platform == "linux" else "1000",
        "request": request,
        "not a number": float("nan"),
    }


if __name__ == "__main__":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a failure prints is for the terminal
    main(answer)
