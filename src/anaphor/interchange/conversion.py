"""Conversion: a folder of `transformers` as a run, and a run as such a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.nn.utils import parametrize

from anaphor.errors import ConfigError, DataError, print_warning
from anaphor.interchange.pretrained import read_pretrained, write_pretrained
from anaphor.registry import TASKS, import_object
from anaphor.training import checkpoint
from anaphor.training.build import build_experiment, task_of
from anaphor.training.device import describe_environment
from anaphor.training.load import Run, load_run
from anaphor.training.pretrained import Interchange, Pretrained
from anaphor.training.progress import Progress
from anaphor.training.run_folder import RunFolder
from anaphor.training.spec import RunSpec
from anaphor.training.spec_file import collect_settings, spec_document
from anaphor.typecheck import checks_arguments
from anaphor.user_paths import user_path


@checks_arguments
def convert(
    folder: Path | str, out: Path | str, *, overwrite: bool = False, warn: Callable[[str], None] = print_warning
) -> Run:
    """Read a folder of `transformers` and write it as a run, which every verb takes."""
    pretrained = read_pretrained(folder)
    for line in pretrained.warnings:
        warn(line)
    spec, saved = _settings(pretrained, folder)
    run_folder = RunFolder(user_path(Path(out)))
    with run_folder.lock():
        if run_folder.exists and not overwrite:
            raise ConfigError(
                f"{run_folder.folder} already holds a run: replace it with --overwrite, or choose another --out"
                f"{run_folder.describe_previous()}"
            )
        experiment = build_experiment(spec, {**saved, "data": {}})
        experiment.model.load_state_dict(pretrained.model.state_dict())
        metadata = {
            "spec": collect_settings(experiment),
            **saved,
            "data": {},
            "test": False,
            "environment": describe_environment(experiment.device, spec.dtype, experiment.model),
            "imports": [],
        }
        run_folder.create(spec_document(spec, metadata))
        checkpoint.write(
            run_folder.checkpoints,
            0,
            {"model": experiment.model.state_dict()},
            {**metadata, "progress": asdict(Progress())},
        )
        run_folder.delete_previous()
        parameters = sum(weight.numel() for weight in experiment.model.parameters())
        run_folder.write_result(
            {
                "status": "converted",
                "run": str(out),
                "source": str(folder),
                "kind": pretrained.kind,
                "parameters": parameters,
            }
        )
    return load_run(out, device=spec.device)


def _settings(pretrained: Pretrained, folder: Path | str) -> tuple[RunSpec, Mapping[str, Any]]:
    _check_head(pretrained, folder)
    for name in TASKS:
        reference = TASKS[name].interchange
        interchange: Interchange | None = None if reference is None else import_object(reference)
        if interchange is not None and (found := interchange.settings(pretrained)) is not None:
            return found
    raise DataError(f"{folder}: no task has a model of the kind {pretrained.kind!r}")


def _check_head(pretrained: Pretrained, folder: Path | str) -> None:
    """Refuse a head whose outputs are not the classes of a softmax: its predictions would be wrong."""
    if pretrained.classes is None:
        return
    is_other = pretrained.problem_type in ("regression", "multi_label_classification")
    reason = f"problem_type={pretrained.problem_type!r}" if is_other else "one output"
    if is_other or len(pretrained.classes) == 1:
        raise DataError(
            f"{folder}: its head has {reason}, so it does not choose one of several classes; only such heads can "
            f"be converted (`train classify --init` starts from its other weights)"
        )


@checks_arguments
def export(run: Path | str, out: Path | str, *, overwrite: bool = False, force: bool = False) -> list[Path]:
    """Write a run as a folder of `transformers`, where one of its classes computes exactly the same. Returns the paths
    of the files. `force` accepts an imported file that was edited since the run was trained."""
    folder = user_path(Path(out))
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another --out, or replace its files with --overwrite")
    loaded = load_run(run, device="cpu", force=force)
    reference = task_of(loaded.spec).interchange
    if reference is None:
        raise ConfigError(
            f"{run} cannot be exported: transformers has no class for models of `train {loaded.spec.task}`"
        )
    for part in list(loaded.model.modules()):
        if parametrize.is_parametrized(part, "weight"):  # adapters become part of what they adapt
            parametrize.remove_parametrizations(part, "weight")
    try:
        return write_pretrained(import_object(reference).pretrained(loaded.experiment), folder)
    except ConfigError as error:
        raise ConfigError(f"{run} cannot be exported: {error}") from None
