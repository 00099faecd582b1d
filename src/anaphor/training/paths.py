"""Where the data and the initial weights of a run are: as its spec calls them, or where they were when it was trained.

A spec may name them by a path that means nothing in another folder. So `spec.yaml` also has the absolute paths, in its
section `environment`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError, DataError
from anaphor.registry import DATASETS
from anaphor.training.run_folder import NO_DATA, RunFolder, recorded_path
from anaphor.training.spec import FineTuning, RunSpec
from anaphor.user_paths import user_path
from anaphor.yaml_files import read_mapping


def existing_paths(data: str) -> list[Path]:
    """A folder or a file, or two files with a comma between them; empty where there are none."""
    # Not Path.exists, which raises an OSError for names that no file can have.
    whole = Path(os.path.expanduser(data))
    if os.path.exists(whole):
        return [whole]
    for comma in re.finditer(",", data):
        both = [Path(os.path.expanduser(half)) for half in (data[: comma.start()], data[comma.end() :])]
        if all(map(os.path.isfile, both)):
            return both
    return []


def absolute_path(data: str) -> str | None:
    """Data as a path that means the same in every folder. None: they have a name, or are such a path already."""
    if data in DATASETS:
        return None
    path = ",".join(str(path.absolute()) for path in existing_paths(data))
    return None if path in ("", data) else path


class UntrustedData(str):
    """Stands in the spec of a run for data that are not read (see `trusted_data`): opening them fails, whatever a task
    does with the name."""

    error: DataError

    @classmethod
    def of(cls, data: str, folder: Path) -> UntrustedData:
        """In place of `data`, for the run in a folder."""
        found = cls("data of a run that was not trained here")
        found.error = DataError(
            f"{folder} was not trained here, or by an earlier version: the data that it names, {data}, are not read; "
            f"use --data, or --trust once with `anaphor evaluate` if the run is your own"
        )
        return found


def resolve_data_path(data: str, path: str | None) -> str:
    """The data of an existing run: as its spec calls them, else where they were when it was trained."""
    if isinstance(data, UntrustedData):
        raise data.error
    if data == NO_DATA:
        raise DataError("the run was converted and has no data of its own")
    if data in DATASETS or existing_paths(data):
        return data
    if path is not None and existing_paths(path):
        return path
    here = "" if os.path.isabs(os.path.expanduser(data)) else " in this folder"
    before = "" if path is None else f", and no {path}"
    raise DataError(f"the data of the run are missing: there is no {data}{here}{before}")


def resolve_init_path(init: str, path: str | None) -> str:
    """The initial weights of an existing run, likewise; as its spec calls them where they are gone."""
    return init if path is None or user_path(init).is_dir() or not os.path.isdir(path) else path


def locate_paths(spec: RunSpec, file: Path, given: Collection[str]) -> RunSpec:
    """Settings of a file and of what is given beside it, for a new run. Where it is the spec of a run whose data or
    initial weights are not found from here: with those where they were then."""
    environment, found = read_mapping(file).get("environment"), dict[str, Any]()
    if (path := recorded_path(environment, "data_path")) is not None and "data" not in given:
        found["data"] = resolve_data_path(spec.data, path)
    init, path = getattr(spec, "init", None), recorded_path(environment, "init_path")
    if init is not None and path is not None and "init" not in given:
        found["init"] = resolve_init_path(init, path)
        if not user_path(found["init"]).is_dir():
            raise ConfigError(f"init={init}: there is no such folder, and no {path}")
    return replace(spec, **found) if found else spec


def recorded_data_path(folder: RunFolder, spec: RunSpec) -> str | None:
    """Where the data of an existing run were, as long as the same data are meant."""
    is_same = folder.exists and folder.read_settings().get("data") == spec.data
    return folder.read_data_path() if is_same else None


def current_data_path(spec: RunSpec, data_path: str | None) -> str | None:
    """Where the data are now: what is found from here goes before where they were."""
    return absolute_path(spec.data if data_path is None else resolve_data_path(spec.data, data_path)) or data_path


def find_init(spec: RunSpec, folder: RunFolder) -> str | None:
    """The initial weights as they are found from here, for a new run or the one in the folder."""
    if not isinstance(spec, FineTuning) or spec.init is None or user_path(spec.init).is_dir():
        return getattr(spec, "init", None)
    return resolve_init_path(spec.init, recorded_init_path(folder, spec))


def recorded_init_path(folder: RunFolder, spec: FineTuning) -> str | None:
    """Where the initial weights of an existing run were, as long as the same ones are meant."""
    is_same = folder.exists and folder.read_settings().get("init") == spec.init
    return recorded_path(folder.read_environment(), "init_path") if is_same else None


def current_init_path(spec: RunSpec, folder: RunFolder) -> str | None:
    """Where the initial weights are, or were when they were last found; None where the spec says it, or has none."""
    init = find_init(spec, folder)
    if init is None:
        return None
    assert isinstance(spec, FineTuning), "other runs have no initial weights"
    path = user_path(init)
    found = str(path.absolute()) if path.is_dir() else recorded_init_path(folder, spec)
    return None if found == spec.init else found
