"""Summary of a run or a study: what its files say, in a few values. A damaged file costs its own values only."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from anaphor.config import NOT_SETTINGS, check_format, flatten_sections
from anaphor.errors import AnaphorError, ConfigError, DataError
from anaphor.files import read_at
from anaphor.metrics.described import DescribedTask, read_described
from anaphor.metrics.result import Metric
from anaphor.registry import TASKS
from anaphor.training.run_folder import MAX_RESULT_BYTES, NO_DATA
from anaphor.training.task import TaskDefinition
from anaphor.web.history import (
    AXES,
    METRICS,
    SAMPLES,
    STEPS,
    Extremes,
    find_unit,
    flatten_row,
    open_file,
    read_last_step,
    to_number,
)
from anaphor.web.locks import LOCK, HeldLocks, read_holder
from anaphor.web.worker import without_paths
from anaphor.yaml_files import MAX_FILE_BYTES, parse_yaml

SPEC, RESULT, CHECKPOINTS, CELL_STATUS = "spec.yaml", "result.json", "checkpoints", "status.json"
NOT_COMPARED = ("seed", "device", "cuda_graph")
"""Settings in which the runs of one group may differ."""
Task = TaskDefinition | DescribedTask
Stats = Mapping[str, tuple[int, int, int]]
"""Number, size and time in nanoseconds of files that exist, by name."""
MAX_TEXT = 1_000  # characters of a setting or a reason
MAX_DEPTH = 20  # levels of a setting
MAX_DIMENSIONS = 16  # of a tensor


def read_file(path: Path, largest: int) -> bytes:
    """A small file of a run; a link is refused, and so is a larger file."""
    with os.fdopen(open_file(path, largest), "rb") as file:
        return file.read(largest)


def read_json(path: Path) -> dict[str, Any]:
    """Names and values of a JSON file; empty where there is none."""
    try:
        found = json.loads(read_file(path, MAX_RESULT_BYTES))
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
        values = parse_yaml(read_file(path, MAX_FILE_BYTES).decode())
    except ConfigError as error:
        raise DataError(f"{path.name} {error}") from None
    except OSError as error:
        raise DataError(f"{path.name} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise DataError(f"{path.name} is not a plain YAML file") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise DataError(f"{path.name} must hold `name: value` lines")
    return values


def make_plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A value as JSON and UTF-8 can hold it; a text that is too long is cut, and so is what is nested too deeply."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()
        return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return to_number(value)
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {make_plain(str(key)): make_plain(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(inner, depth - 1) for inner in value]
    return make_plain(str(value))


def first_number(*values: Any) -> float | None:
    """The first of the values that is a finite number."""
    return next((number for value in values if (number := to_number(value)) is not None), None)


def find_task(name: Any) -> TaskDefinition | None:
    """What a task says of itself; None for a user's own whose file is not imported here."""
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
            status = os.lstat(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    if not found:
        raise FileNotFoundError(folder)
    return found


def newest(files: Stats) -> float:
    """When the newest file was written."""
    return max(written for name, (*_, written) in files.items() if name != LOCK) / 1e9


class RunReader:
    """A run's summary, kept up to date: a file is read again when it has changed, and of metrics what is new."""

    files = (SPEC, METRICS, STEPS, RESULT, SAMPLES, LOCK, CELL_STATUS, CHECKPOINTS)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before: Any = None
        self._row: dict[str, Any] = {}
        self._metrics: Extremes | None = None
        self._parameters: int | None = None

    def read(self, locks: HeldLocks) -> dict[str, Any]:
        """The run in a few values. FileNotFoundError where it is gone."""
        files = stat_files(self.folder, self.files)
        if SPEC not in files:
            raise FileNotFoundError(self.folder / SPEC)
        holder = read_holder(self.folder)
        is_held = locks.is_held(self.folder, holder, None if RESULT in files else newest(files))
        if (files, is_held) != self._before:
            started = holder.since if holder else files[SPEC][2] / 1e9
            self._row = {**self._read_row(files, is_held), "started": started}
            self._before = (files, is_held)
        return self._row

    def _read_row(self, files: Stats, is_held: bool) -> dict[str, Any]:
        try:
            row = self._summarize(files, is_held)
            json.dumps(row)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except Exception as error:  # noqa: BLE001 (whatever its files hold, the other runs are listed)
            return unreadable_row(files, f"its files cannot be read ({type(error).__name__})")
        return row

    def _summarize(self, files: Stats, is_held: bool) -> dict[str, Any]:
        problems: list[str] = []
        task, settings, described = self._read_spec(problems)
        result = self._read_json(RESULT, problems)
        cell = self._read_json(CELL_STATUS, problems)
        definition = find_task(task) or described
        valid, test = (to_scores(result.get(split)) for split in ("valid", "test"))
        history = self._read_metrics(definition, settings, valid, problems)
        last, flat = history.last, flatten_row(history.last)
        log = read_last_step(self.folder) if STEPS in files else {}
        metrics = find_metrics(definition, flat)
        metric = find_selecting(metrics, settings)
        unit = definition.unit if definition else find_unit(last)
        status = find_status(settings, result, is_held=is_held)
        reason = result.get("reason") if status == "diverged" else cell.get("reason") if status == "stopped" else None
        scored = valid.get(metric.name) if valid and metric else None
        checkpoint = find_checkpoint(self.folder) if CHECKPOINTS in files else None
        if self._parameters is None and checkpoint is not None and "parameters" not in result:
            self._parameters = count_parameters(checkpoint)
        goal, best = find_best(history, metric, checkpoint, is_known=definition is not None)
        return {
            "task": task,
            "status": status,
            "error": make_plain("; ".join(filter(None, [without_paths(str(reason or "")), *problems]))) or None,
            "step": first_number(None if is_held else result.get("steps"), find_last_step(last, log)),
            "steps": plan_steps(settings, flat),
            "epoch": to_number(last.get("epoch")),
            "metric": metric.name if metric else None,
            "goal": goal,
            "best": first_number(scored, best),
            "last": to_number(flat.get(f"valid.{metric.name}")) if metric else None,
            "parameters": first_number(result.get("parameters"), self._parameters),
            "train_loss": first_number(log.get("train_loss"), flat.get("train_loss")),
            "throughput": first_number(
                result.get(f"{unit}_per_second"),
                log.get("throughput") if is_held else None,
                flat.get("throughput"),
                log.get("throughput"),
            ),
            "counted": unit,
            "seconds_left": log.get("seconds_left") if is_held else None,
            "written": newest(files),
            "seed": settings.get("seed"),
            "settings": settings,
            "group": make_group(task, settings),
            "metrics": [
                {
                    "name": one.name,
                    "goal": goal if one is metric else one.goal if definition or find_metric(one.name) else None,
                    "label": one.label,
                    "unit": one.unit,
                    "digits": one.digits,
                    **{end: limit for end in ("minimum", "maximum") if math.isfinite(limit := getattr(one, end))},
                }
                for one in metrics.values()
            ],
            "curves": list(dict.fromkeys([*list_curves(definition, flat), *list_curves(definition, log)])),
            "offers": list_offers(
                definition, files, has_checkpoint=checkpoint is not None, has_data=settings.get("data") != NO_DATA
            ),
            "scores": {"valid": valid, "test": test},
        }

    def _read_spec(self, problems: list[str]) -> tuple[str | None, dict[str, Any], DescribedTask | None]:
        """Task and settings, and what the run says of the metrics of a user's own task."""
        try:
            document = read_yaml(self.folder / SPEC)
            check_format(document, Path(SPEC), required=True)
            sections = {key: value for key, value in document.items() if key not in NOT_SETTINGS}
            settings = make_plain(flatten_sections(sections, Path(SPEC)))
        except AnaphorError as error:
            problems.append(str(error))
            return None, {}, None
        task = document.get("task")
        return make_plain(task) if isinstance(task, str) else None, settings, read_described(document.get("measures"))

    def _read_json(self, name: str, problems: list[str]) -> dict[str, Any]:
        try:
            return read_json(self.folder / name)
        except DataError as error:
            problems.append(str(error))
            return {}

    def _read_metrics(
        self,
        definition: Task | None,
        settings: Mapping[str, Any],
        valid: Mapping[str, Any] | None,
        problems: list[str],
    ) -> Extremes:
        """The last row, and the range of the metric that selects, unless the result of a known task has its value."""
        name = str(settings.get("select") or (definition.metrics[0].name if definition else ""))
        needs_range = definition is None or to_number((valid or {}).get(name)) is None
        found = self._metrics
        if found is None or found.metric != name or (needs_range and not found.has_range):
            self._metrics = found = Extremes(name, has_range=needs_range)
        try:
            found.update(self.folder / METRICS)
        except FileNotFoundError:
            self._metrics = None
            return Extremes(name)
        except OSError as error:
            problems.append(f"{METRICS} cannot be read: {error.strerror}")
        if found.damaged:
            problems.append(f"{METRICS} has {found.damaged} damaged line{'s' if found.damaged > 1 else ''}")
        return found


def unreadable_row(files: Stats, error: str) -> dict[str, Any]:
    """The values of a run that cannot be summarized."""
    numbers = (
        "step",
        "steps",
        "epoch",
        "best",
        "last",
        "parameters",
        "train_loss",
        "throughput",
        "seconds_left",
        "seed",
    )
    return {
        **dict.fromkeys(("task", "metric", "goal", "counted", *numbers)),
        "status": "unreadable",
        "error": error,
        "written": newest(files),
        "settings": {},
        "group": make_group(None, {}),
        "metrics": [],
        "curves": [],
        "offers": [],
        "scores": {"valid": None, "test": None},
    }


def find_last_step(last: Mapping[str, Any], log: Mapping[str, Any]) -> float | None:
    """The last step that a run has logged, validated or not."""
    steps = [step for one in (last, log) if (step := to_number(one.get("step"))) is not None]
    return max(steps, default=None)


def find_best(
    history: Extremes, metric: Metric | None, checkpoint: Path | None, *, is_known: bool
) -> tuple[str | None, float | None]:
    """Goal and best value of the metric that selects. What a user's own task wants, its checkpoints show."""
    if metric is None:
        return None, None
    goal, ends = metric.goal if is_known else None, {"min": history.lowest, "max": history.highest}
    best = None if is_known or checkpoint is None else read_best_value(checkpoint)
    if not is_known and history.lowest != history.highest and best in ends.values():
        goal = "min" if best == history.lowest else "max"
    elif not is_known:
        goal = metric.goal if find_metric(metric.name) else None
    return goal, first_number(ends.get(goal or ""), best)


def read_best_value(checkpoint: Path) -> float | None:
    """The best value of the metric that selects, as a checkpoint has it."""
    with suppress(DataError):
        metadata = read_json(checkpoint / "facts.json").get("facts")
        progress = metadata.get("progress") if isinstance(metadata, dict) else None
        return to_number(progress.get("best_value")) if isinstance(progress, dict) else None
    return None


def find_status(settings: Mapping[str, Any], result: Mapping[str, Any], *, is_held: bool) -> str:
    """training while a process holds the lock; else as the result says; stopped without one."""
    if is_held:
        return "training"
    if not settings:
        return "unreadable"
    status = result.get("status")
    return status if status in ("finished", "interrupted", "diverged", "converted") else "stopped"


def find_metric(name: str) -> Metric | None:
    """A metric of this name, of whichever task."""
    metrics = (metric for task in TASKS if (definition := find_task(task)) for metric in definition.metrics)
    return next((metric for metric in metrics if metric.name == name), None)


def guess_metric(name: str) -> Metric:
    """A metric of an unknown task: as another task has it, if one does; else its goal is not known."""
    return find_metric(name) or Metric(name, "min", name.replace("_", " "), digits=4)


def find_metrics(definition: Task | None, columns: Iterable[str]) -> dict[str, Metric]:
    """Metrics by name: those of the task; of an unknown task, whatever numbers its validations have."""
    names = [name.removeprefix("valid.") for name in columns if name.startswith("valid.")]
    metrics = map(guess_metric, names) if definition is None else definition.metrics
    return {metric.name: metric for metric in metrics}


def find_selecting(metrics: Mapping[str, Metric], settings: Mapping[str, Any]) -> Metric | None:
    """The metric that selects the best checkpoint: what `select` names, else the first."""
    return metrics.get(str(settings.get("select"))) or next(iter(metrics.values()), None)


def list_curves(definition: Task | None, names: Iterable[str]) -> list[str]:
    """Columns that are worth drawing: what the task measures, and what is said of training."""
    metrics = None if definition is None else {f"valid.{metric.name}" for metric in definition.metrics}
    return [
        name
        for name in names
        if name not in AXES and (metrics is None or not name.startswith("valid.") or name in metrics)
    ]


def list_offers(definition: Task | None, files: Stats, *, has_checkpoint: bool, has_data: bool) -> list[str]:
    """Views that a page has of a run, beside its curves. Those that need a model need a checkpoint, passages need the
    data of the run."""
    offers = ["samples"] if SAMPLES in files else []
    if definition is None or not has_checkpoint:
        return offers
    return [*offers, *(verb for verb in definition.page if has_data or verb != "passages")]


def find_checkpoint(run: Path) -> Path | None:
    """The folder of the newest checkpoint; None where there is none."""
    folder = run / CHECKPOINTS
    found: list[tuple[int, Path]] = []
    with suppress(OSError):
        if not folder.is_symlink():
            with os.scandir(folder) as entries:
                for entry in entries:
                    step = entry.name.removeprefix("step-")
                    if step.isdecimal() and entry.is_dir(follow_symlinks=False):
                        found.append((int(step[:18]), folder / entry.name))
    return max(found)[1] if found else None


def count_parameters(checkpoint: Path) -> int | None:
    """Number of parameters of a model by the header of its weights, which are not read."""
    try:
        handle = open_file(checkpoint / "model.safetensors")
        try:
            size = int.from_bytes(read_at(handle, 8, 0), "little")
            header = json.loads(read_at(handle, min(size, MAX_RESULT_BYTES), 8))
        finally:
            os.close(handle)
        return sum(count_values(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def count_values(shape: Any) -> int:
    """Number of values of a tensor. ValueError for what is no shape."""
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise ValueError("too many dimensions")
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError("a dimension that no tensor has")
    return math.prod(shape)


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
    if not (epochs and epoch and step):
        return None
    planned = to_number(step / epoch * epochs)  # it may be infinite
    return None if planned is None else round(max(planned, step))  # epochs may have unequal numbers of batches


def make_group(task: Any, settings: Mapping[str, Any]) -> str:
    """Id of the runs that differ in their seeds only."""
    compared = {name: value for name, value in settings.items() if name not in NOT_COMPARED}
    return hashlib.sha256(json.dumps([task, compared], sort_keys=True).encode()).hexdigest()[:12]
