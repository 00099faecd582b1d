"""The worker: a process that trains one cell, or scores it on test, and ends.

`python -m anaphor.studies.worker train|test FOLDER`. It goes on where an earlier one stopped. It ends when its standard
input ends, so that nothing runs on for a study whose process was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from anaphor.config import finite, look_up
from anaphor.errors import AnaphorError, ConfigError
from anaphor.studies.cell import JOB, MEASURES, STOP, TEST, read_json
from anaphor.studies.spec import TASKS
from anaphor.training.files import replace_file
from anaphor.training.run_folder import RunFolder

PATIENCE = 30.0  # seconds that a worker waits for the folder of one that is just ending
WORK = {"train": "train a cell", "test": "score it on test"}


def main(words: list[str]) -> int:
    what, folder = words[0], Path(words[1])
    look_up(WORK, what, "kind of work")
    job = json.loads((folder / JOB).read_bytes())
    watch(folder)
    try:
        return train(folder, job) if what == "train" else test(folder, job)
    except AnaphorError as error:
        print(error, file=sys.stderr)  # noqa: T201 (the last line of a worker's output is the reason of its failure)
        return error.exit_code


def train(folder: Path, job: dict[str, Any]) -> int:
    import torch

    from anaphor.studies.measures import measure
    from anaphor.training.run import execute, opened
    from anaphor.training.trainer import Nobody

    torch.set_num_threads(job["threads"])
    spec = TASKS[job["task"]](**job["spec"])
    rundir = RunFolder(folder)
    wait_for(rundir)
    if read_json(rundir.result).get("status") != "finished":  # none, of an interruption, or damaged
        _, code = execute(spec, folder, Nobody(), resume=rundir.exists, test=False)
        if code:
            return code
    with opened(folder, spec.device) as made:
        found = measure(made, folder, "valid", **job["measures"])
    write(folder / MEASURES, {"wanted": job["measures"], **found})
    return 0


def test(folder: Path, job: dict[str, Any]) -> int:
    """Read the test split. Only for a study that has sealed its choice."""
    import torch

    from anaphor.studies.measures import test_scores
    from anaphor.training.run import opened

    torch.set_num_threads(job["threads"])
    with opened(folder, job["spec"]["device"]) as made:
        write(folder / TEST, test_scores(made, job["measures"]["lengths"]))
    return 0


def write(path: Path, found: dict[str, Any]) -> None:
    replace_file(path, json.dumps(finite(found), ensure_ascii=False).encode() + b"\n")


def wait_for(rundir: RunFolder) -> None:
    """A worker that lost its study may need a moment to save and to leave the folder."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with rundir.lock():
                return
        except ConfigError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def watch(folder: Path) -> None:
    """End as SIGTERM does, with the last step saved, when the study is gone or does not want this cell any more."""

    def parent() -> None:
        while os.read(0, 1024):  # not sys.stdin, whose lock a thread must not hold when the program ends
            pass
        leave()

    def stop() -> None:
        while not (folder / STOP).exists():
            time.sleep(0.25)
        leave()

    def leave() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os._exit(143)

    for watcher in (parent, stop):
        threading.Thread(target=watcher, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
