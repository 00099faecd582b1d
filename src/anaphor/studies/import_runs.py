"""Runs that were trained elsewhere as cells of a study, so that they can be measured without training."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anaphor.errors import ConfigError, DataError
from anaphor.files import delete, rename
from anaphor.studies.axes import Axis
from anaphor.studies.cell import JOB, MEASURES, STATUS, TEST, Cell, make_cell, read_json
from anaphor.studies.spec import StudySpec
from anaphor.studies.study_file import list_presets, read_study
from anaphor.training.run_folder import NO_DATA, STUDY, RunFolder
from anaphor.training.spec import RunSpec, read_run_spec

STUDY_FILES = (JOB, MEASURES, TEST, STATUS)  # files of a cell that belong to its study


def find_runs(folder: Path) -> list[Path]:
    """The run in a folder, or all seeds of the setting that the study in the folder selected."""
    if RunFolder(folder).exists:
        if RunFolder(folder).read_settings().get("data") == NO_DATA:
            raise ConfigError(f"{folder} was converted and has no data of its own: --of is for runs that were trained")
        return [folder]
    if not (_is_sealed(folder) or (folder / STUDY).is_file()):
        raise ConfigError(f"{folder} has neither a run nor a study that has selected a setting")
    result = read_json(folder / "result.json")
    try:
        # By their names: the study may have been moved, or its path is from another current folder.
        compared = [cell for cell in result["cells"] if cell.get("chosen", True)]  # without those that only tuned
        cells = [(folder / "cells" / Path(cell["run"]).name, cell["parameters"]) for cell in compared]
        best = result["best"]
        chosen = None if best is None else best["parameters"]
    except (LookupError, TypeError):
        raise DataError(
            f"{folder / 'result.json'} is missing or damaged: run the study again, which keeps what it has trained"
        ) from None
    if chosen is None:
        raise DataError(f"the study in {folder} selected nothing: no setting of it finished")
    return [run for run, parameters in cells if parameters == chosen]


def read_study_of(folder: Path, path: Path) -> StudySpec:
    """The study of a file, for the runs in a folder only. Test is evaluated only if the runs were."""
    spec = read_study(path)
    if not _measures_more(spec):
        listed = ", ".join(name for name, path in list_presets().items() if _measures_more(read_study(path)))
        raise ConfigError(
            f"study {spec.name!r} compares settings, and one run has only one: --of is for studies that measure more "
            f"({listed})"
        )
    specs = [_read_spec(spec, run) for run in find_runs(folder)]
    spec = read_study(path, data=specs[0].data)
    base: Mapping[str, Any] = {name: value for name, value in vars(specs[0]).items() if name != "seed"}
    return replace(
        spec,
        base=base,
        method="grid",
        listed=(),
        tune=(),
        match={},
        tune_seeds=None,
        parameters=(Axis("model", (specs[0].model,), ({},)),),
        seeds=tuple(sorted(run.seed for run in specs)),
        test=spec.test if _was_tested(folder) else "none",
    )


def _read_spec(spec: StudySpec, run: Path) -> RunSpec:
    task = RunFolder(run).read_task().name
    if task != spec.task:
        raise ConfigError(f"the run in {run} was trained by `train {task}`, and study {spec.name!r} is for {spec.task}")
    return read_run_spec(spec.definition.run_spec, RunFolder(run).spec)


def _measures_more(spec: StudySpec) -> bool:
    return any(spec.measures.values())


def _was_tested(folder: Path) -> bool:
    """Whether test was evaluated, for this run or by this study."""
    if not RunFolder(folder).exists:
        return _is_sealed(folder)
    return RunFolder(folder).read_result().get("test") is not None


def _is_sealed(study: Path) -> bool:
    """Whether a study has evaluated what it selected on test, or is about to; one without test is never frozen."""
    return (study / "seal.json").is_file()


def import_runs(spec: StudySpec, cells_folder: Path, folder: Path, threads: int) -> list[Cell]:
    """Copy finished runs to the cells of a study, which then does not train them."""
    (setting,) = spec.settings()
    cells = []
    for run in find_runs(folder):
        if RunFolder(run).read_result().get("status") != "finished":
            raise DataError(f"the run in {run} did not finish: resume it first")
        cell = make_cell(setting, _read_spec(spec, run).seed, cells_folder, spec.task, threads)
        if cell.result.get("status") != "finished":
            copy_run(run, cell.folder)
        cells.append(cell)
    return cells


def copy_run(run: Path, target: Path) -> None:
    """Copy a run completely or not at all, without the files of the study that it came from."""
    for path in run.rglob("*"):
        if path.is_symlink():
            raise DataError(f"{path} is a link: what it leads to is not copied; put a copy in its place")
    draft, study = target.with_name(f"{target.name}.tmp"), target.parents[1]
    delete(draft, within=study)  # of an interrupted copy
    shutil.copytree(run, draft, ignore=shutil.ignore_patterns(*STUDY_FILES))
    delete(target, within=study)  # an unfinished cell
    rename(draft, target, within=study)
