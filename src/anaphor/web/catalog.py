"""Catalog: the runs and studies below a folder, as data. It reads files; no model is loaded and no user's code runs.

What is read is kept until a file changes, so that a second look costs little more than the list of the folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from anaphor.errors import DataError
from anaphor.metrics.labels import Label, label_column
from anaphor.registry import has_shelf
from anaphor.training.run_folder import STUDY
from anaphor.web.history import AXES
from anaphor.web.locks import LOCK, HeldLocks
from anaphor.web.summary import RunReader

HAS_STUDIES = has_shelf("studies")
"""Without the shelf of studies their folders are like others, and their cells are runs."""
if HAS_STUDIES:
    from anaphor.web.study_view import StudyReader, read_study

CHECKPOINTS = "checkpoints"
PARTS = (CHECKPOINTS, "events", "previous")
"""Folders of a run itself. `previous` holds the run that it overwrites until its own first checkpoint."""
NOT_ENTERED = ("__pycache__", "node_modules")
MAX_FOLDERS = 100_000
MAX_FOLDERS_EACH = 50_000
"""In one folder of the top, so that it does not keep the others from being listed."""
MAX_DEPTH = 16
RUN_FILES = (CHECKPOINTS, LOCK, "metrics.jsonl", "result.json")
"""A folder with `spec.yaml` and one of these is a run. Other programs have files of that name too."""


@dataclass(frozen=True)
class Listing:
    """All runs and studies of a folder at one moment."""

    folder: str
    runs: list[dict[str, Any]]
    studies: list[dict[str, Any]]
    differing: list[str]
    """Settings that differ between runs of one task."""
    notes: list[str] = field(default_factory=list)
    """What could not be read."""

    @cached_property
    def version(self) -> str:
        """Changes when anything does, except that time passes."""
        content = [self.folder, self.runs, self.studies, self.notes]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def to_plain(self) -> dict[str, Any]:
        """As JSON, with the age of each run and study in seconds."""
        now = time.time()
        return {
            "folder": self.folder,
            "version": self.version,
            "runs": [{**row, "age": max(now - row["written"], 0.0)} for row in self.runs],
            "studies": [{**row, "age": max(now - row["written"], 0.0)} for row in self.studies],
            "differing": self.differing,
            "labels": find_labels(self.runs),
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Found:
    """A folder with a run or a study."""

    path: Path
    name: str
    """Path below the catalog's folder, with slashes."""
    is_study: bool
    study: str | None
    """Id of the study that it belongs to."""


class Catalog:
    """The runs and studies below a folder. Links are not followed, so that everything shown is inside it.

    `only` names folders inside it; others are not looked at.
    """

    def __init__(self, folder: Path, only: Sequence[Path] | None = None) -> None:
        self.folder = folder.resolve()
        self._roots = [self.folder] if only is None else [path.resolve() for path in only]
        self.runs: dict[str, Path] = {}
        self.studies: dict[str, Path] = {}
        self._readers: dict[str, RunReader | StudyReader] = {}
        self._study_of: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        """The folder of a run or a study by its id. KeyError for an unknown one, or where a link took its place."""
        path = self.runs.get(key) or self.studies[key]
        if path.resolve() != path:
            raise KeyError(key)
        return path

    def study_of(self, run: str) -> str | None:
        """Id of the study that a run belongs to."""
        return self._study_of.get(run)

    def read_study(self, path: Path) -> dict[str, Any]:
        """A study of this folder with its cells and groups."""
        return read_study(path, self)

    def scan(self) -> Listing:
        """Look at all folders again. A run that is deleted meanwhile is left out."""
        with self._lock:
            return self._scan()

    def _scan(self) -> Listing:
        notes: list[str] = []
        locks, runs, studies = HeldLocks(), list[dict[str, Any]](), list[dict[str, Any]]()
        readers: dict[str, RunReader | StudyReader] = {}
        found = list(find_folders(self.folder, notes, self._roots))
        for one in found:
            key = make_id(one.name)
            reader = self._readers.get(key)
            kind = StudyReader if one.is_study else RunReader
            reader = reader if type(reader) is kind else kind(one.path)
            try:
                row = reader.read(locks)
            except (FileNotFoundError, NotADirectoryError):  # deleted while we look
                continue
            except OSError as error:
                notes.append(f"{one.name} cannot be read: {error.strerror}")
                continue
            readers[key] = reader
            row = {"id": key, "study" if one.is_study else "run": clean_text(one.name), **row}
            if one.is_study:
                studies.append(row)
            else:
                runs.append({**row, "study": one.study})
        self._readers = readers
        self.runs = {make_id(one.name): one.path for one in found if not one.is_study and make_id(one.name) in readers}
        self.studies = {make_id(one.name): one.path for one in found if one.is_study and make_id(one.name) in readers}
        self._study_of = {make_id(one.name): one.study for one in found if not one.is_study}
        return Listing(
            clean_text(self.folder.name) or "/",
            runs,
            studies,
            find_differing(runs),
            [clean_text(note) for note in notes],
        )


def make_id(name: str) -> str:
    """Id of a run or a study: a digest of its path below the folder."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:12]


def clean_text(text: str) -> str:
    """A text that can be encoded: a file's name need not be one."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def find_folders(top: Path, notes: list[str], roots: Sequence[Path]) -> Iterator[Found]:
    """All folders with a run or a study, the roots among them, in the order of their names."""
    waiting: list[tuple[Path, str, str | None]] = [
        (root, root.relative_to(top).as_posix(), None) for root in roots[::-1]
    ]
    seen, seen_in = 0, Counter[str]()
    while waiting:
        path, name, study = waiting.pop()
        part = name.partition("/")[0]
        if seen_in[part] > MAX_FOLDERS_EACH:
            continue
        try:
            files, folders = list_entries(path)
        except FileNotFoundError:
            if path in roots:
                raise DataError(f"no folder at {path}") from None
            continue
        except OSError as error:
            notes.append(f"{name} cannot be read: {error.strerror}")
            continue
        seen, seen_in[part] = seen + 1, seen_in[part] + 1
        if seen_in[part] > MAX_FOLDERS_EACH:
            notes.append(f"{part} has more than {MAX_FOLDERS_EACH:,} folders: the others are not looked at")
            continue
        if seen > MAX_FOLDERS:
            notes.append(f"there are more than {MAX_FOLDERS:,} folders: name one with fewer")
            return
        if HAS_STUDIES and STUDY in files:
            yield Found(path, name, True, study)
            study = make_id(name)
        elif "spec.yaml" in files and not {*files, *folders}.isdisjoint(RUN_FILES):
            yield Found(path, name, False, study)
            folders = [inner for inner in folders if inner not in PARTS]
        if name.count("/") + 1 >= MAX_DEPTH:
            continue
        entered = sorted(filter(lambda inner: is_entered(inner, study), folders), reverse=True)
        waiting += [(path / inner, inner if name == "." else f"{name}/{inner}", study) for inner in entered]


def is_entered(name: str, study: str | None) -> bool:
    """Whether there may be runs in a folder of this name, which is in that study."""
    is_draft = study is not None and name.endswith(".tmp")  # a run that is being copied to a study
    return not name.startswith(".") and not is_draft and name not in NOT_ENTERED


def list_entries(folder: Path) -> tuple[set[str], list[str]]:
    """Names of the files and of the folders in a folder; a link is a file."""
    files, folders = set[str](), list[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            (folders.append if entry.is_dir(follow_symlinks=False) else files.add)(entry.name)
    return files, folders


def find_labels(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, str]]]:
    """By task, what its columns are called: text and unit. A task of the user's own has the names of its columns."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in sorted(rows, key=lambda row: row["counted"] is None):  # those first that know what they count
        metrics = {one["name"]: Label(one["label"], one["unit"]) for one in row["metrics"]}
        splits = [f"{split}.{name}" for split in ("valid", "test") for name in metrics]
        labels = found.setdefault(str(row["task"]), {})
        for name in (*AXES, *row["curves"], *splits, *metrics, "train_loss", "throughput", "parameters"):
            label = label_column(name, metrics, row["counted"])
            labels.setdefault(name, {"text": label.text, "unit": label.unit})
    return found


def find_differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that differ between runs of one task, in the order of their specs."""
    by_task: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["settings"]:
            by_task.setdefault(row["task"], []).append(row["settings"])
    found: dict[str, None] = {}
    for settings in by_task.values():
        names = dict.fromkeys(name for one in settings for name in one)
        found |= {name: None for name in names if len({json.dumps(one.get(name)) for one in settings}) > 1}
    return list(found)
