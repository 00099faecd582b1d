"""Summary of a run or a study: what its files say, in a few values. A damaged file costs its own values only."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from anaphor.config import LARGEST_FILE, NOT_SETTINGS, check_format, flatten_sections, from_text
from anaphor.errors import AnaphorError, ConfigError, DataError
from anaphor.metrics.result import Metric
from anaphor.registry import TASKS
from anaphor.training.run_folder import LARGEST_RESULT
from anaphor.training.spec import TaskDefinition
from anaphor.web.history import (
    METRICS,
    SAMPLES,
    Cursor,
    find_counted,
    flatten_row,
    open_file,
    read_lines,
    to_number,
)
from anaphor.web.locks import LOCK, HeldLocks, read_holder

SPEC, RESULT, CHECKPOINTS, CELL_STATUS = "spec.yaml", "result.json", "checkpoints", "status.json"
NOT_COMPARED = ("seed", "device", "cuda_graph")
"""Settings in which the runs of one group may differ."""
Stats = Mapping[str, tuple[int, int, int]]
"""Number, size and time in nanoseconds of files that exist, by name."""
LONGEST_TEXT = 1_000  # characters of a setting or a reason


def read_file(path: Path, largest: int) -> bytes:
    """A small file of a run; a link is refused, and so is a larger file."""
    handle = open_file(path)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise DataError(f"{path.name} is not a file")
        if facts.st_size > largest:
            raise DataError(f"{path.name} has {facts.st_size:,} bytes, more than {largest:,}")
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read(largest)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """Names and values of a JSON file; empty where there is none."""
    try:
        found = json.loads(read_file(path, LARGEST_RESULT))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path.name} is not valid JSON") from None
    if not isinstance(found, dict):
        raise DataError(f"{path.name} must hold names and values, but it is a {type(found).__name__}")
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """Names and values of a YAML file. Its errors name the file and no folder."""
    import yaml

    try:
        values = from_text(read_file(path, LARGEST_FILE).decode())
    except ConfigError as error:
        raise DataError(f"{path.name} {error}") from None
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise DataError(f"{path.name} is not a plain YAML file") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise DataError(f"{path.name} must hold `name: value` lines")
    return values


def make_plain(value: Any) -> Any:
    """A value as JSON and UTF-8 can hold it; a text that is too long is cut."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()
        return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return to_number(value)
    if isinstance(value, Mapping):
        return {make_plain(str(key)): make_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(inner) for inner in value]
    return make_plain(str(value))


def find_task(name: Any) -> TaskDefinition | None:
    """What a task says of itself; None for a user's own, whose file is not imported here."""
    try:
        found: TaskDefinition | None = TASKS[name] if isinstance(name, str) and name in TASKS else None
    except Exception:  # noqa: BLE001 (an installed plugin may raise anything)
        return None
    return found


def stat_files(folder: Path, names: tuple[str, ...]) -> Stats:
    """Number, size and time of the files of a folder that exist. FileNotFoundError where the folder is gone."""
    found = {}
    for name in names:
        try:
            facts = os.lstat(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found[name] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if not found:
        raise FileNotFoundError(folder)
    return found


def newest(files: Stats) -> float:
    """When the newest file was written."""
    return max(written for name, (*_, written) in files.items() if name != LOCK) / 1e9


class RunReader:
    """A run's summary, kept up to date. Of metrics only new lines are read."""

    files = (SPEC, METRICS, RESULT, SAMPLES, LOCK, CELL_STATUS, CHECKPOINTS)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before: Any = None
        self._row: dict[str, Any] = {}
        self._cursor: Cursor | None = None
        self._forget()

    def _forget(self) -> None:
        self._first: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._values: dict[str, list[tuple[int, float]]] = {}
        """Best so far of each metric, as (step, smallest) and (step, largest)."""
        self._names: dict[str, None] = {}

    def read(self, locks: HeldLocks) -> dict[str, Any]:
        files = stat_files(self.folder, self.files)
        if SPEC not in files:
            raise FileNotFoundError(self.folder / SPEC)
        holder = read_holder(self.folder)
        is_held = locks.is_held(self.folder, holder, None if RESULT in files else newest(files))
        state = (files, is_held)
        if state != self._before:
            self._row = self._summarize(files, is_held)
            self._row["started"] = holder.since if holder else files[SPEC][2] / 1e9
            self._before = state
        return self._row

    def _summarize(self, files: Stats, is_held: bool) -> dict[str, Any]:
        problems: list[str] = []
        document: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        result: dict[str, Any] = {}
        cell: dict[str, Any] = {}
        try:
            document = read_yaml(self.folder / SPEC)
            check_format(document, Path(SPEC), required=True)
            sections = {key: value for key, value in document.items() if key not in NOT_SETTINGS}
            settings = make_plain(flatten_sections(sections, Path(SPEC)))
        except AnaphorError as error:
            problems.append(str(error))
        try:
            result = read_json(self.folder / RESULT)
            cell = read_json(self.folder / CELL_STATUS)
        except DataError as error:
            problems.append(str(error))
        damaged = self._read_metrics(problems) if METRICS in files else 0
        if damaged:
            problems.append(f"{METRICS} has {damaged} damaged line{'s' if damaged > 1 else ''}")
        task = make_plain(document.get("task"))
        definition = find_task(task)
        metrics = find_metrics(definition, self._values)
        metric = find_selecting(metrics, settings)
        counted = definition.counted if definition else find_counted(self._last)
        valid, test = (to_scores(result.get(split)) for split in ("valid", "test"))
        best = self._best(metric, valid)
        status = find_status(settings, result, cell, is_held=is_held)
        if status == "diverged" or (status == "stopped" and cell):
            problems.insert(0, make_plain(str((result if status == "diverged" else cell).get("reason") or "")))
        step = result.get("steps") if type(result.get("steps")) is int and not is_held else self._last.get("step")
        flat = flatten_row(self._last)
        return {
            "task": task if isinstance(task, str) else None,
            "status": status,
            "error": "; ".join(filter(None, problems)) or None,
            "step": step,
            "steps": plan_steps(settings, flat),
            "epoch": to_number(self._last.get("epoch")),
            "metric": metric.name if metric else None,
            "goal": metric.goal if metric else None,
            "best": best,
            "last": to_number(flat.get(f"valid.{metric.name}")) if metric else None,
            "parameters": to_number(result.get("parameters")),
            "throughput": to_number(result.get(f"{counted}_per_second")) or to_number(flat.get("throughput")),
            "counted": counted,
            "written": newest(files),
            "seed": settings.get("seed"),
            "settings": settings,
            "group": make_group(task, settings),
            "metrics": [
                {"name": one.name, "goal": one.goal, "label": one.label, "unit": one.unit, "digits": one.digits}
                for one in metrics.values()
            ],
            "curves": list_curves(definition, self._names),
            "offers": list_offers(definition, files),
            "scores": {"valid": valid, "test": test},
        }

    def _read_metrics(self, problems: list[str]) -> int:
        """Take note of new lines. Gives the number of damaged ones."""
        try:
            while True:
                found = read_lines(self.folder / METRICS, self._cursor)
                if found.restart or self._cursor is None:
                    self._forget()
                    self._damaged = 0
                is_over = self._cursor == found.cursor
                self._cursor = found.cursor
                self._damaged += found.damaged
                for row in found.rows:
                    self._add(row)
                if is_over:
                    return self._damaged
        except FileNotFoundError:
            pass
        except OSError as error:
            problems.append(f"{METRICS} cannot be read: {error.strerror}")
        return 0

    def _add(self, row: dict[str, Any]) -> None:
        self._last = row
        flat = flatten_row(row)
        self._names |= dict.fromkeys(flat)
        step = row["step"]
        for name, given in flat.items():
            value = to_number(given)
            if value is None or not name.startswith("valid."):
                continue
            ends = self._values.setdefault(name.removeprefix("valid."), [(step, value), (step, value)])
            if value < ends[0][1]:
                ends[0] = (step, value)
            if value > ends[1][1]:
                ends[1] = (step, value)

    def _best(self, metric: Metric | None, valid: dict[str, Any] | None) -> float | None:
        """Value of the best checkpoint: as the result has it, else the best of the metrics."""
        if metric is None:
            return None
        scored = to_number((valid or {}).get(metric.name))
        if scored is not None:
            return scored
        ends = self._values.get(metric.name)
        return ends[metric.goal == "max"][1] if ends else None


def find_status(
    settings: Mapping[str, Any], result: Mapping[str, Any], cell: Mapping[str, Any], *, is_held: bool
) -> str:
    """training while a process holds the lock; else as the result says; stopped without one."""
    if is_held:
        return "training"
    if not settings:
        return "unreadable"
    status = result.get("status")
    return status if status in ("finished", "interrupted", "diverged", "converted") else "stopped"


def guess_metric(name: str) -> Metric:
    """A metric of an unknown task: as another task has it, else a loss and an error are to fall, and others to rise."""
    for task in TASKS:
        definition = find_task(task)
        for metric in () if definition is None else definition.metrics:
            if metric.name == name:
                return metric
    return Metric(name, "min" if name.endswith(("loss", "error")) else "max", name.replace("_", " "), digits=4)


def find_metrics(definition: TaskDefinition | None, names: Iterable[str]) -> dict[str, Metric]:
    """Metrics by name: those of the task; of an unknown task, whatever numbers its results have."""
    metrics = map(guess_metric, names) if definition is None else definition.metrics
    return {metric.name: metric for metric in metrics}


def find_selecting(metrics: Mapping[str, Metric], settings: Mapping[str, Any]) -> Metric | None:
    """The metric that selects the best checkpoint: what `select` names, else the first."""
    return metrics.get(str(settings.get("select"))) or next(iter(metrics.values()), None)


def list_curves(definition: TaskDefinition | None, names: Mapping[str, None]) -> list[str]:
    """Columns that are worth drawing: what the task measures, and what is said of training."""
    metrics = None if definition is None else {f"valid.{metric.name}" for metric in definition.metrics}
    return [
        name
        for name in names
        if name not in ("step", "epoch", "count", "seconds")
        and (metrics is None or not name.startswith("valid.") or name in metrics)
    ]


def list_offers(definition: TaskDefinition | None, files: Mapping[str, Any]) -> list[str]:
    """Views that a page has of a run, beside its curves."""
    offers = ["samples"] if SAMPLES in files else []
    if definition is not None and CHECKPOINTS in files and definition.look is not None:
        offers.append("look")
    return offers


def to_scores(scores: Any) -> dict[str, Any] | None:
    """Numbers and signature of a split; tables are left out."""
    if not isinstance(scores, dict):
        return None
    return {name: make_plain(value) for name, value in scores.items() if not isinstance(value, dict | list)}


def plan_steps(settings: Mapping[str, Any], flat: Mapping[str, Any]) -> int | None:
    """Steps of the whole budget; those of a number of epochs follow from the steps of the epochs so far."""
    steps, epochs = to_number(settings.get("steps")), to_number(settings.get("epochs"))
    if steps is not None:
        return int(steps)
    epoch, step = to_number(flat.get("epoch")), to_number(flat.get("step"))
    return round(step / epoch * epochs) if epochs and epoch and step else None


def make_group(task: Any, settings: Mapping[str, Any]) -> str:
    """Id of the runs that differ in their seeds only."""
    compared = {name: value for name, value in settings.items() if name not in NOT_COMPARED}
    return hashlib.sha256(json.dumps([task, compared], sort_keys=True).encode()).hexdigest()[:12]
