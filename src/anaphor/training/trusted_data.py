"""Which runs may have the data read that they name: those that were trained here, or that the user trusts.

A spec names its data by a path, and that of a run that came from someone else may name any file of the user, whose
lines would stand on the page of the run. So training leaves a record in the user's state folder: an empty file whose
name is a digest of how the run names its data, where they are, and their content as its checkpoints have it. It holds
for the run wherever it is moved or copied, and for all runs on the same data. Data sets with a name, and data in the
run's own folder, need no record.

Whether the live page may start a run again is a stricter question, with records of its own: see `trained_runs`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from anaphor.errors import AnaphorError
from anaphor.registry import DATASETS
from anaphor.training import checkpoint
from anaphor.training.paths import UntrustedData, existing_paths, recorded_data_path
from anaphor.training.run_folder import NO_DATA, RunFolder
from anaphor.training.spec import RunSpec
from anaphor.training.trained_runs import state_folder, was_trained_here


def trust_data(data: str, data_path: str | None, digests: Any) -> None:
    """Record that runs on these data may have them read. Without a folder that can be written, nothing is recorded.

    Args:
        data: As the spec names them.
        data_path: Where they were when the run was trained.
        digests: The digests of their splits, as a checkpoint has them.
    """
    if data in DATASETS or data == NO_DATA:
        return
    with suppress(OSError):
        for path in {data_path, None}:  # a project that is moved has the same names in another place
            record = _record(data, path, digests)
            if not record.exists():
                record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                record.touch()


def trust_run(folder: Path) -> None:
    """The same for a run that another machine has trained for a command of this one; nothing where it is damaged."""
    run = RunFolder(folder)
    with suppress(AnaphorError):
        newest = next(checkpoint.newest_first(run.checkpoints), None)
        if newest is not None:
            found = checkpoint.read(newest, ())
            trust_data(str(run.read_settings().get("data")), run.read_data_path(), found.metadata["data"])


def is_trusted(data: str, data_path: str | None, digests: Any, folder: Path) -> bool:
    """Whether the data of the run in a folder may be read. The other arguments are those of `trust_data`."""
    if data in DATASETS:
        return True
    named = existing_paths(data)
    paths = named or (existing_paths(data_path) if data_path else [])
    if not paths:  # a name of a user's own task, or data that are missing
        return True
    with suppress(OSError):
        if any(_record(data, path, digests).exists() for path in {data_path, None if named else data_path}):
            return True
    return _are_inside(paths, folder)


def refuse_untrusted_data(spec: RunSpec, folder: RunFolder, digests: Any, saved: checkpoint.Checkpoint | None) -> None:
    """Raise where a run that is to be resumed was not trained here, and nothing shows that whoever trained it has seen
    the data: it has no checkpoint, or one of other data.

    Args:
        spec: The settings of the run.
        folder: Its folder.
        digests: The digests of its data as they are now.
        saved: Its newest checkpoint.
    """
    if saved is not None and saved.metadata["data"] == digests:
        return
    before = digests if saved is None else saved.metadata["data"]
    if not is_trusted(spec.data, recorded_data_path(folder, spec), before, folder.folder):
        raise UntrustedData.of(spec.data, folder.folder).error


def refuse_untrusted_config(spec: RunSpec, file: Path) -> None:
    """Raise where a new run has the settings of another run's spec file, and its data are those that the file names,
    although that run was not trained here. A file that is no run's is the user's own."""
    folder = RunFolder(file.parent)
    if file.name != folder.spec.name or not folder.exists or spec.data in DATASETS:
        return
    newest = next(checkpoint.newest_first(folder.checkpoints), None)
    digests = None if newest is None else checkpoint.read(newest, ()).metadata["data"]
    named = str(folder.read_settings().get("data"))
    is_own = was_trained_here(folder.folder, folder.spec.read_bytes())
    if not is_own and not is_trusted(named, folder.read_data_path(), digests, folder.folder):
        raise UntrustedData.of(named, folder.folder).error


def _record(data: str, data_path: str | None, digests: Any) -> Path:
    splits = dict(digests) if isinstance(digests, Mapping) else digests
    content = json.dumps([data, data_path, splits], sort_keys=True, default=str)
    return state_folder() / "trusted-data" / hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _are_inside(paths: list[Path], folder: Path) -> bool:
    """Whether these files and folders are in the folder, with all that is in them: a link may lead out of it."""
    home = os.path.realpath(folder)
    for path in paths:
        if os.path.commonpath([home, os.path.realpath(path)]) != home:
            return False
        for parent, folders, files in os.walk(path):
            if any(os.path.islink(os.path.join(parent, name)) for name in (*folders, *files)):
                return False
    return True
