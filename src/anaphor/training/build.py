"""Build what a spec describes: its experiment, and the step that trains it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anaphor.config import look_up
from anaphor.cuda_graphs import allows_capture
from anaphor.errors import ConfigError
from anaphor.metrics.result import find_metric
from anaphor.registry import TASKS, import_object
from anaphor.training.checkpoint import newest_first
from anaphor.training.device import autocast_of
from anaphor.training.experiment import Experiment
from anaphor.training.optimizers import OptimizerSpec, build_optimizer
from anaphor.training.paths import find_init, recorded_data_path
from anaphor.training.run_folder import RunFolder
from anaphor.training.schedule import ScheduleSpec
from anaphor.training.spec import RunSpec
from anaphor.training.step import CUDAGraphStep, Step
from anaphor.training.task import TaskDefinition
from anaphor.user_paths import user_path


def task_of(spec: RunSpec) -> TaskDefinition:
    """The definition of the task that a spec is for."""
    task: TaskDefinition = look_up(TASKS, spec.task, "task")
    return task


def check_settings(spec: RunSpec) -> None:
    """Raise for what the optimizer or the schedule would refuse, without building them."""
    OptimizerSpec.of(spec)
    ScheduleSpec.of(spec)
    find_metric(task_of(spec).metrics, spec.select)


def build_experiment(spec: RunSpec, saved: dict[str, Any] | None = None, data_path: str | None = None) -> Experiment:
    """Open the data and build the model. For an existing run, `saved` has its fingerprint and `data_path` says where
    its data were; then data are opened when a split is first read."""
    experiment = import_object(task_of(spec).build)(spec, saved, data_path)
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"task {spec.task!r}: its build gives a {type(experiment).__name__}, not an Experiment")
    return experiment


def rebuild_experiment(spec: RunSpec, folder: RunFolder) -> Experiment:
    """The experiment of a run that is resumed. Where the pretrained weights that it started from are gone, its own take
    their place until the checkpoint is loaded: the model and the tokenizer that came with them are those of the run."""
    given: Any = spec
    data_path = recorded_data_path(folder, spec)
    init = find_init(spec, folder)
    if init is not None and not user_path(init).is_dir() and next(newest_first(folder.checkpoints), None) is not None:
        init = str(folder.folder)
    if init is None or init == given.init:
        return build_experiment(spec, data_path=data_path)
    experiment = build_experiment(replace(given, init=init), data_path=data_path)
    built: Any = experiment.spec
    experiment.spec = replace(built, init=given.init)
    return experiment


def build_step(experiment: Experiment) -> Step:
    """The training step of an experiment: a CUDA graph where there is a GPU and the optimizer allows it."""
    spec, device = experiment.spec, experiment.device
    captured = spec.cuda_graph and device.type == "cuda" and allows_capture(experiment.model)
    optimizer = build_optimizer(OptimizerSpec.of(spec), experiment.model, captured=captured)
    kind = CUDAGraphStep if optimizer.captured else Step
    return kind(experiment, optimizer, clip=spec.clip, autocast=autocast_of(spec.dtype, device))
