"""Train from Python: what `anaphor train` does, with flags as keywords."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from anaphor.config import check_fields, look_up
from anaphor.errors import ConfigError, print_warning
from anaphor.imported_files import import_file, suggest_imports
from anaphor.plain_values import plain_value
from anaphor.progress import Bar, SecondBar
from anaphor.progress_listener import progress_listener
from anaphor.registry import TASKS
from anaphor.training import load
from anaphor.training.callbacks import Callback, check_callback
from anaphor.training.device import check_hardware
from anaphor.training.known_names import check_names
from anaphor.training.launch import read_launch
from anaphor.training.load import BEST, Run, Warn
from anaphor.training.loop import train_run
from anaphor.training.options import TrainOptions, require_folder
from anaphor.training.paths import locate_paths
from anaphor.training.run_folder import RunFolder, unused_folder
from anaphor.training.spec import RunSpec, merge_settings, read_base_settings
from anaphor.training.start_lines import describe_plan
from anaphor.training.task import TaskDefinition, recipe_file
from anaphor.training.trusted_data import refuse_untrusted_config
from anaphor.typecheck import check_value, checks_arguments

if TYPE_CHECKING:
    from anaphor.data.pairs import PairTokenizers
    from anaphor.data.tokenizer import Tokenizer
    from anaphor.models import ImageClassifier, LanguageModel, Seq2Seq, TextEncoder
    from anaphor.tasks.classify import ClassifyRunSpec
    from anaphor.tasks.classify.experiment import ClassifyExperiment
    from anaphor.tasks.images import ImageRunSpec
    from anaphor.tasks.images.experiment import ImageExperiment
    from anaphor.tasks.lm import LanguageRunSpec
    from anaphor.tasks.lm.experiment import LanguageModelExperiment
    from anaphor.tasks.translate import TranslationRunSpec
    from anaphor.tasks.translate.experiment import TranslationExperiment

    LanguageRun: TypeAlias = Run[LanguageModel, Tokenizer, LanguageModelExperiment, LanguageRunSpec]
    TranslationRun: TypeAlias = Run[Seq2Seq, PairTokenizers, TranslationExperiment, TranslationRunSpec]
    ImageRun: TypeAlias = Run[ImageClassifier, Any, ImageExperiment, ImageRunSpec]
    TextRun: TypeAlias = Run[TextEncoder, Tokenizer, ClassifyExperiment, ClassifyRunSpec]

OPTIONS = ("resume", "force", "overwrite", "no_test", "tensorboard", "log", "save_minutes", "threads")
"""Flags of `anaphor train` that are no settings of a run."""


@overload
def train(
    task: Literal["lm"],
    *,
    out: Path | str | None = None,
    recipe: str | None = None,
    config: Path | str | None = None,
    imports: Iterable[Path | str] = (),
    progress: bool = True,
    callback: Callback | None = None,
    callbacks: Iterable[Callback | str] = (),
    **flags: Any,
) -> LanguageRun: ...


@overload
def train(
    task: Literal["translate"],
    *,
    out: Path | str | None = None,
    recipe: str | None = None,
    config: Path | str | None = None,
    imports: Iterable[Path | str] = (),
    progress: bool = True,
    callback: Callback | None = None,
    callbacks: Iterable[Callback | str] = (),
    **flags: Any,
) -> TranslationRun: ...


@overload
def train(
    task: Literal["images"],
    *,
    out: Path | str | None = None,
    recipe: str | None = None,
    config: Path | str | None = None,
    imports: Iterable[Path | str] = (),
    progress: bool = True,
    callback: Callback | None = None,
    callbacks: Iterable[Callback | str] = (),
    **flags: Any,
) -> ImageRun: ...


@overload
def train(
    task: Literal["classify"],
    *,
    out: Path | str | None = None,
    recipe: str | None = None,
    config: Path | str | None = None,
    imports: Iterable[Path | str] = (),
    progress: bool = True,
    callback: Callback | None = None,
    callbacks: Iterable[Callback | str] = (),
    **flags: Any,
) -> TextRun: ...


@overload
def train(
    task: str,
    *,
    out: Path | str | None = None,
    recipe: str | None = None,
    config: Path | str | None = None,
    imports: Iterable[Path | str] = (),
    progress: bool = True,
    callback: Callback | None = None,
    callbacks: Iterable[Callback | str] = (),
    **flags: Any,
) -> Run: ...


@checks_arguments
def train(
    task: str,
    *,
    out: Path | str | None = None,
    recipe: str | None = None,
    config: Path | str | None = None,
    imports: Iterable[Path | str] = (),
    progress: bool = True,
    callback: Callback | None = None,
    callbacks: Iterable[Callback | str] = (),
    **flags: Any,
) -> Run:
    """Train a model: `train("lm", data="grammar", model="lstm", epochs=2)`.

    Args:
        task: What is trained: lm, translate, images, classify, or a task of your own.
        out: Folder of the run; a new one below `runs` if not given.
        recipe: Recipe with the settings that are not given.
        config: File with the settings that are not given.
        imports: Python files that register parts of your own.
        progress: Show a bar on stderr.
        callback: Called at every step and validation, in place of the bar.
        callbacks: Called beside the bar: objects, or "FILE.py:Class" as `--callback` has it.
        **flags: All other flags of `anaphor train TASK`: the settings of the task, and `resume`, `force`, `overwrite`,
            `no_test`, `tensorboard`, `log`, `save_minutes` and `threads`.

    Returns:
        The finished run, loaded with its best weights. Where `minutes` end before it is scored, it has no `result`, and
        a warning says so; `resume=True` scores it.
    """
    start = time.monotonic()
    files = tuple(import_file(path) for path in imports)
    given = {name: flags[name] for name in OPTIONS if name in flags}
    settings = {name: value for name, value in flags.items() if name not in OPTIONS}
    check_value("no_test", no_test := given.pop("no_test", False), "bool")
    options = TrainOptions(
        **given, trust="data" in settings, test=not no_test, start=start, imports=files, callbacks=tuple(callbacks)
    )
    with ExitStack() as stack:
        stack.enter_context(suggest_imports(config))
        definition: TaskDefinition = look_up(TASKS, task, "task")
        require_folder(out, options.resume)
        if callback is not None:
            check_callback(callback)
        file = _settings_file(definition, recipe, config, out if options.resume else None)
        spec = make_spec(definition, file, settings)
        if recipe is not None and file is not None:
            check_hardware(recipe, file, spec.device)
        if config is not None and not options.resume:
            spec = locate_paths(spec, Path(config), settings)
            check_names(definition, spec)
            if "data" not in settings:
                refuse_untrusted_config(spec, Path(config))
        folder = unused_folder(spec.model) if out is None else Path(out)
        if callback is None and progress and (launch := read_launch()).is_first:
            if not (options.resume or options.overwrite or launch.restarts):
                RunFolder(folder).refuse_existing()
            bar = stack.enter_context(Bar("training", definition))
            bar.inform(describe_plan(spec))
            options = replace(options, inform=bar.inform)
            stack.enter_context(progress_listener(SecondBar(bar)))
            callback = bar
        result, _ = train_run(spec, folder, callback, options)
        folder = Path(result["run"])  # the one of the first process
    if result["status"] == "stopped" and "valid" not in result:  # else the minutes were over before it was scored
        raise KeyboardInterrupt(f"training was stopped by a signal; resume with train({task!r}, resume=True, out=…)")
    return load.load_run(folder, device=spec.device)


@overload
def load_run(
    folder: Path | str,
    *,
    task: Literal["lm"],
    device: str = "auto",
    threads: int | None = None,
    force: bool = False,
    trust: bool = False,
    checkpoint: str | int = BEST,
    warn: Warn = print_warning,
) -> LanguageRun: ...


@overload
def load_run(
    folder: Path | str,
    *,
    task: Literal["translate"],
    device: str = "auto",
    threads: int | None = None,
    force: bool = False,
    trust: bool = False,
    checkpoint: str | int = BEST,
    warn: Warn = print_warning,
) -> TranslationRun: ...


@overload
def load_run(
    folder: Path | str,
    *,
    task: Literal["images"],
    device: str = "auto",
    threads: int | None = None,
    force: bool = False,
    trust: bool = False,
    checkpoint: str | int = BEST,
    warn: Warn = print_warning,
) -> ImageRun: ...


@overload
def load_run(
    folder: Path | str,
    *,
    task: Literal["classify"],
    device: str = "auto",
    threads: int | None = None,
    force: bool = False,
    trust: bool = False,
    checkpoint: str | int = BEST,
    warn: Warn = print_warning,
) -> TextRun: ...


@overload
def load_run(
    folder: Path | str,
    *,
    task: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    force: bool = False,
    trust: bool = False,
    checkpoint: str | int = BEST,
    warn: Warn = print_warning,
) -> Run: ...


def load_run(folder: Path | str, *, task: str | None = None, **options: Any) -> Run:
    """A run with the best weights that can be read, or those of another checkpoint. The global random state is left
    alone.

    Args:
        folder: The folder of the run.
        task: The task that it must be of; type checkers then know its model and tokenizer.
        **options: `device`: where the model is put, auto, cpu or cuda; `checkpoint`: which weights, `best` (by
            validation), `last`, or the step of a checkpoint that is there; `threads`: CPU threads of this process from
            now on; `force`: accept an imported file that was edited since the run was trained; `trust`: the run is your
            own, read the data that it names wherever it was trained; `warn`: is called with each warning.
    """
    run = load.load_run(folder, **options)
    if task is not None and run.spec.task != task:
        raise ConfigError(f"{folder} was trained by `train {run.spec.task}`, and task={task!r} was asked for")
    return run


def execute(
    spec: RunSpec, out: Path | str, callback: Callback | None = None, **options: Any
) -> tuple[dict[str, Any], int]:
    """Train from a spec.

    Args:
        spec: The settings.
        out: Folder of the run.
        callback: Called at every step and validation.
        **options: Those of `anaphor.training.options.TrainOptions`: `resume`, `force`, `overwrite`, `test` and others.

    Returns:
        The result, as `result.json` has it, and an exit code: 0, or 128 + N after signal N.
    """
    return train_run(spec, out, callback, TrainOptions(**options))


def make_spec(task: TaskDefinition, file: Path | None, settings: dict[str, Any]) -> RunSpec:
    """The spec of a run: settings over a file over the defaults."""
    check_fields(task.run_spec, settings, f"train({task.name!r})")
    settings = {name: plain_value(value) for name, value in settings.items()}
    base = {} if file is None else read_base_settings(task.run_spec, file, settings)
    return task.run_spec(**merge_settings(task.run_spec, base, settings))


def _settings_file(
    task: TaskDefinition, recipe: str | None, config: Path | str | None, resumed: Path | str | None
) -> Path | None:
    if recipe is not None and config is not None:
        raise ConfigError(f"recipe={recipe!r} and config={str(config)!r}: give one of them")
    if recipe is not None:
        return recipe_file(recipe, task)
    if config is not None:
        return Path(config)
    if resumed is not None:
        RunFolder(Path(resumed)).require()
        return RunFolder(Path(resumed)).spec
    return None
