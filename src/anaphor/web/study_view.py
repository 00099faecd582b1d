"""A study's folder as data: axes, cells with their status, groups of seeds, the best one. No code of the study runs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anaphor.errors import AnaphorError, DataError
from anaphor.metrics.described import DescribedTask, read_described
from anaphor.metrics.result import Metric
from anaphor.studies.axes import Axis, Range, format_value, read_axis, to_label
from anaphor.studies.claims import CLAIMS, HELD, STALE
from anaphor.studies.spec import GOALS, find_support
from anaphor.training.run_folder import STUDY
from anaphor.training.task import StudySupport
from anaphor.web.history import parse_lines
from anaphor.web.locks import LOCK, HeldLocks, read_holder
from anaphor.web.summary import (
    CELL_STATUS,
    RESULT,
    SPEC,
    Stats,
    find_task,
    guess_metric,
    make_plain,
    newest,
    read_file,
    read_json,
    read_yaml,
    stat_files,
)
from anaphor.web.worker import without_paths

if TYPE_CHECKING:
    from anaphor.web.catalog import Catalog

WORKERS = "workers"  # folder with a log of each worker that shares the study
LOG, CELLS, TABLE, FINDINGS, MEASURES, JOB = (
    "log.jsonl", "cells", "table.csv", "findings.txt", "measures.json", "job.json"
)  # fmt: skip
MAX_LOG_BYTES = 20_000_000
MAX_CELLS = 10_000
FIRST_CELLS = 20
"""Folders of cells that are asked for what a user's own task measures."""
WAITING = "waiting"
COUNTED = ("finished", "failed", "diverged")  # statuses of cells


@dataclass(frozen=True)
class Plan:
    """What a study file says."""

    about: str
    task: str
    metric: Metric
    support: StudySupport
    axes: Mapping[str, Sequence[Any]]
    """Values of each axis; of a search none, or those that it draws from."""
    is_search: bool
    combinations: Sequence[Mapping[str, Any]]
    """All settings; empty for a search."""
    seeds: Sequence[int]
    trials: int
    tuned: Sequence[str] = ()
    """Axes whose values are chosen for every setting of the others; `seeds` are then those that tune."""


@dataclass
class CellView:
    """A setting with one seed."""

    parameters: Mapping[str, Any]
    seed: Any
    key: str = ""
    status: str = WAITING
    reason: str = ""
    value: float | None = None
    is_compared: bool = True
    """Whether the study compares it; others were trained to tune."""


def read_plan(folder: Path) -> Plan:
    """The study file of a folder. DataError where it cannot be read."""
    document = read_yaml(folder / STUDY)
    task = str(document.get("task"))
    definition = find_task(task)
    metric = document.get("metric")
    metric = metric if isinstance(metric, dict) else {"name": metric}
    name = str(metric.get("name")).removeprefix("valid.")
    described = definition or describe_by_cells(folder)
    metrics = {} if described is None else {one.name: one for one in described.metrics}
    guessed = guess_metric(name)
    if metric.get("goal") in GOALS.values():
        guessed = replace(guessed, goal="min" if metric["goal"] == GOALS["min"] else "max")
    parameters, method = document.get("parameters"), document.get("method", "grid")
    given = document.get("seeds")
    seeds = [seed for seed in given if type(seed) is int] if isinstance(given, list) else []
    tuned = document.get("tune")
    try:
        axes, combinations = _read_axes(parameters, document.get("base"), method, max(len(seeds), 1))
        if isinstance(tuned, dict) and tuned:  # every setting is tried with all these values
            tuned_axes, values = _read_axes(tuned, {}, "grid", max(len(seeds), 1))
            _check_count(len(combinations) * len(values) * max(len(seeds), 1))
            combinations = [{**one, **value} for one, value in itertools.product(combinations, values)]
            axes, seeds = {**axes, **tuned_axes}, _read_tuning_seeds(document.get("tune_seeds"), seeds)
        return Plan(
            about=make_plain(str(document.get("about") or "")),
            task=make_plain(task),
            metric=metrics.get(name, guessed),
            support=StudySupport() if definition is None else find_support(definition),
            axes=axes,
            is_search=method in ("random", "bayes"),
            combinations=combinations,
            seeds=seeds,
            trials=trials if type(trials := document.get("trials")) is int else 0,
            tuned=list(tuned) if isinstance(tuned, dict) else (),
        )
    except (AnaphorError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{STUDY} cannot be read: {error}") from None


def describe_by_cells(folder: Path) -> DescribedTask | None:
    """What one of the first runs says of the metrics of a user's own task."""
    try:
        with os.scandir(folder / CELLS) as entries:
            cells = [
                entry.path for entry in itertools.islice(entries, FIRST_CELLS) if entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return None
    for cell in cells:
        with suppress(DataError, OSError):
            if found := read_described(read_yaml(Path(cell) / SPEC).get("measures")):
                return found
    return None


def _read_tuning_seeds(given: Any, seeds: list[int]) -> list[int]:
    """The seeds of the cells that tune; those that are compared are known when they have begun."""
    if isinstance(given, list):
        return [seed for seed in given if type(seed) is int]
    return seeds[:given] if type(given) is int else seeds


def _read_axes(
    parameters: Any, base: Any, method: Any, seeds: int
) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    if isinstance(parameters, list):
        listed = [one for one in parameters if isinstance(one, dict)]
        _check_count(len(listed) * seeds)
        base = base if isinstance(base, dict) else {}
        names = list(dict.fromkeys(name for one in listed for name in one))
        rows = [{name: to_label({**base, **one}.get(name)) for name in names} for one in listed]
        return {name: list(dict.fromkeys(row[name] for row in rows)) for name in names}, rows
    found = [read_axis(name, given, Path(STUDY)) for name, given in dict(parameters or {}).items()]
    axes = {axis.name: list(axis.values) if isinstance(axis, Axis) else [] for axis in found}
    if any(isinstance(axis, Range) for axis in found) or method in ("random", "bayes"):
        return axes, []
    counts = list(map(len, axes.values()))
    _check_count((max(counts, default=0) if method == "zip" else math.prod(counts)) * seeds)
    columns = zip(*axes.values(), strict=True) if method == "zip" else itertools.product(*axes.values())
    return axes, [dict(zip(axes, values, strict=True)) for values in columns]


def _check_count(cells: int) -> None:
    """Raise for more cells than a study has, before they are listed."""
    if cells > MAX_CELLS:
        shown = f"{cells:,}" if cells < 10**15 else "10^15 or more"
        raise DataError(f"it has {shown} cells; at most {MAX_CELLS:,} are shown")


@dataclass
class StudyReader:
    """A study's cells, kept up to date: a file is read again when it has changed."""

    folder: Path
    _cache: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """By what was read: the files as they were then, and what they said."""

    def read(self, locks: HeldLocks) -> dict[str, Any]:
        """The study in a few values."""
        files = stat_files(self.folder, (STUDY, RESULT, LOG, LOCK))
        if STUDY not in files:
            raise FileNotFoundError(self.folder / STUDY)
        row: dict[str, Any] = {
            "status": "unreadable",
            "task": None,
            "error": None,
            "cells": 0,
            **dict.fromkeys(COUNTED, 0),
        }
        try:
            status, plan, cells = self.read_cells(files, locks)
            counts = [cell.status for cell in cells]
            row |= {"status": status, "task": plan.task, "cells": len(cells)}
            row |= {name: counts.count(name) for name in COUNTED}
        except DataError as error:
            row["error"] = make_plain(str(error))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except Exception as error:  # noqa: BLE001 (whatever its files hold, the others are listed)
            row["error"] = f"its files cannot be read ({type(error).__name__})"
        return {**row, "written": newest(files)}

    def read_cells(self, files: Stats, locks: HeldLocks) -> tuple[str, Plan, list[CellView]]:
        """Status of the study, its plan and its cells, those that wait included."""
        versions = (files.get(STUDY), files.get(RESULT))  # a study that has ended has runs, which describe an own task
        plan: Plan = self._cached("plan", versions, lambda: read_plan(self.folder))
        holder = read_holder(self.folder)
        is_running = locks.is_held(self.folder, holder, None if RESULT in files else newest(files))
        is_running = is_running or (RESULT not in files and has_workers(self.folder))
        result: dict[str, Any] = self._cached("result", files.get(RESULT), lambda: _read_or_empty(self.folder / RESULT))
        log: dict[tuple[str, Any], str] = self._cached("log", files.get(LOG), lambda: read_log(self.folder / LOG))
        for path in own_files(self.folder / WORKERS, ".jsonl"):  # until one of the workers reports
            log = log | self._cached(path.name, stat_files(path.parent, (path.name,)), partial(read_log, path))
        cells = list_cells(plan, result.get("cells"), log, is_running=is_running)
        for cell in cells:
            if cell.key:
                self._fill(cell, plan, locks, is_running)
        status = "training" if is_running else "finished" if result else "stopped"
        return status, plan, cells

    def _fill(self, cell: CellView, plan: Plan, locks: HeldLocks, is_running: bool) -> None:
        folder = self.folder / CELLS / cell.key
        if folder.parent.is_symlink() or folder.is_symlink():
            cell.status, cell.reason = "deleted", "its folder is a link, which is not followed"
            return
        try:
            files = stat_files(folder, (RESULT, CELL_STATUS, MEASURES, SPEC, JOB))
        except FileNotFoundError:
            cell.status, cell.reason = "deleted", "its folder is gone"
            return
        result, said = self._cached(
            cell.key, files, lambda: (_read_or_empty(folder / RESULT), _read_or_empty(folder / CELL_STATUS))
        )
        if locks.is_held(folder, read_holder(folder), None if RESULT in files else newest(files)):
            cell.status = "training"
        elif result.get("status") == "finished" and MEASURES in files:
            cell.status, valid = "finished", result.get("valid")
            cell.value = find_value(plan, valid) if isinstance(valid, dict) else None
            if cell.value is None and isinstance(valid, dict):
                cell.reason = plan.support.missing_reason(valid, plan.metric)
        elif result.get("status") == "diverged":
            cell.status, cell.reason = "diverged", make_plain(without_paths(str(result.get("reason") or "")))
        elif said.get("status") in ("failed", "stopped"):
            cell.status, cell.reason = said["status"], make_plain(without_paths(str(said.get("reason") or "")))
        else:  # its process has not taken the lock yet, or measures what the study wants
            cell.status = "training" if is_running else "stopped"

    def _cached(self, name: str, files: Any, read: Any) -> Any:
        before = self._cache.get(name)
        if before is None or before[0] != files:
            self._cache[name] = before = (files, read() if files is not None else {})
        return before[1]


def _read_or_empty(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except DataError:
        return {}


def find_value(plan: Plan, valid: Mapping[str, Any]) -> float | None:
    """Value of the study's metric, as the study itself has it."""
    try:
        value = plan.support.value(valid, plan.metric)
    except (TypeError, ValueError, LookupError, OverflowError):
        return None
    plain: float | None = make_plain(value)
    return plain


def read_log(path: Path) -> dict[tuple[str, Any], str]:
    """The folder of each cell by its setting, as JSON, and its seed; the last one where there were several."""
    try:
        data = read_file(path, MAX_LOG_BYTES)
    except (OSError, DataError):
        return {}
    rows, _ = parse_lines(data[: data.rfind(b"\n") + 1], "cell", str)
    return {
        (to_key(row["parameters"]), row.get("seed")): row["cell"]
        for row in rows
        if isinstance(row.get("parameters"), dict) and is_seed(row.get("seed")) and is_cell_name(row["cell"])
    }


def has_workers(folder: Path) -> bool:
    """Whether workers share a study now: one of their claims is held, and has had a sign of life."""
    now = time.time()
    for path in own_files(folder / CLAIMS):
        with suppress(OSError, DataError):
            if now - path.stat().st_mtime < STALE and read_json(path).get("state") == HELD:
                return True
    return False


def own_files(folder: Path, ending: str = "") -> list[Path]:
    """The regular files of a folder that is no link, by name; not more than a study has cells."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        found = [one.name for one in islice(entries, MAX_CELLS) if one.is_file(follow_symlinks=False)]
    return [folder / name for name in sorted(found) if name.endswith(ending)]


def is_seed(value: Any) -> bool:
    """Whether a cell may have it: None where nothing is known of its seed."""
    return value is None or type(value) is int


def to_key(parameters: Mapping[str, Any]) -> str:
    return json.dumps(make_plain(parameters), sort_keys=True)


def is_cell_name(name: str) -> bool:
    """Whether this names a folder of its own in the folder of cells."""
    return name.isalnum() and name.isascii()


def list_cells(plan: Plan, listed: Any, log: Mapping[tuple[str, Any], str], *, is_running: bool) -> list[CellView]:
    """All cells in the order of the study: as its result lists them, else by its plan and its log."""
    _check_count(max(len(listed) if isinstance(listed, list) else 0, len(log)))
    by_setting = {key: cell for cell in _listed_cells(listed) for key in [(to_key(cell.parameters), cell.seed)]}
    if by_setting and not is_running:
        return list(by_setting.values())
    names = list(plan.axes)
    if plan.is_search or not plan.combinations:
        found = {**{key: cell.key for key, cell in by_setting.items()}, **log}
        cells = [CellView(json.loads(parameters), seed, key) for (parameters, seed), key in found.items()]
        cells = [cell for cell in cells if sorted(cell.parameters) == sorted(names)]
        missing = plan.trials * len(plan.seeds) - len(cells) if is_running else 0
        return cells + [CellView({}, None) for _ in range(min(missing, 10_000))]
    cells = []
    planned = [(to_key(parameters), seed) for parameters, seed in itertools.product(plan.combinations, plan.seeds)]
    compared = log if plan.tuned else {}  # with the seeds that do not tune; they are known when they have begun
    for key in dict.fromkeys([*planned, *compared]):
        folder = log.get(key) or (by_setting[key].key if key in by_setting else "")
        cells.append(CellView(json.loads(key[0]), key[1], folder))
    return cells


def _listed_cells(listed: Any) -> Iterator[CellView]:
    for cell in listed if isinstance(listed, list) else []:
        if not isinstance(cell, dict) or not isinstance(cell.get("parameters"), dict) or not is_seed(cell.get("seed")):
            continue
        name = Path(str(cell.get("run"))).name
        if is_cell_name(name):
            is_compared = cell.get("chosen") is not False
            yield CellView(make_plain(cell["parameters"]), cell.get("seed"), name, is_compared=is_compared)


def read_study(path: Path, catalog: Catalog) -> dict[str, Any]:
    """A study as the page shows it. A study that is gone or whose file is damaged is a DataError."""
    reader, locks = StudyReader(path), HeldLocks()
    try:
        files = stat_files(path, (STUDY, RESULT, LOG, LOCK, TABLE, FINDINGS))
        status, plan, cells = reader.read_cells(files, locks)
    except OSError:
        raise DataError("the study was deleted") from None
    ids = {folder: key for key, folder in catalog.runs.items()}
    is_complete = status == "finished"
    notes = read_notes(path / TABLE, list(plan.axes)) if is_complete else {}
    groups = make_groups(plan, [cell for cell in cells if cell.is_compared], notes)
    tried = make_groups(plan, [cell for cell in cells if cell.seed in plan.seeds], {}) if plan.tuned else []
    axes = {name: list(values) for name, values in plan.axes.items()}
    if not plan.combinations:
        axes = {name: list(dict.fromkeys(one["parameters"].get(name) for one in groups)) for name in axes}
    return {
        "study": make_plain(os.fsencode(path.relative_to(catalog.folder)).decode(errors="replace")),
        "status": status,
        "task": plan.task,
        "about": plan.about,
        "axes": make_plain(axes),
        "metric": plan.metric.name,
        "goal": plan.metric.goal,
        "label": plan.metric.label,
        "unit": plan.metric.unit,
        "digits": plan.metric.digits,
        "groups": groups,
        "tuned": list(plan.tuned),
        "tried": tried,
        "best": next((group for group in groups if group["best"]), None),
        "cells": [
            {
                "key": cell.key,
                "parameters": cell.parameters,
                "seed": cell.seed,
                "status": cell.status,
                "reason": cell.reason,
                "run": ids.get(path / CELLS / cell.key) if cell.key else None,
                "value": cell.value,
            }
            for cell in cells
        ],
        "findings": read_findings(path / FINDINGS) if is_complete else [],
        "running": sum(cell.status == "training" for cell in cells),
        "failed": sum(cell.status == "failed" for cell in cells),
        "diverged": sum(cell.status == "diverged" for cell in cells),
    }


def make_groups(plan: Plan, cells: Sequence[CellView], notes: Mapping[tuple[str, ...], str]) -> list[dict[str, Any]]:
    """Mean and 95 % interval over the seeds of each setting, as the study's own report computes them."""
    from anaphor.metrics.statistics import confidence_interval
    from anaphor.studies.groups import Group, Objective, find_best

    by_setting: dict[str, list[CellView]] = {}
    for cell in cells:
        if cell.parameters or not plan.axes:
            by_setting.setdefault(to_key(cell.parameters), []).append(cell)
    groups, rows = [], []
    for several in by_setting.values():
        parameters = several[0].parameters
        values = {cell.seed: cell.value for cell in several if cell.value is not None}
        note = notes.get(tuple(format_value(parameters.get(name)) for name in plan.axes), "")
        group = Group(parameters, tuple(values), tuple(values.values()), note, len(several) - len(values))
        of = confidence_interval(group.values) if values else None
        groups.append(group)
        rows.append(
            {
                "parameters": parameters,
                "mean": of and of.mean,
                "low": of and of.low,
                "high": of and of.high,
                "seeds": list(values.values()),
                "missing": group.failed,
                "note": note,
            }
        )
    best = find_best(groups, Objective(plan.metric))
    return [{**row, "best": group is best} for row, group in zip(rows, groups, strict=True)]


def read_notes(path: Path, axes: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Why settings cannot be compared, by their values on the axes, as the study's table has it."""
    try:
        text = read_file(path, 10_000_000).decode()
        header, *rows = csv.reader(io.StringIO(text))
    except (OSError, DataError, ValueError, csv.Error):
        return {}
    if not header or header[-1] != "note":
        return {}
    return {tuple(row[: len(axes)]): make_plain(row[-1]) for row in rows if len(row) == len(header)}


def read_findings(path: Path) -> list[str]:
    try:
        return [make_plain(line) for line in read_file(path, 1_000_000).decode(errors="replace").splitlines() if line]
    except (OSError, DataError):
        return []
