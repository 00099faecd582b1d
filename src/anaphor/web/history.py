"""History of a run: the rows of `metrics.jsonl` and of `steps.jsonl` after a cursor, thinned without losing a spike,
and the samples.

Reading changes nothing, and never waits for the process that writes. Links are not followed: a page shows files of its
own folder only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from anaphor.errors import DataError
from anaphor.files import NO_LINK, read_at
from anaphor.training.run_folder import MAX_STEPS_BYTES

MAX_READ_BYTES = 32_000_000  # bytes of metrics in one answer; the rest comes with the next cursor
MAX_METRICS_BYTES = 256_000_000  # bytes of a whole file: a million rows
MAX_SAMPLES_BYTES = 4_000_000  # bytes of samples, the newest ones
TAIL = 65_536  # bytes at the end of metrics that have the last row
CHECKED = 64  # bytes before a cursor that must not have changed

METRICS, STEPS, SAMPLES = "metrics.jsonl", "steps.jsonl", "samples.txt"
AXES = ("step", "epoch", "count", "seconds")
"""Columns that only rise. They are read off with the others and need no envelope of their own."""
STEP_COLUMNS = ("lr", "grad_norm", "throughput", "seconds_left")
"""What a line of the step log has beside its step and its loss."""
Column = list[float | None]

_SAMPLE = re.compile(r"^=== step ([0-9]{1,18}) ===$", flags=re.MULTILINE)


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


def open_file(path: Path, largest: int | None = None) -> int:
    """Open a regular file for reading. A link is refused: it may lead out of the folder that is shown. A device is not
    even opened, and a file of more bytes than `largest` is refused."""
    _check_file(os.lstat(path), path, largest)
    handle = os.open(path, os.O_RDONLY | NO_LINK)
    try:
        _check_file(os.fstat(handle), path, largest)  # another one may have taken its place
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_file(status: os.stat_result, path: Path, largest: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        code = {stat.S_IFLNK: errno.ELOOP, stat.S_IFDIR: errno.EISDIR}.get(stat.S_IFMT(status.st_mode), errno.EINVAL)
        raise OSError(code, "it is not a file" if code == errno.EINVAL else os.strerror(code), str(path))
    if largest is not None and status.st_size > largest:
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than {largest:,}", str(path))


def read_lines(
    path: Path, cursor: Cursor | None, limit: int = MAX_READ_BYTES, *, largest: int = MAX_METRICS_BYTES
) -> NewLines:
    """The complete lines after a cursor; all where there is none, or where the file is another one."""
    handle = open_file(path, largest)
    try:
        start, restart = _resume(handle, cursor)
        data, is_torn = _read_complete(handle, start.offset, limit)
        rows, damaged = parse_lines(data)
        reached = _advance(handle, start, len(data), len(rows))
        return NewLines(rows, reached, restart, is_torn, damaged)
    finally:
        os.close(handle)


def _resume(handle: int, cursor: Cursor | None) -> tuple[Cursor, bool]:
    """Where to read on, and whether that is the beginning of another file than the cursor's."""
    status = os.fstat(handle)
    if cursor is None:
        return Cursor(status.st_ino), False
    is_same = cursor.file == status.st_ino and cursor.offset <= status.st_size
    if is_same and _check(handle, cursor.offset) == cursor.check:
        return cursor, False
    return Cursor(status.st_ino), True


def _read_complete(handle: int, offset: int, limit: int) -> tuple[bytes, bool]:
    """Complete lines from an offset on, and whether an incomplete one follows."""
    data = read_at(handle, limit, offset)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == limit:  # a line that no program of ours has written: it is damaged
        end = limit
    return data[:end], end < len(data)


def _advance(handle: int, start: Cursor, size: int, rows: int) -> Cursor:
    offset = start.offset + size
    return Cursor(start.file, offset, start.rows + rows, _check(handle, offset))


def _check(handle: int, offset: int) -> str:
    before = read_at(handle, min(CHECKED, offset), max(offset - CHECKED, 0))
    return hashlib.sha256(before).hexdigest()[:8]


# `loads` without its checks, which take a third of the time.
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def parse_lines(data: bytes, key: str = "step", kind: type = int) -> tuple[list[dict[str, Any]], int]:
    """Rows of complete lines that have a value of this kind, and the number of lines that cannot be read."""
    lines = [line for line in data.decode(errors="replace").split("\n") if line.strip()]
    rows = []
    for line in lines:
        try:
            row, end = _scan(line, 0)
        except (ValueError, RecursionError, StopIteration):
            continue
        if not isinstance(row, dict) or line[end:].strip():
            continue
        value = row.get(key)
        is_large = isinstance(value, int) and value.bit_length() > 63
        if type(value) is kind and not is_large:
            rows.append(row)
    return rows, len(lines) - len(rows)


def to_number(value: Any) -> float | None:
    """A finite number; None, a gap in its curve, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def find_unit(row: dict[str, Any]) -> str | None:
    """What throughput counts, such as "tokens". A row names it, so that runs of unknown tasks have it too."""
    units = (key.removesuffix("_per_second") for key in row if key.endswith("_per_second"))
    return next((unit for unit in units if unit in row and unit not in AXES), None)  # not of a metric of that name


def flatten_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row by names of columns: `count`, `throughput`, and metrics as `valid.NAME`."""
    unit = find_unit(row)
    renamed = {unit: "count", f"{unit}_per_second": "throughput"} if unit else {}
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
    """Rows as columns of equal length, the axes first. A value that is missing or not finite is None; a column without
    any value is left out."""
    columns = _read_columns(rows) if rows else {}
    if columns is None:  # rows of another shape, as a resumed run may have them
        flat = [flatten_row(row) for row in rows]
        columns = {
            name: [row.get(name) for row in flat] for name in dict.fromkeys(name for row in flat for name in row)
        }
    numbers = {name: _to_numbers(columns[name]) for name in dict.fromkeys((*AXES, *columns)) if name in columns}
    return {name: column for name, column in numbers.items() if any(value is not None for value in column)}


def _read_columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]] | None:
    """The columns of rows that are all built like the first one; None where they are not."""
    first, unit = rows[0], find_unit(rows[0])
    renamed = {unit: "count", f"{unit}_per_second": "throughput"} if unit else {}
    columns: dict[str, list[Any]] = {}
    if {*map(len, rows)} != {len(first)}:
        return None
    try:
        for key, value in first.items():
            column = [row[key] for row in rows]
            kinds = {*map(type, column)}
            if kinds == {dict}:
                if {*map(len, column)} != {len(value)}:
                    return None
                columns |= {f"{key}.{name}": [inner[name] for inner in column] for name in value}
            elif dict in kinds:
                return None
            else:
                columns[renamed.get(key, key)] = column
    except KeyError:
        return None
    return columns


def _to_numbers(values: list[Any]) -> Column:
    kinds = {*map(type, values)}
    if kinds.isdisjoint((int, float)):
        return [None] * len(values)
    if kinds <= {int, float}:
        with suppress(OverflowError):
            if all(map(math.isfinite, values)):
                return values
    return [to_number(value) for value in values]


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


class Extremes:
    """The last row of a run's metrics, and the range of one metric. Only what was added is read again."""

    def __init__(self, metric: str, *, has_range: bool = True) -> None:
        self.metric = metric
        self.has_range = has_range
        """Without the range the end of the file is enough."""
        self._cursor: Cursor | None = None
        self._clear()

    def _clear(self) -> None:
        self.last: dict[str, Any] = {}
        self.lowest: float | None = None
        self.highest: float | None = None
        self.damaged = 0
        """Number of lines that cannot be read."""

    def update(self, path: Path) -> None:
        """Read on."""
        handle = open_file(path, MAX_METRICS_BYTES)
        try:
            start, restart = _resume(handle, self._cursor)
            if restart:
                self._clear()
            skipped = os.fstat(handle).st_size - TAIL
            if not self.has_range and start.offset < skipped:  # it then begins inside a line
                rest, _ = _read_complete(handle, skipped, TAIL)
                start = replace(start, offset=skipped + rest.find(b"\n") + 1)
            while data := _read_complete(handle, start.offset, MAX_READ_BYTES)[0]:
                self._add(data)
                start = _advance(handle, start, len(data), 0)
            self._cursor = _advance(handle, start, 0, 0)
        finally:
            os.close(handle)

    def _add(self, data: bytes) -> None:
        values = find_values(data, self.metric)
        if values is None:
            rows, damaged = parse_lines(data)
            values = [flatten_row(row).get(f"valid.{self.metric}") for row in rows]
            self.damaged += damaged
        else:
            rows, _ = parse_lines(data[data.rfind(b"\n", 0, -1) + 1 :])
        self.last = rows[-1] if rows else self.last
        numbers = [number for value in values if (number := to_number(value)) is not None]
        self.lowest = min((one for one in (self.lowest, *numbers) if one is not None), default=None)
        self.highest = max((one for one in (self.highest, *numbers) if one is not None), default=None)


def find_values(data: bytes, metric: str) -> list[float | None] | None:
    """Values of a metric on validation, found without parsing the lines; None where they are not as a run writes them.

    It is five times as fast, and a page may show hundreds of runs.
    """
    number = rb"(?:-?\d[-+.\deE]*|null)"
    name = re.escape(json.dumps(metric, ensure_ascii=False).encode(errors="replace"))
    found = re.findall(rb'"valid": \{(?:"[^"\n]*": %b, )*?%b: (%b)[,}]' % (number, name, number), data)
    starts = data.count(b'\n{"step": ') + data.startswith(b'{"step": ')
    if not len(found) == starts == data.count(b"\n") == data.count(b"}}\n"):
        return None
    try:
        return [None if value == b"null" else float(value) for value in found]
    except ValueError:
        return None


def read_curves(
    run: Path, cursor: str = "", points: int = 1000, steps: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The rows of a run's metrics after a cursor, as columns; without new rows `columns` is empty.

    `steps` leaves out rows before the first and after the last of these steps, so that a part is thinned less.
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
    rows = found.rows if steps is None else [row for row in found.rows if steps[0] <= row["step"] <= steps[1]]
    return {
        "cursor": str(found.cursor) if found.cursor.check else "",
        "restart": found.restart,
        "columns": {_to_text(name): column for name, column in thin(make_columns(rows), points).items()},
        "rows": found.cursor.rows,
        "torn": found.torn,
        "damaged": found.damaged,
    }


def read_step_log(
    run: Path, cursor: str = "", points: int = 1000, steps: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The lines of a run's step log after a cursor, as columns, in the way of `read_curves`.

    The log is for the eye: one that cannot be read is empty. It is replaced when it has become too long.
    """
    before = Cursor.parse(cursor)
    try:
        found = read_lines(run / STEPS, before, largest=MAX_STEPS_BYTES)
    except OSError:
        found = NewLines([], Cursor(), before is not None, torn=False, damaged=0)
    rows = found.rows if steps is None else [row for row in found.rows if steps[0] <= row["step"] <= steps[1]]
    return {
        "cursor": str(found.cursor) if found.cursor.check else "",
        "restart": found.restart,
        "columns": thin(make_columns([flatten_step(row) for row in rows]), points),
        "rows": found.cursor.rows,
    }


def flatten_step(row: dict[str, Any]) -> dict[str, Any]:
    """A line of the step log by names of columns; those that metrics have as well are called as there."""
    names = {"step": "step", "loss": "train_loss", **{name: name for name in STEP_COLUMNS}}
    return {names[key]: value for key, value in row.items() if key in names}


def read_last_step(run: Path) -> dict[str, Any]:
    """The last line of a run's step log by names of columns; empty where there is none that can be read."""
    try:
        handle = open_file(run / STEPS, MAX_STEPS_BYTES)
    except OSError:
        return {}
    try:
        data, _ = _read_complete(handle, max(os.fstat(handle).st_size - TAIL, 0), TAIL)
    except OSError:
        return {}
    finally:
        os.close(handle)
    rows, _ = parse_lines(data)
    return {name: to_number(value) for name, value in flatten_step(rows[-1]).items()} if rows else {}


def _to_text(name: str) -> str:
    """A name that UTF-8 can hold, which one in a file need not be."""
    return name.encode("utf-8", "replace").decode()


def read_samples(run: Path, after: int = -1) -> list[dict[str, Any]]:
    """What the model wrote at each validation after a step. A sample that is still being written is left out."""
    try:
        handle = open_file(run / SAMPLES)
        try:
            size = os.fstat(handle).st_size
            data = read_at(handle, MAX_SAMPLES_BYTES, max(size - MAX_SAMPLES_BYTES, 0))
        finally:
            os.close(handle)
    except FileNotFoundError:
        if not (run / "spec.yaml").is_file():
            raise DataError("the run was deleted") from None
        return []
    except OSError as error:
        raise DataError(f"{SAMPLES} cannot be read: {error.strerror}") from None
    text = data.decode(errors="replace")
    headings = list(_SAMPLE.finditer(text))
    ends = [*[heading.start() for heading in headings], len(text)][1:]
    return [
        {"step": int(heading[1]), "text": text[heading.end() + 1 : end].removesuffix("\n\n")}
        for heading, end in zip(headings, ends, strict=True)
        if int(heading[1]) > after and text[heading.end() : end].endswith("\n\n")
    ]
