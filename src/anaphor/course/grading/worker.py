"""The process that grades one submission: what is compared is compared here, so that nothing can end the grader."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from anaphor.course.grading.collect import Snapshot, take_snapshot
from anaphor.course.grading.limits import limit
from anaphor.course.grading.record import Record
from anaphor.course.grading.sandbox import Sandbox
from anaphor.course.submission import MANIFEST, read_student, read_submission
from anaphor.errors import AnaphorError

MEMORY = 4 << 30
"""Bytes of a worker beyond torch. A process of a sandbox has its own limit."""
PROCESSOR = 900
"""Seconds of processor time of a worker."""


def grade_submission(job: dict[str, Any]) -> Record:
    """The record of a submission; the one that is known, where nothing has changed."""
    start = time.monotonic()
    folder, scratch = Path(job["folder"]), Path(job["scratch"])
    snapshot = take_snapshot(folder, scratch / "submission")
    digest = f"{snapshot.digest[:32]}-{job['digest']}"
    if job["known"] == digest:
        return Record(str(folder), "", "", digest, ())
    record = Record(str(folder), job["label"], "", digest, (), _flags(snapshot), snapshot.left_out)
    try:
        if snapshot.has_links and not (snapshot.folder / MANIFEST).is_file():
            return replace(record, problem=f"it has no {MANIFEST} that is a file: links are not followed")
        submission = read_submission(snapshot.folder)
    except AnaphorError as error:
        problem = str(error).replace(f"{snapshot.folder}/", "").replace(str(snapshot.folder), "it")
        return replace(record, student=read_student(snapshot.folder) or record.student, problem=problem)
    flags = list(record.flags)
    if submission.version != submission.sheet.version:
        flags.append("other-version")
    from anaphor.course.grading.marks import Grader  # with torch, which an unchanged submission does not need

    limit(memory=MEMORY, processor=PROCESSOR)  # beyond what torch has taken
    sandbox = Sandbox(Path(job["kit"]), job["is_safe"])
    grader = Grader(submission, sandbox, job["references"], scratch, job["seconds"])
    marks = tuple(grader.marks())
    return replace(
        record, student=submission.student or job["label"], sheet=submission.sheet.number, marks=marks,
        flags=tuple(flags), warnings=grader.warnings, code=grader.code.digests, weights=grader.weights,
        seconds=round(time.monotonic() - start, 2),
    )  # fmt: skip


def _flags(snapshot: Snapshot) -> tuple[str, ...]:
    return (*(["links"] if snapshot.has_links else []), *(["large-files"] if snapshot.has_large else []))


def main() -> None:
    """Arguments: the job, a JSON file, and the file for the record."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_bytes(grade_submission(job).to_bytes())


if __name__ == "__main__":
    main()
