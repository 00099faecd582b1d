"""The runs of a submission, scored again: the sandbox is started, and its answers are read within bounds."""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anaphor.course.grading.sandbox import SUBMISSION, Sandbox
from anaphor.data.cache import cache_folder

MEMORY = 3 << 30
"""Bytes that scoring may need beyond torch."""
MAX_ANSWER = 32_000_000
"""Bytes that are read from the process."""
PREFIX = b"@"
DATA = "/data"
"""Where the data of the sheet are in the sandbox."""


def rescore(
    sandbox: Sandbox, submission: Path, runs: Sequence[Mapping[str, Any]], data: Path, scratch: Path, seconds: float
) -> dict[str, dict[str, Any]]:
    """What each run gives, by its folder: `metrics`, or `problem`.

    Args:
        sandbox: How processes are started; its kit is replaced by the whole package.
        submission: Folder of the submission.
        runs: What is wanted: `folder`, and where a sheet asks for it `command`, `settings`, `metric`; `losses`.
        data: Folder from which the sheet's data are found by their names.
        scratch: For files of the grader.
        seconds: That a run may take.
    """
    found: dict[str, dict[str, Any]] = {}
    waiting = list(runs)
    while waiting:
        answers, began = _run_once(sandbox, submission, waiting, data, scratch, seconds)
        for answer in answers:
            found[answer["folder"]] = answer
        rest = [one for one in waiting if one["folder"] not in found]
        if len(rest) == len(waiting) or began is not None:  # it died: that run is not tried again
            name = began or rest[0]["folder"]
            found.setdefault(name, {"folder": name, "problem": f"scoring it took more than {seconds:g} s or too much "
                                    "memory", "flag": "time-limit"})  # fmt: skip
            rest = [one for one in rest if one["folder"] != name]
        waiting = rest
    return found


def _run_once(
    sandbox: Sandbox, submission: Path, runs: Sequence[Mapping[str, Any]], data: Path, scratch: Path, seconds: float
) -> tuple[list[dict[str, Any]], str | None]:
    """The answers of one process, and the run that it had begun when it ended early."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    job = {"submission": SUBMISSION, "data": DATA, "runs": [dict(one) for one in runs]}
    if not sandbox.is_safe:
        job |= {"submission": str(submission), "data": str(data)}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    reading, writing = os.pipe()
    readable = [(submission, SUBMISSION), (data, DATA), (folder, "/job")]
    if cache_folder().is_dir():
        readable.append((cache_folder(), "/tmp/.cache/anaphor"))
    file = "/job/job.json" if sandbox.is_safe else str(folder / "job.json")
    process = replace(sandbox, kit=None).start(
        "anaphor.course.grading.rescore_inside", [file, str(MEMORY), str(int(seconds * len(runs)) + 60)],
        readable=readable, scratch=folder, output=writing,
    )  # fmt: skip
    os.close(writing)
    try:
        lines = _read_lines(reading, seconds * len(runs) + 120)
    finally:
        os.close(reading)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    answers, began = list[dict[str, Any]](), None
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if "begins" in value:
            began = value["begins"]
        elif "folder" in value:
            answers.append(value)
            began = None
    return answers, began


def _read_lines(descriptor: int, seconds: float) -> list[bytes]:
    """Whole lines of an answer, until its end, the time is over, or there is too much of it."""
    end, parts, size = time.monotonic() + seconds, list[bytes](), 0
    while size <= MAX_ANSWER:
        remaining = end - time.monotonic()
        if remaining <= 0 or not select.select([descriptor], [], [], remaining)[0]:
            break
        part = os.read(descriptor, 1 << 20)
        if not part:
            break
        parts.append(part)
        size += len(part)
    *lines, _ = b"".join(parts).split(b"\n")
    return [line[1:] for line in lines if line.startswith(PREFIX)]
