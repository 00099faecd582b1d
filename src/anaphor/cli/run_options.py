"""What verbs that use a trained run have in common: their options, the options of its task, and loading it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from anaphor.cli.imports import import_given
from anaphor.cli.train import import_torch, warn
from anaphor.config import compose_spec
from anaphor.errors import ConfigError
from anaphor.flags import Positional, asks_for_help, before_end, flags_of, parse, read_flags
from anaphor.registry import TASKS, import_object
from anaphor.training.run_folder import RunFolder

__all__ = ["RunOptions", "import_torch", "load_experiment", "parse_options", "parse_task_options", "warn"]

if TYPE_CHECKING:
    from anaphor.training.task import TaskDefinition

Common = TypeVar("Common", bound="RunOptions")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of every verb that uses a trained run."""

    run: Annotated[Path, Positional("RUN")]
    """Run folder."""
    checkpoint: str = "best"
    """Weights: best (by validation), last, or the step of a checkpoint."""
    device: str = "auto"
    """Device: auto, cpu or cuda."""
    threads: int | None = None
    """CPU threads (all cores if not given)."""
    imports: tuple[Path, ...] = field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers mixers, tasks or data sets of your own; may be given several times."""
    force: bool = False
    """Accept imported files that were edited since the run was trained."""
    trust: bool = False
    """The run is your own: read the data that it names, now and later, although it was trained elsewhere."""
    json: bool = False
    """Print one JSON value."""


def parse_options(verb: str, argv: Sequence[str], kind: type[Common]) -> Common:
    """Options of a verb that exists for one task."""
    import_given(argv)
    return parse(kind, argv, program=f"anaphor {verb}")


def parse_task_options(
    verb: str,
    argv: Sequence[str],
    common: type[Common],
    *,
    required: bool = False,
    extras: Callable[[str], tuple[type, ...]] = lambda task: (),
) -> tuple[TaskDefinition, Common]:
    """The common options of a verb, those that the task of the run has for it, and those of extras, in one object.

    Without a run, `--help` lists the options of all tasks.

    Args:
        verb: The verb.
        argv: The arguments after it.
        common: Options for runs of all tasks.
        required: Whether a run whose task has no options of its own is refused.
        extras: The settings classes that are registered for a task, by its name.
    """
    program = f"anaphor {verb}"
    import_given(argv)
    options = before_end(argv)
    folder = next((word for word in argv if os.path.isfile(os.path.join(word, "spec.yaml"))), None)
    if folder is None:
        every = _combine(common, *(part for name in TASKS for part in (_own_options(verb, name), *extras(name))))
        # Which other words are needed depends on the task: that there is no run is said first.
        found = {} if asks_for_help(argv) else read_flags(every, argv, program=program, over_file=True)
        folder = str(found["run"] if "run" in found else parse(every, argv, program=program).run)
    RunFolder(Path(folder)).check_imports(force="--force" in options, warn=lambda line: None)  # they may hold the task
    task = RunFolder(Path(folder)).read_task()
    own = _own_options(verb, task.name)
    if own is None and required:
        able = " or ".join(f"`train {name}`" for name in TASKS if getattr(TASKS[name], verb) is not None)
        raise ConfigError(f"{folder} is a run of `train {task.name}`, and `{verb}` is for runs of {able}")
    declared: Any = _combine(common, own)
    kind: type[Common] = compose_spec(declared, extras(task.name))
    names = _flag_names(kind)
    for argument in options:
        flag = argument[2:].partition("=")[0].removeprefix("no-")
        others = [name for name in TASKS if flag in _flag_names(_own_options(verb, name), *extras(name))]
        if argument.startswith("--") and flag not in names and others:
            able = " or ".join(f"`train {other}`" for other in others)
            raise ConfigError(f"--{flag} is for runs of {able}; {folder} is one of `train {task.name}`")
    return task, parse(kind, argv, program=program)


def _own_options(verb: str, task: str) -> Any:
    reference = getattr(TASKS[task], verb)
    return None if reference is None else import_object(reference)


def _flag_names(*options: Any) -> set[str]:
    return {flag.name for kind in options if kind is not None for flag in flags_of(kind).values()}


def _combine(common: type[Common], *own: Any) -> type[Common]:
    """One dataclass for all: positional arguments of the common options come first."""
    bases = tuple(dict.fromkeys(options for options in own if options is not None))
    combined: type[Common] = dataclasses.make_dataclass(
        common.__name__, [], bases=(*bases, common), namespace={"__doc__": common.__doc__}, frozen=True, kw_only=True
    )
    return combined


def load_experiment(options: RunOptions, folder: Path | None = None, task: str | None = None) -> Any:
    """The run with the weights that are asked for; another folder than RUN, with its best ones, where one is given. One
    of another task is refused."""
    checkpoint = options.checkpoint if folder is None else "best"
    folder = options.run if folder is None else folder
    if task is not None:
        RunFolder(folder).check_imports(force=options.force, warn=lambda line: None)
        if (found := RunFolder(folder).read_task().name) != task:
            raise ConfigError(f"{folder} is a run of `train {found}`: use one of `train {task}`")

    import_torch()
    from anaphor.training.load import load_run

    return load_run(
        folder, device=options.device, threads=options.threads, force=options.force, trust=options.trust,
        checkpoint=checkpoint, warn=warn,
    ).experiment  # fmt: skip
