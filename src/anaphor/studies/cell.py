"""A cell: one setting with one seed, trained in a folder that is named after everything that decides its result."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from anaphor.errors import AnaphorError, ConfigError, DataError
from anaphor.files import make_folder, replace_file
from anaphor.imported_files import IMPORTED
from anaphor.registry import TASKS, files_used_by
from anaphor.studies.reported import Reported
from anaphor.studies.spec import Setting, StudySpec, find_support
from anaphor.training.build import build_experiment
from anaphor.training.device import choose_device
from anaphor.training.run_folder import RunFolder
from anaphor.training.spec import RunSpec
from anaphor.user_paths import user_path

# Code that may change a result; drawing, commands and studies do not.
CODE = (
    "mixers", "precision.py", "row_draws.py", "operations.py", "kernels", "cuda_graphs.py", "models", "data",
    "metrics", "evaluation.py", "generate.py", "beam_search.py", "interchange", "tasks", "extras", "training",
)  # fmt: skip

JOB, MEASURES, TEST, STOP, STATUS, OUTPUT = (
    "job.json", "measures.json", "test.json", "stop", "status.json", "output.txt"
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A run of a study and its folder."""

    setting: Setting
    seed: int
    folder: Path

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def study_folder(self) -> Path:
        return self.folder.parents[1]

    @property
    def spec(self) -> RunSpec:
        return dataclasses.replace(self.setting.run, seed=self.seed)

    def write_job(self, study: StudySpec, threads: int) -> None:
        """Write what the worker needs."""
        make_folder(self.folder, within=self.study_folder)
        job = {
            "task": study.task,
            "spec": dataclasses.asdict(self.spec),
            "threads": threads,
            "devices": study.devices,
            "measures": dict(study.measures),
            "longer": study.longer,
            "callbacks": study.callbacks,
            "imports": {str(file.path): file.sha256 for file in IMPORTED.values()},
        }
        replace_file(self.folder / JOB, json.dumps(job, indent=2, ensure_ascii=False).encode() + b"\n")

    def status(self, study: StudySpec) -> str:
        """finished, diverged, stopped, failed, started or new."""
        result = self.result
        if result.get("status") == "finished" and self.read(MEASURES).get("wanted") == study.wanted:
            return "finished"
        if result.get("status") == "diverged":
            return "diverged"
        return str(self.read(STATUS).get("status", "started" if RunFolder(self.folder).exists else "new"))

    def value(self, study: StudySpec) -> float | None:
        """Value of the study's metric on validation; None where the cell has not finished, or has no such value."""
        if self.status(study) != "finished":
            return None
        return study.support.value(self.result["valid"], study.target)

    def reported_value(self, study: StudySpec, reported: Reported, split: str = "valid") -> float | None:
        """Value of a further metric on validation or test; None where it was not measured."""
        tested = self.read(TEST) if split == "test" else {}
        if not tested and (split == "test" or self.status(study) != "finished"):
            return None
        result = reported.find_result(tested or self.result["valid"], tested or self.read(MEASURES))
        return study.support.value(result, reported.base) if isinstance(result, dict) else None

    def is_tested(self, study: StudySpec) -> bool:
        """Whether it has test scores, with all that the study measures, of the test split as it is now."""
        if not self.has_test_scores(study):
            return False
        try:
            return self.read(TEST).get("digest") in (None, digest_of_test(study.task, self.spec))
        except AnaphorError:  # the split is gone, and the scores stay
            return True

    def has_test_scores(self, study: StudySpec) -> bool:
        """The same of the test split as it was, which is not opened for this."""
        found = self.read(TEST)
        return bool(found) and found.get("wanted", study.wanted) == study.wanted

    @property
    def result(self) -> dict[str, Any]:
        return read_json(RunFolder(self.folder).result)

    def read(self, name: str) -> dict[str, Any]:
        return read_json(self.folder / name)

    def read_validations(self) -> list[dict[str, Any]]:
        """The lines of its metrics with a validation; none where the file is damaged, which costs no result."""
        try:
            lines = RunFolder(self.folder).read_metrics()
        except DataError:
            return []
        return [line for line in lines if isinstance(line.get("valid"), dict)]

    def write_status(self, status: str, reason: str) -> None:
        """Record why there is no result."""
        content = json.dumps({"status": status, "reason": reason}).encode() + b"\n"
        replace_file(self.folder / STATUS, content, within=self.study_folder)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a cell; empty where it is missing or damaged, because it can be written again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_damaged(result: Path) -> bool:
    """Whether the result of a run is there but says nothing. Every result has a status."""
    return result.exists() and "status" not in read_json(result)


def make_cell(setting: Setting, seed: int, folder: Path, task: str, threads: int) -> Cell:
    """The folder's name is a digest of settings, data, initial weights, code, a user's own files, device, torch and
    threads."""
    device = choose_device("auto").type if setting.run.device == "auto" else setting.run.device
    parts = {
        "task": task,
        "spec": dataclasses.asdict(dataclasses.replace(setting.run, seed=seed, device=device)),
        "data": dict(data_digests(task, setting.run)),
        "code": code_version(),
        "imports": sorted(file.sha256 for file in files_used_by(task, vars(setting.run))),
        "torch": torch.__version__,
        "threads": threads,
    }
    if (init := getattr(setting.run, "init", None)) is not None:
        parts["init"] = weights_digest(init)
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return Cell(setting, seed, folder / key)


DIGESTS: dict[Any, Mapping[str, str]] = {}
"""By task and data settings, since many settings share their data."""


def data_digests(task: str, spec: RunSpec) -> Mapping[str, str]:
    """SHA-256 of train and valid. The test split is not opened."""
    support = find_support(TASKS[task])
    key = (task, support.data_key(spec))
    if key not in DIGESTS:
        data = support.open_data(spec)
        if data is None:
            DIGESTS[key] = build_experiment(spec).fingerprint()["data"]
        else:
            DIGESTS[key] = {split: data.digest(split) for split in ("train", "valid")}
    return DIGESTS[key]


def digest_of_test(task: str, spec: RunSpec) -> str | None:
    """SHA-256 of the test split, for scores that were made after the selection was frozen; None: it is not known."""
    support = find_support(TASKS[task])
    key = (task, support.data_key(spec), "test")
    if key not in DIGESTS:
        data = support.open_data(spec)
        DIGESTS[key] = {} if data is None else {"test": data.digest("test")}
    return DIGESTS[key].get("test")


@cache
def weights_digest(init: str) -> str:
    """Digest of initial weights: the files of a folder of transformers, or the manifests of a run's checkpoints."""
    folder = user_path(init)
    if not folder.is_dir():
        raise ConfigError(f"init={init}: there is no such folder")
    files = [folder / name for name in ("config.json", "tokenizer.json") if (folder / name).is_file()]
    files += sorted(folder.glob("*.safetensors"))
    if RunFolder(folder).exists:
        files = sorted(RunFolder(folder).checkpoints.glob("*/manifest.json"))
    if not files:
        raise ConfigError(f"init={init}: there is no run in this folder, and no config.json of transformers")
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@cache
def code_version() -> str:
    """Digest of all code that may change a result. Comments and docstrings do not count."""
    package = Path(__file__).parents[1]
    files = [path for name in CODE for path in ([package / name] if "." in name else (package / name).rglob("*.py"))]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(package).as_posix()}\0{normalize_code(path.read_text('utf-8'))}\0".encode())
    return digest.hexdigest()


def normalize_code(source: str) -> str:
    """The syntax tree of a module without docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not _is_string(statement)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_string(statement: ast.stmt) -> bool:
    """Whether a statement is a bare string, such as a docstring: it has no effect."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
