"""The file of a study: a preset by its name, or a file of the user's, read into a spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from anaphor.config import look_up, nearest
from anaphor.errors import ConfigError
from anaphor.imported_files import import_class, import_file
from anaphor.registry import TASKS
from anaphor.shipped_files import EXAMPLES, files_by_name, find_file
from anaphor.studies.axes import Axis, read_axis, read_seeds
from anaphor.studies.spec import StudySpec, find_support
from anaphor.training.spec import merge_settings
from anaphor.user_paths import is_path_like
from anaphor.yaml_files import read_mapping

PRESETS = Path(__file__).parent / "presets"


def list_presets() -> dict[str, Path]:
    """Studies that come with the program, by name."""
    return files_by_name(PRESETS, ".yaml")


def find_study_file(name: str) -> Path:
    """A preset or an example by its name, or a file by its path."""
    path = find_file(name, ".yaml", PRESETS, EXAMPLES)
    if path.is_file():
        return path
    presets = list_presets()
    if is_path_like(name) or path.is_dir():
        raise ConfigError(f"no file at {path}; `anaphor study list` lists the presets")
    raise ConfigError(f"unknown study {name!r}{nearest(name, presets)} (known: {', '.join(presets)}; or a YAML file)")


def read_study(
    path: Path | str, name: str | None = None, data: str | None = None, imports: Iterable[Path | str] = ()
) -> StudySpec:
    """Read a study file. What it has for the data set under `with_data` overrides the rest. `imports` are Python files
    that register parts of your own; workers import them too."""
    path = Path(path)
    for file in imports:
        import_file(file)
    return read_study_values(read_mapping(path), path, name or path.stem, data)


def read_study_values(values: dict[str, Any], path: Path, name: str, data: str | None = None) -> StudySpec:
    """The study of what its file has. `path` stands in messages."""
    by_data = values.pop("with_data", {})
    if not isinstance(by_data, dict) or not all(isinstance(part, dict) for part in by_data.values()):
        raise ConfigError(f"{path}: with_data must map names of data sets to what is different for them")
    special = by_data.get(data if data is not None else str(_mapping(values, "base", path).get("data", "")), {})
    task = str(values.get("task") or next(iter(TASKS)))
    kind = look_up(TASKS, task, "task").run_spec
    base = merge_settings(kind, _mapping(values, "base", path), _mapping(special, "base", path))
    if data is not None:
        base["data"] = data
    try:
        return _build_study(path, {"name": name, **values, **special, "task": task, "base": base})
    except ConfigError as error:
        raise error if str(error).startswith(f"{path}: ") else ConfigError(f"{path}: {error}") from None


def _build_study(path: Path, values: dict[str, Any]) -> StudySpec:
    values["measures"] = _take_measures(values)
    metric = values.pop("metric", {})
    metric = {"name": metric} if isinstance(metric, str) else metric
    if not isinstance(metric, dict) or set(metric) - {"name", "goal"}:
        raise ConfigError(f"metric={metric!r}: give a name, or a name and a goal")
    values |= {"metric": str(metric.get("name", "")), "goal": str(metric.get("goal", ""))}
    parameters = values.pop("parameters", {})
    values["seeds"] = read_seeds(values.pop("seeds", 3))
    for key, what in (("required", "settings"), ("report", "metrics")):
        names = values.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{key}={names!r}: it must be a list of names of {what}")
        values[key] = tuple(names)
    if not isinstance(values.get("match", {}), dict):
        raise ConfigError(f"match={values['match']!r}: write `match: {{parameters: 117000, by: width}}`")
    values["tune"] = _read_tuned(values.get("tune", {}), path)
    if "tune_seeds" in values:
        values["tune_seeds"] = _read_tune_seeds(values["tune_seeds"])
    callbacks = values.get("callbacks", [])
    if not isinstance(callbacks, list) or not all(isinstance(name, str) for name in callbacks):
        raise ConfigError(f"callbacks={callbacks!r}: it must be a list of FILE.py:Class")
    values["callbacks"] = tuple(map(resolve_callback, callbacks))
    if isinstance(parameters, list):
        if not all(isinstance(setting, dict) for setting in parameters):
            raise ConfigError("each item of parameters must be a mapping of names to values")
        values["listed"] = tuple(parameters)
    elif isinstance(parameters, dict):
        values["parameters"] = tuple(read_axis(str(key), value, path) for key, value in parameters.items())
    else:
        raise ConfigError(f"parameters={parameters!r}: it must be a mapping of names to their values")
    return StudySpec(**values)


def _read_tuned(given: Any, path: Path) -> tuple[Axis, ...]:
    """What is tuned, in the form of `parameters`."""
    if not isinstance(given, dict):
        raise ConfigError(f"tune={given!r}: it must be a mapping of names to their values")
    axes = []
    for key, value in given.items():
        axis = read_axis(str(key), value, path)
        if not isinstance(axis, Axis):
            raise ConfigError(f"tune: {key} needs a list of values, and not a range")
        axes.append(axis)
    return tuple(axes)


def _read_tune_seeds(given: Any) -> tuple[int, ...] | int:
    """So many of the seeds, or a list of others. How many there are, the spec knows."""
    if type(given) is int:
        return given
    if not isinstance(given, list) or not all(type(item) is int for item in given):
        raise ConfigError(f"tune_seeds={given!r}: give the number of seeds that tune, or a list of integers")
    return tuple(given)


def resolve_callback(given: str) -> str:
    """A callback with the absolute path of its file, for other processes. One that changes training is refused."""
    kind, file = import_class(given)
    if getattr(kind, "changes_training", False):
        raise ConfigError(
            f"callback {given}: it changes training, so that results of the study would not be those of its settings; "
            f"register it with settings (anaphor.register_callback)"
        )
    return f"{file.path}:{kind.__name__}"


def _take_measures(values: dict[str, Any]) -> dict[str, Any]:
    """Take the options of the task's measures out of a study file, and refuse unknown keys."""
    keys = {one.name for one in dataclasses.fields(StudySpec)} - {"listed", "measures", "goal"} | {"with_data"}
    options = {
        task: {one.name for one in dataclasses.fields(kind)}
        for task in TASKS
        if (kind := find_support(TASKS[task]).options) is not None
    }
    own = options.get(values["task"], set())
    for key in values:
        if key not in keys | own:
            for task in (task for task, names in options.items() if key in names):
                raise ConfigError(f"{key} is for `task: {task}`, and this study has `task: {values['task']}`")
            listed = ", ".join(sorted(keys | own))
            raise ConfigError(f"unknown key {key!r}{nearest(key, keys | own)} (known: {listed})")
    return {name: values.pop(name) for name in own if name in values}


def _mapping(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    given = values.get(name, {})
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: {name}={given!r}: it must be a mapping of names to values")
    return given
