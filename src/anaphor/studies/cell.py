"""A cell: one setting with one seed, trained in a folder of its own, called after all that decides its result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anaphor.data.dataset import PAIR_COLUMNS, TEXT_COLUMNS
from anaphor.data.datasets import open_dataset
from anaphor.studies.spec import METRICS, Setting, StudySpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training.files import replace_file
from anaphor.training.run_folder import RunFolder
from anaphor.training.spec import RunSpec

# A change in one of these may change a result; drawing, commands and studies do not.
DECIDING = ("mixers", "models", "data", "metrics", "evaluation.py", "generate.py", "tasks", "training")

JOB, MEASURES, TEST, STOP, ENDED, OUTPUT = (
    "job.json", "measures.json", "test.json", "stop", "ended.json", "output.txt"
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Where a run of a study lies, and what it is."""

    setting: Setting
    seed: int
    folder: Path

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def spec(self) -> RunSpec:
        return dataclasses.replace(self.setting.run, seed=self.seed)

    def write_job(self, study: StudySpec, threads: int) -> None:
        """Leave word for the worker."""
        self.folder.mkdir(parents=True, exist_ok=True)
        job = {
            "task": study.task,
            "spec": dataclasses.asdict(self.spec),
            "threads": threads,
            "measures": measures_of(study),
        }
        replace_file(self.folder / JOB, json.dumps(job, indent=2, ensure_ascii=False).encode() + b"\n")

    def status(self, study: StudySpec) -> str:
        """finished, diverged, stopped, failed, begun or new."""
        result = self.read(RunFolder(self.folder).result.name)
        if result.get("status") == "finished" and self.read(MEASURES).get("wanted") == measures_of(study):
            return "finished"
        if result.get("status") == "diverged":
            return "diverged"
        return str(self.read(ENDED).get("status", "begun" if RunFolder(self.folder).exists else "new"))

    def value(self, study: StudySpec) -> float | None:
        """What it is judged by; None where it has not finished, or was not measured so. Where it saw later tokens it
        has no perplexity, and is judged by what its loss would make one."""
        if self.status(study) != "finished":
            return None
        return value_of(self.read(RunFolder(self.folder).result.name)["valid"], study.metric)

    def read(self, name: str) -> dict[str, Any]:
        return read_json(self.folder / name)

    def end(self, status: str, reason: str) -> None:
        """Remember why there is no result."""
        replace_file(self.folder / ENDED, json.dumps({"status": status, "reason": reason}).encode() + b"\n")


def value_of(score: Mapping[str, Any], metric: str) -> float | None:
    """What a score on validation is judged by; None where it was not measured so."""
    name = metric.partition(".")[2]
    if score.get(name) is not None:
        return float(score[name])
    if score["loss"] is None:
        return math.inf if METRICS[metric] == "minimize" else None
    if name != "perplexity":
        return None
    return math.exp(score["loss"]) if score["loss"] < 700 else math.inf


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a cell; nothing where there is none, or where it is damaged: then it is made again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def measures_of(study: StudySpec) -> dict[str, Any]:
    """What a worker measures besides the validation score."""
    return {
        "train": study.train_score,
        "lengths": list(study.lengths),
        "samples": dict(study.samples),
        "long_lines": study.long_lines,
    }


def make_cell(setting: Setting, seed: int, folder: Path, task: str, threads: int) -> Cell:
    spec = dataclasses.asdict(dataclasses.replace(setting.run, seed=seed))
    parts = {"task": task, "spec": spec, "data": digests_of(setting.run), "code": code_version(), "threads": threads}
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return Cell(setting, seed, folder / key)


def digests_of(spec: RunSpec) -> Mapping[str, str]:
    """What train and valid hold. The test split is not opened."""
    if isinstance(spec, TranslationRunSpec):
        return digests(spec.data, PAIR_COLUMNS, spec.source, spec.target)
    return digests(spec.data, TEXT_COLUMNS)


@cache
def digests(
    data: str, columns: tuple[str, ...], source: str | None = None, target: str | None = None
) -> Mapping[str, str]:
    dataset = open_dataset(data, columns, source=source, target=target)
    return {split: dataset.digest(split) for split in ("train", "valid")}


@cache
def code_version() -> str:
    """A digest of all code that can change a result, so that an old result is not taken for a new one."""
    package = Path(__file__).parents[1]
    files = [
        path for name in DECIDING for path in ([package / name] if "." in name else (package / name).rglob("*.py"))
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
