"""Grade submissions: each in a process of its own, as many at once as there are processors.

What was graded is kept beside the reports. A second call grades what has changed since, and what is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anaphor
from anaphor.course.grading.collect import find_submissions, list_others
from anaphor.course.grading.record import Record
from anaphor.course.grading.similarity import flag_similar
from anaphor.course.sheet import read_sheet, sheet_numbers
from anaphor.errors import DataError
from anaphor.files import make_folder, replace_file

RECORDS = ".records"
"""Folder beside the reports with what was graded."""
PAUSE = 0.05
SUBMISSION_SECONDS = 1_800.0
"""Longest time of a submission; its parts end long before."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Grading:
    """How submissions are graded."""

    reports: Path
    """Folder for reports and records."""
    seconds: float
    """That a call of a student's code may take."""
    jobs: int
    """Submissions that are graded at once."""
    is_safe: bool
    """Whether there is a sandbox."""
    again: bool = False
    """Grade also what has not changed."""


def grade_folders(folders: Sequence[Path], grading: Grading, progress: Progress) -> tuple[list[Record], int]:
    """The record of every submission in folders and of every folder that holds none, and how many were graded now."""
    found, _ = find_submissions([*folders])
    records_folder = grading.reports / RECORDS
    make_folder(grading.reports, within=grading.reports.parent)
    make_folder(records_folder, within=grading.reports)
    with _scratch() as scratch:
        from anaphor.course.grading.kit import make_kit

        kit = scratch / "kit"
        references = make_kit(kit, map(read_sheet, sheet_numbers()))
        common = {
            "kit": str(kit), "is_safe": grading.is_safe, "references": references, "seconds": grading.seconds,
            "digest": _digest_grader(grading), "labels": {str(folder): _label(folder, folders) for folder in found},
        }  # fmt: skip
        records = {} if grading.again else _read_records(records_folder, found)
        graded = 0
        for done, (folder, record) in enumerate(_run(found, common, records, grading.jobs, scratch), start=1):
            if record.digest != getattr(records.get(folder), "digest", None):
                graded += 1
                records[folder] = record
                replace_file(_record_path(records_folder, folder), record.to_bytes(), within=grading.reports)
            progress(done, len(found), folder.name)
    labeled = [records[folder] for folder in found]
    return [*flag_similar(labeled), *_records_of_others(folders, found, grading.reports)], graded


def _records_of_others(folders: Sequence[Path], found: Sequence[Path], reports: Path) -> Iterator[Record]:
    """A record for each folder that holds no submission."""
    for given in folders:
        for path, reason in list_others(given, found):
            if path.absolute() != reports.absolute():
                yield Record(str(path), _label(path, folders), "", "", (), problem=reason)


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """What a submission without an ID is called: its place below the folder that was given."""
    folder = folder.absolute()
    given = next((one.absolute() for one in folders if one.absolute() in folder.parents), folder.parent)
    return folder.relative_to(given).as_posix()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder of the grader's own, which nobody else may read."""
    folder = Path(tempfile.mkdtemp(prefix="anaphor-grade-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _digest_grader(grading: Grading) -> str:
    """Changes where the same submission may get other points: with the version, the sheets and the limits."""
    digest = hashlib.sha256(f"{anaphor.__version__} {grading.seconds} {grading.is_safe}".encode())
    course = Path(__file__).parents[1]
    for path in sorted(path for kind in ("*.py", "*.yaml") for path in course.rglob(kind)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _record_path(folder: Path, submission: Path) -> Path:
    absolute = str(submission.absolute())
    return folder / f"{hashlib.sha256(os.fsencode(absolute)).hexdigest()[:24]}.json"


def _read_records(folder: Path, submissions: Sequence[Path]) -> dict[Path, Record]:
    found = {}
    for submission in submissions:
        with contextlib.suppress(DataError):
            found[submission] = Record.read(_record_path(folder, submission))
    return found


@dataclass
class _Job:
    """A submission that is being graded."""

    folder: Path
    label: str
    process: subprocess.Popen[bytes]
    scratch: Path
    begun: float


def _run(
    folders: Sequence[Path], common: dict[str, Any], records: dict[Path, Record], at_once: int, scratch: Path
) -> Iterator[tuple[Path, Record]]:
    """Every submission with its record, as they get ready."""
    waiting, running = list(folders), list[_Job]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                folder = waiting.pop(0)
                running.append(_start(folder, common, records.get(folder), scratch))
            ready = [job for job in running if job.process.poll() is not None or _is_late(job)]
            for job in ready:
                running.remove(job)
                yield job.folder, _finish(job)
            if not ready:
                time.sleep(PAUSE)
    finally:
        for job in running:
            _finish(job)


def _start(folder: Path, common: dict[str, Any], earlier: Record | None, scratch: Path) -> _Job:
    own = Path(tempfile.mkdtemp(dir=scratch))
    digest = None if earlier is None else earlier.digest
    label = common["labels"][str(folder)]
    job = {**common, "label": label, "folder": str(folder.absolute()), "scratch": str(own), "known": digest}
    (own / "job.json").write_text(json.dumps(job), encoding="utf-8")
    argv = [sys.executable, "-m", "anaphor.course.grading.worker", str(own / "job.json"), str(own / "record.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (own / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment,
            start_new_session=True, cwd=own,
        )  # fmt: skip
    return _Job(folder, label, process, own, time.monotonic())


def _is_late(job: _Job) -> bool:
    return time.monotonic() - job.begun > SUBMISSION_SECONDS


def _finish(job: _Job) -> Record:
    """The record of a submission whose process has ended, or is ended now."""
    if job.process.poll() is None:
        os.killpg(job.process.pid, signal.SIGKILL)
    code = job.process.wait()
    try:
        record = Record.read(job.scratch / "record.json")
    except DataError:
        lines = (job.scratch / "errors.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = lines[-1][:300] if lines else f"exit code {code}"
        problem = f"grading it failed: {reason}"
        record = Record(str(job.folder), job.label, "", "", (), ("grading-failed",), (), problem=problem)
    shutil.rmtree(job.scratch, ignore_errors=True)
    return replace(record, folder=str(job.folder))
