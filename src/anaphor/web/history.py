"""History of a run: the rows of `metrics.jsonl` after a cursor, thinned without losing a spike, and the samples.

Reading changes nothing, and never waits for the process that writes. Links are not followed: a page shows files of its
own folder only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from anaphor.errors import DataError

LARGEST_READ = 32_000_000  # bytes of metrics in one answer; the rest comes with the next cursor
LARGEST_SAMPLES = 4_000_000  # bytes of samples, the newest ones
CHECKED = 64  # bytes before a cursor that must not have changed

METRICS, SAMPLES = "metrics.jsonl", "samples.txt"
AXES = ("step", "epoch", "count", "seconds")
"""Columns that only rise. They are read off with the others and need no envelope of their own."""
Column = list[float | None]

_SAMPLE = re.compile(r"^=== step (\d+) ===$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Cursor:
    """A place in a file that grows: which file it was, how far it was read, and how it looked there."""

    file: int = 0
    offset: int = 0
    rows: int = 0
    check: str = ""

    def __str__(self) -> str:
        return f"{self.file:x}-{self.offset:x}-{self.rows:x}-{self.check}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """None for an empty text, and for one that is no cursor."""
        parts = re.fullmatch(r"([0-9a-f]{1,16})-([0-9a-f]{1,15})-([0-9a-f]{1,15})-([0-9a-f]{8})", text)
        return parts and cls(int(parts[1], 16), int(parts[2], 16), int(parts[3], 16), parts[4])


@dataclass(frozen=True)
class NewLines:
    """What a file has after a cursor."""

    rows: list[dict[str, Any]]
    cursor: Cursor
    restart: bool
    """Whether the file was replaced or cut off, so that these rows are all there are."""
    torn: bool
    """Whether an incomplete line follows."""
    damaged: int
    """Number of complete lines that cannot be read."""


def open_file(path: Path) -> int:
    """Open a plain file for reading. A link is refused: it may lead out of the folder that is shown."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def read_lines(path: Path, cursor: Cursor | None, limit: int = LARGEST_READ) -> NewLines:
    """The complete lines after a cursor; all where there is none, or where the file is another one."""
    handle = open_file(path)
    try:
        facts = os.fstat(handle)
        is_same = cursor is not None and cursor.file == facts.st_ino and cursor.offset <= facts.st_size
        if cursor is None or not is_same or _check(handle, cursor.offset) != cursor.check:
            restart, start = cursor is not None, Cursor(facts.st_ino)
        else:
            restart, start = False, cursor
        data = os.pread(handle, limit, start.offset)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == limit:  # a line that no program of ours has written
            end = limit
        rows, damaged = parse_lines(data[:end])
        offset = start.offset + end
        reached = Cursor(facts.st_ino, offset, start.rows + len(rows), _check(handle, offset))
        return NewLines(rows, reached, restart, end < len(data), damaged)
    finally:
        os.close(handle)


def _check(handle: int, offset: int) -> str:
    before = os.pread(handle, min(CHECKED, offset), max(offset - CHECKED, 0))
    return hashlib.sha256(before).hexdigest()[:8]


def parse_lines(data: bytes, key: str = "step", kind: type = int) -> tuple[list[dict[str, Any]], int]:
    """Rows of complete lines that have a value of this kind, and the number of lines that cannot be read."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    try:  # all at once takes half the time
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        rows = []
    if len(rows) != len(lines):
        rows = [_parse_line(line) for line in lines]
    kept = [row for row in rows if isinstance(row, dict) and type(row.get(key)) is kind]
    return kept, len(rows) - len(kept)


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def to_number(value: Any) -> float | None:
    """A finite number; None, a gap in its curve, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def find_counted(row: dict[str, Any]) -> str | None:
    """What throughput counts, such as "tokens". A row names it, so that runs of unknown tasks have it too."""
    return next((key.removesuffix("_per_second") for key in row if key.endswith("_per_second")), None)


def flatten_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row by names of columns: `count`, `throughput`, and metrics as `valid.NAME`."""
    counted = find_counted(row)
    renamed = {counted: "count", f"{counted}_per_second": "throughput"} if counted else {}
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in value.items() if _may_be_drawn(inner)}
        elif _may_be_drawn(value):
            flat[renamed.get(key, key)] = value
    return flat


def _may_be_drawn(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def make_columns(rows: Sequence[dict[str, Any]]) -> dict[str, Column]:
    """Rows as columns of equal length, the axes first. A value that is missing or not finite is None."""
    flat = [flatten_row(row) for row in rows]
    names = dict.fromkeys((*AXES, *(name for row in flat for name in row)))
    columns = {name: [to_number(row.get(name)) for row in flat] for name in names}
    return {name: column for name, column in columns.items() if any(value is not None for value in column)}


def thin(columns: dict[str, Column], points: int) -> dict[str, Column]:
    """At most about `points` rows: in each stretch of rows those with the smallest and the largest value of a column,
    and one with a gap, if it has one. The first and the last row stay."""
    count = len(columns["step"]) if columns else 0
    if count <= points:
        return columns
    curves = [column for name, column in columns.items() if name not in AXES and len(set(column)) > 1]
    stretches = max(points // 2, 1)
    kept = _envelope(curves, count, stretches)
    while len(kept) > points and stretches > 1:
        stretches = max(min(stretches * points // len(kept), stretches - 1), 1)
        kept = _envelope(curves, count, stretches)
    return {name: [column[row] for row in kept] for name, column in columns.items()}


def _envelope(curves: Sequence[Column], count: int, stretches: int) -> list[int]:
    kept = {0, count - 1}
    borders = [count * number // stretches for number in range(stretches + 1)]
    for column in curves:
        for start, end in pairwise(borders):
            part = column[start:end]
            present = [value for value in part if value is not None]
            if present:
                kept.update((start + part.index(min(present)), start + part.index(max(present))))
            if len(present) < len(part):
                kept.add(start + part.index(None))
    return sorted(kept)


def read_curves(run: Path, cursor: str = "", points: int = 1000) -> dict[str, Any]:
    """The rows of a run's metrics after a cursor, as columns; without new rows `columns` is empty.

    `restart` says that earlier rows no longer hold: a resumed run replaces the file. A run that is gone is a DataError.
    """
    before = Cursor.parse(cursor)
    try:
        found = read_lines(run / METRICS, before)
    except FileNotFoundError:
        if not (run / "spec.yaml").is_file():
            raise DataError("the run was deleted") from None
        found = NewLines([], Cursor(), before is not None, torn=False, damaged=0)
    except OSError as error:
        raise DataError(f"{METRICS} cannot be read: {error.strerror}") from None
    return {
        "cursor": str(found.cursor) if found.cursor.check else "",
        "restart": found.restart,
        "columns": thin(make_columns(found.rows), points),
        "rows": found.cursor.rows,
        "torn": found.torn,
        "damaged": found.damaged,
    }


def read_samples(run: Path, after: int = -1) -> list[dict[str, Any]]:
    """What the model wrote at each validation after a step. A sample that is still being written is left out."""
    try:
        handle = open_file(run / SAMPLES)
    except FileNotFoundError:
        if not (run / "spec.yaml").is_file():
            raise DataError("the run was deleted") from None
        return []
    except OSError as error:
        raise DataError(f"{SAMPLES} cannot be read: {error.strerror}") from None
    try:
        size = os.fstat(handle).st_size
        data = os.pread(handle, LARGEST_SAMPLES, max(size - LARGEST_SAMPLES, 0))
    finally:
        os.close(handle)
    text = data.decode(errors="replace")
    headings = list(_SAMPLE.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return [
        {"step": int(heading[1]), "text": text[heading.end() + 1 : end].removesuffix("\n\n")}
        for heading, end in zip(headings, ends, strict=True)
        if int(heading[1]) > after and text[heading.end() : end].endswith("\n\n")
    ]
