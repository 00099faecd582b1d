"""The worker: a process that trains one cell, or evaluates it on test.

`python -P -m anaphor.studies.worker train|test FOLDER`. It resumes from the last checkpoint. It stops when its standard
input is closed, so that no worker outlives its study. Without a job it loads its libraries and waits for one, as a line
of its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from anaphor.config import look_up
from anaphor.errors import AnaphorError, ConfigError
from anaphor.files import delete, open_file, replace_file
from anaphor.imported_files import describe_own_error, import_file
from anaphor.plain_values import replace_nonfinite
from anaphor.registry import TASKS, import_object
from anaphor.studies.cell import JOB, MEASURES, OUTPUT, STOP, TEST, digest_of_test, is_damaged, read_json
from anaphor.training import checkpoint
from anaphor.training.launch import read_launch
from anaphor.training.load import load_run
from anaphor.training.loop import train_run
from anaphor.training.options import TrainOptions
from anaphor.training.run_folder import RunFolder

EXIT_CODE = "exit-code"  # of the first of several processes: torchrun has one of its own
SAVE_MINUTES = 1.0  # between checkpoints that can be resumed: they are several times as large as the weights
TIMEOUT = 30.0  # seconds to wait for another worker that is about to leave the folder


def main(argv: list[str]) -> int:
    argv = argv or wait_for_job()
    if not argv:
        return 0
    action, folder = argv[0], Path(argv[1])
    run = look_up({"train": train, "test": test}, action, "action")
    job = json.loads((folder / JOB).read_bytes())
    if action == "train" and job.get("devices", 1) > 1:
        if read_launch().ranks == 1:
            return train_on_devices(folder, job["devices"])
        write_output(folder, os.O_APPEND)
    watch_for_stop(folder)
    try:
        for path, digest in job["imports"].items():
            if import_file(path).sha256 != digest:
                raise ConfigError(f"{path} has changed since the study started: run the study again")
        code = run(folder, job)
        if read_launch().ranks > 1 and read_launch().is_first:
            replace_file(folder / EXIT_CODE, str(code).encode())
        return code
    except AnaphorError as error:
        print(error, file=sys.stderr)  # noqa: T201 (the last line of the output is the reason of a failure)
        return error.exit_code
    except Exception as error:
        if (line := describe_own_error(error)) is None:
            raise
        print(line, file=sys.stderr)  # noqa: T201 (as above)
        return ConfigError.exit_code


def wait_for_job() -> list[str]:
    """Get ready for any job, and wait for one: action and folder. Empty: the study is over."""
    with suppress(RuntimeError):  # the cell that trains may leave no memory: then the job loads them
        if torch.cuda.is_available():  # the libraries of products are loaded with the first one
            some = torch.ones(16, 16, device="cuda", dtype=torch.bfloat16)
            some.mm(some)
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(0, 1)  # and not more: the end of the input is for `watch_for_stop`
        if not read:
            return []
        line += read
    argv: list[str] = json.loads(line)
    write_output(Path(argv[1]), os.O_TRUNC)
    return argv


def write_output(folder: Path, mode: int) -> None:
    """Print to the file of the cell from now on; several processes do so."""
    output = open_file(folder / OUTPUT, os.O_WRONLY | mode)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)


def train_on_devices(folder: Path, devices: int) -> int:
    """Train a cell in several processes, which torchrun starts. They read the same standard input as this one, by whose
    end they know that the study is gone; what torchrun itself prints is left out."""
    delete(folder / EXIT_CODE)
    python = [sys.executable, "-P", "-m"]
    launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={devices}", "--no-python"]
    command = [*python, *launch, *python, "anaphor.studies.worker", "train", str(folder)]
    environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=False)
    if code.returncode == 0:
        return 0
    return int((folder / EXIT_CODE).read_text() if (folder / EXIT_CODE).exists() else 1)


def train(folder: Path, job: dict[str, Any]) -> int:
    torch.set_num_threads(job["threads"])
    spec = TASKS[job["task"]].run_spec(**job["spec"])
    run_folder, is_first = RunFolder(folder), read_launch().is_first
    if is_first:
        wait_for_lock(run_folder)
        if is_damaged(run_folder.result):
            delete(run_folder.result)  # a run with such a file is not resumed
    if read_json(run_folder.result).get("status") != "finished":  # missing, interrupted or damaged
        options = TrainOptions(
            resume=run_folder.exists,
            trust=True,  # the study names the data
            threads=job["threads"],
            test=False,
            save_minutes=SAVE_MINUTES,
            save_only_model=True,
            callbacks=tuple(job.get("callbacks", ())),
        )
        _, code = train_run(spec, folder, options=options)
        if code:
            return code
    if not is_first:
        return 0
    best = read_json(run_folder.result).get("best_step")
    if best is not None:  # all else was for a resume
        checkpoint.prune(run_folder.checkpoints, keep=0, also=[best])
    has_measures = TASKS[job["task"]].measure is not None or job["longer"]
    experiment = load_run(folder, device=spec.device, trust=True).experiment if has_measures else None
    found = {**measure(experiment, folder, "valid", job), **measure_longer(experiment, "valid", job)}
    write(folder / MEASURES, {"wanted": wanted(job), **found})
    return 0


def test(folder: Path, job: dict[str, Any]) -> int:
    """Evaluate on test, for a study that has frozen its choice."""
    torch.set_num_threads(job["threads"])
    experiment = load_run(folder, device=job["spec"]["device"], trust=True).experiment
    result = experiment.score("test").to_plain()
    measures = measure(experiment, folder, "test", job)
    digest = digest_of_test(job["task"], TASKS[job["task"]].run_spec(**job["spec"]))
    longer = measure_longer(experiment, "test", job)
    write(folder / TEST, {**result, "digest": digest, "wanted": wanted(job), "measures": measures, **longer})
    return 0


def measure(experiment: Any, folder: Path, split: str, job: dict[str, Any]) -> dict[str, Any]:
    """What the task measures besides the result."""
    function = TASKS[job["task"]].measure
    found: dict[str, Any] = (
        {} if function is None else import_object(function)(experiment, folder, split, job["measures"])
    )
    return found


def measure_longer(experiment: Any, split: str, job: dict[str, Any]) -> dict[str, Any]:
    """Results on examples that are longer than those of training, by how many times as long; None where the model
    cannot be evaluated on them."""
    function = TASKS[job["task"]].evaluate_longer
    results = {factor: import_object(function)(experiment, split, factor) for factor in job["longer"]}
    found = {str(factor): None if result is None else result.to_plain() for factor, result in results.items()}
    return {"longer": found} if found else {}


def wanted(job: dict[str, Any]) -> dict[str, Any]:
    """What a job measures, as the study compares it with what it wants."""
    return {**job["measures"], **({"longer": job["longer"]} if job["longer"] else {})}


def write(path: Path, found: dict[str, Any]) -> None:
    replace_file(path, json.dumps(replace_nonfinite(found), ensure_ascii=False).encode() + b"\n")


def wait_for_lock(run_folder: RunFolder) -> None:
    """Wait for a worker of a killed study, which may still be writing its last checkpoint."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            with run_folder.lock():
                return
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def watch_for_stop(folder: Path) -> None:
    """Send SIGTERM to this process, which then saves a checkpoint, when the study is gone or stops this cell."""

    def watch_input() -> None:
        while os.read(0, 1024):  # not sys.stdin: a thread must not hold its lock at exit
            pass
        terminate()

    def watch_file() -> None:
        while not (folder / STOP).exists():
            time.sleep(0.25)
        terminate()

    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TIMEOUT)
        os._exit(143)

    for watcher in (watch_input, watch_file):
        threading.Thread(target=watcher, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
