"""Runs that were trained elsewhere become cells of a study, so that a question about them trains nothing anew."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anaphor.config import read_mapping
from anaphor.errors import ConfigError, DataError
from anaphor.flags import from_yaml
from anaphor.studies.axes import Axis
from anaphor.studies.cell import ENDED, JOB, MEASURES, TEST, Cell, make_cell, read_json
from anaphor.studies.presets import presets
from anaphor.studies.spec import TASKS, StudySpec, read_study
from anaphor.training.run_folder import RunFolder

ASKED = (JOB, MEASURES, TEST, ENDED)  # files of a cell that belong to the study which asked for them


def runs_of(folder: Path) -> list[Path]:
    """The run of that folder, or all seeds of what the study of that folder chose."""
    if RunFolder(folder).exists:
        return [folder]
    if not (folder / "seal.json").is_file():
        raise ConfigError(f"{folder} holds neither a run nor a study that has made its choice")
    result = read_json(folder / "result.json")
    try:
        best, cells = result["best"], [(Path(cell["run"]), cell["parameters"]) for cell in result["cells"]]
        chosen = None if best is None else best["parameters"]
    except (LookupError, TypeError):
        raise DataError(
            f"{folder / 'result.json'} is missing or damaged: run the study once more, which trains nothing that is "
            f"finished and writes it anew"
        ) from None
    if chosen is None:
        raise DataError(f"the study in {folder} chose nothing: no setting of it finished")
    return [run for run, parameters in cells if parameters == chosen]


def study_of(folder: Path, path: Path) -> StudySpec:
    """What the study of that file asks, of those runs alone and for their data. A run that kept off the test split is
    not scored there either."""
    asked = read_study(path)
    if not takes_runs(vars(asked)):
        known = ", ".join(name for name, path in presets().items() if takes_runs(read_mapping(path)))
        raise ConfigError(
            f"study {asked.name!r} compares settings, and one run has only one: --of is for studies that measure more "
            f"of each model ({known})"
        )
    specs = [from_yaml(TASKS[asked.task], RunFolder(run).spec) for run in runs_of(folder)]
    asked = read_study(path, data=specs[0].data)
    base = {name: value for name, value in vars(specs[0]).items() if name != "seed"}
    only = Axis("model", (specs[0].model,), ({},))
    return replace(
        asked,
        base=base,
        method="grid",
        listed=(),
        parameters=(only,),
        seeds=tuple(sorted(spec.seed for spec in specs)),
        test=asked.test if was_tested(folder) else "none",
    )


def takes_runs(study: Mapping[str, Any]) -> bool:
    """Whether it asks something that the run itself did not measure."""
    return any(study.get(name) for name in ("lengths", "samples", "long_lines", "train_score"))


def was_tested(folder: Path) -> bool:
    """Whether the test split was read already, for this run or for what this study chose."""
    return not RunFolder(folder).exists or RunFolder(folder).read_result().get("test") is not None


def adopt(study: StudySpec, cells_folder: Path, folder: Path, threads: int) -> list[Cell]:
    """Copy the runs to where the study looks for its cells. They are finished, so they are not trained again."""
    (setting,) = study.settings()
    adopted = []
    for run in runs_of(folder):
        if RunFolder(run).read_result().get("status") != "finished":
            raise DataError(f"the run in {run} did not finish: there is nothing to look at")
        seed = from_yaml(TASKS[study.task], RunFolder(run).spec).seed
        cell = make_cell(setting, seed, cells_folder, study.task, threads)
        if read_json(RunFolder(cell.folder).result).get("status") != "finished":
            copy(run, cell.folder)
        adopted.append(cell)
    return adopted


def copy(run: Path, place: Path) -> None:
    """The whole run or nothing of it. What another study asked stays there; this one asks anew."""
    draft = place.with_name(f"{place.name}.tmp")
    if draft.exists():  # of a copy that was cut short
        shutil.rmtree(draft)
    shutil.copytree(run, draft, ignore=shutil.ignore_patterns(*ASKED))
    if place.exists():  # a cell that did not finish
        shutil.rmtree(place)
    draft.replace(place)
