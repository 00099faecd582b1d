"""Build the parts of a run from its spec: experiment, step, trainer; and its spec document with the values used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from anaphor.config import FORMAT, dump_yaml, in_sections, look_up, plain_value, settings_of, user_path
from anaphor.errors import ConfigError
from anaphor.metrics.result import find_metric
from anaphor.registry import TASKS, ImportedFile, extra_settings, resolve
from anaphor.training.averaging import build_average
from anaphor.training.checkpoint import newest_first
from anaphor.training.experiment import Experiment, autocast_of, describe_environment, get_batches, get_fingerprint
from anaphor.training.optimizers import OptimizerSpec, build_optimizer
from anaphor.training.run_folder import RunFolder, recorded_path, resolve_init
from anaphor.training.schedule import ScheduleSpec, build_schedule, make_budget
from anaphor.training.spec import BUDGETS, FineTuning, RunSpec, TaskDefinition
from anaphor.training.step import CUDAGraphStep, Step
from anaphor.training.trainer import Callback, LoopSettings, Trainer


def task_of(spec: RunSpec) -> TaskDefinition:
    """The definition of the task that a spec is for."""
    task: TaskDefinition = look_up(TASKS, spec.task, "task")
    return task


def build_experiment(spec: RunSpec, known: dict[str, Any] | None = None, data_path: str | None = None) -> Experiment:
    """Open the data and build the model. For an existing run, `known` has its fingerprint and `data_path` says where
    its data were; then data are opened when a split is first read."""
    experiment = resolve(task_of(spec).build)(spec, known, data_path)
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"task {spec.task!r}: its build gives a {type(experiment).__name__}, not an Experiment")
    return experiment


def rebuild_experiment(spec: RunSpec, folder: RunFolder, data_path: str | None) -> Experiment:
    """The experiment of a run that is resumed. Where the pretrained weights that it started from are gone, its own take
    their place until the checkpoint is loaded: the model and the tokenizer that came with them are those of the run."""
    given: Any = spec
    init = find_init(spec, folder)
    if init is not None and not user_path(init).is_dir() and next(newest_first(folder.checkpoints), None) is not None:
        init = str(folder.folder)
    if init is None or init == given.init:
        return build_experiment(spec, data_path=data_path)
    experiment = build_experiment(replace(given, init=init), data_path=data_path)
    built: Any = experiment.spec
    experiment.spec = replace(built, init=given.init)
    return experiment


def find_init(spec: RunSpec, folder: RunFolder) -> str | None:
    """The initial weights as they are found from here, for a new run or the one in the folder."""
    if not isinstance(spec, FineTuning) or spec.init is None or user_path(spec.init).is_dir():
        return getattr(spec, "init", None)
    return resolve_init(spec.init, kept_init_path(spec, folder))


def kept_init_path(spec: FineTuning, folder: RunFolder) -> str | None:
    """Where the initial weights of an existing run were, as long as the same ones are meant."""
    same = folder.exists and folder.read_settings().get("init") == spec.init
    return recorded_path(folder.read_environment(), "init_path") if same else None


def check_settings(spec: RunSpec) -> None:
    """Raise for what the optimizer or the schedule would refuse, without building them."""
    OptimizerSpec.of(spec)
    ScheduleSpec.of(spec)
    find_metric(task_of(spec).metrics, spec.select)


def build_step(experiment: Experiment) -> Step:
    """The training step of an experiment: a CUDA graph where there is a GPU and the optimizer allows it."""
    spec, device = experiment.spec, experiment.device
    captured = spec.cuda_graph and device.type == "cuda"
    optimizer = build_optimizer(OptimizerSpec.of(spec), experiment.model, captured=captured)
    kind = CUDAGraphStep if optimizer.capturable else Step
    return kind(experiment, optimizer, clip=spec.clip, autocast=autocast_of(spec.dtype, device))


def build_trainer(
    experiment: Experiment,
    folder: RunFolder,
    callback: Callback,
    stop: Callable[[], bool],
    *,
    save_minutes: float,
    save_only_model: bool = False,
    imports: Iterable[ImportedFile],
) -> Trainer:
    spec, task = experiment.spec, task_of(experiment.spec)
    steps_per_epoch = -(-len(get_batches(experiment, 0)) // spec.accumulate)
    return Trainer(
        experiment=experiment,
        step=build_step(experiment),
        schedule=build_schedule(ScheduleSpec.of(spec)),
        budget=make_budget(
            epochs=choose_epochs(spec), steps=spec.steps, minutes=spec.minutes, steps_per_epoch=steps_per_epoch
        ),
        settings=LoopSettings(
            lr=OptimizerSpec.of(spec).peak_lr,
            metric=find_metric(task.metrics, spec.select),
            counted=task.counted,
            accumulate=spec.accumulate,
            eval_every=spec.eval_every,
            patience=spec.patience,
            average_from=0.5 if spec.average == "tail" else 0.0,
            sample_seed=spec.seed,
            save_seconds=60 * save_minutes,
            save_only_model=save_only_model,
        ),
        folder=folder,
        callback=callback,
        facts={
            "spec": resolve_settings(experiment),
            **get_fingerprint(experiment),
            "test": True,
            "environment": describe_environment(experiment.device, spec.dtype),
            "imports": describe_imports(imports),
        },
        average=None if spec.average == "none" else build_average(spec.average, experiment.model),
        stop=stop,
    )


def resolve_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings of a run with the values that are used, flat and plain. Those that do not apply are left out, and so
    are those of an extra whose settings all have their defaults."""
    spec = experiment.spec
    values: dict[str, Any] = dict(vars(spec))
    values |= dict.fromkeys(("betas", "momentum", "min_lr_ratio", "plateau_factor"))
    values |= OptimizerSpec.of(spec).resolved() | ScheduleSpec.of(spec).resolved()
    values["epochs"] = choose_epochs(spec)
    values["select"] = find_metric(task_of(spec).metrics, spec.select).name
    values |= experiment.resolved_settings()
    for kind in extra_settings(spec.task):
        unused = vars(kind())
        if vars(settings_of(spec, kind)) == unused:  # the run can be read where the extra is missing
            values = {name: value for name, value in values.items() if name not in unused}
    return {name: plain_value(value) for name, value in values.items() if value not in (None, ())}


def choose_epochs(spec: RunSpec) -> float | None:
    """The budget in epochs, the default one where there is no other."""
    return spec.default_epochs if all(getattr(spec, name) is None for name in BUDGETS) else spec.epochs


def describe_imports(imports: Iterable[ImportedFile]) -> list[dict[str, str]]:
    return [{"file": str(file.path), "sha256": file.sha256} for file in imports]


def spec_document(trainer: Trainer, data_path: str | None) -> str:
    """`spec.yaml` of a run that is trained."""
    spec: Any = trainer.experiment.spec
    init = find_init(spec, trainer.folder)
    path = None
    if init is not None:
        folder = user_path(init)
        path = str(folder.absolute()) if folder.is_dir() else kept_init_path(spec, trainer.folder)
        path = None if path == spec.init else path
    return write_document(spec, trainer.facts, data_path=data_path, init_path=path)


def write_document(spec: RunSpec, facts: Mapping[str, Any], **paths: str | None) -> str:
    """`spec.yaml`: format, task, the settings in sections, and the environment, where some things were found, too."""
    document: dict[str, Any] = {"format": FORMAT, "task": spec.task, **in_sections(type(spec), facts["spec"])}
    found = {name: path for name, path in paths.items() if path is not None}
    document["environment"] = facts["environment"] | found
    if facts["imports"]:
        document["imports"] = facts["imports"]
    return dump_yaml(document)
