"""`anaphor train TASK`: train one model, keep the best, score it."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anaphor.cli.imports import import_given
from anaphor.cli.table import for_terminal, print_score
from anaphor.config import look_up
from anaphor.draw import figure_lines
from anaphor.errors import ConfigError, count_noun
from anaphor.flags import asks_for_help, print_help, read_flags, split_argv
from anaphor.imported_files import ImportedFile, suggest_imports
from anaphor.plain_values import replace_nonfinite
from anaphor.progress import Bar, SecondBar
from anaphor.progress_listener import progress_listener
from anaphor.registry import TASKS, VERBS
from anaphor.training.known_names import check_names
from anaphor.training.launch import read_launch
from anaphor.training.options import TrainOptions, check_existing_run, require_folder
from anaphor.training.paths import locate_paths
from anaphor.training.run_folder import RunFolder, unused_folder
from anaphor.training.spec import RunSpec, merge_settings, read_base_settings
from anaphor.training.start_lines import describe_plan
from anaphor.training.task import TaskDefinition, recipe_file


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """The flags of a training command that are no settings: `TrainOptions`, and where settings come from."""

    out: Path | None = None
    """Folder of the run (a new one under runs/ if not given)."""
    recipe: str | None = None
    """Recipe with settings that are known to work; flags override it."""
    config: Path | None = None
    """File with settings, such as a run's spec.yaml; flags override it."""
    imports: tuple[Path, ...] = dataclasses.field(default=(), metadata={"flag": "import", "repeated": True})
    """Python file that registers parts of your own; may be given several times."""
    callbacks: tuple[str, ...] = dataclasses.field(default=(), metadata={"flag": "callback", "repeated": True})
    """FILE.py:Class, called at every step and validation; may be given several times."""
    resume: bool = False
    """Resume the run in --out from its last checkpoint, with its own settings."""
    force: bool = False
    """With --resume: resume although settings differ from the checkpoint."""
    overwrite: bool = False
    """Replace the run in --out; it is deleted."""
    save_minutes: float = 5.0
    """Minutes between checkpoints, in addition to those at validations."""
    threads: int | None = None
    """CPU threads (all cores, or those of the resumed run, if not given)."""
    no_test: bool = False
    """Do not read the test split."""
    no_kernels: bool = False
    """Run readable code in place of kernels written by hand for speed."""
    tensorboard: bool = False
    """Write TensorBoard events into the run's folder, as --log tensorboard does."""
    log: tuple[str, ...] = ()
    """Log the run with trackers: tensorboard, wandb, trackio or mlflow."""
    dry_run: bool = False
    """Build everything, print what would be trained, and stop."""
    json: bool = False
    """Print one JSON value; progress goes to stderr."""

    def __post_init__(self) -> None:
        check_existing_run(resume=self.resume, force=self.force, overwrite=self.overwrite)
        require_folder(self.out, self.resume)


def flags_class(task: TaskDefinition) -> Any:
    """Returns the class of all flags of `train`: its own and the settings of a task."""
    kind: Any = dataclasses.make_dataclass("Options", [], bases=(TrainFlags, task.run_spec), frozen=True, kw_only=True)
    kind.__doc__ = task.run_spec.__doc__
    command = f"anaphor train {task.name}"
    kind.help_examples = task.run_spec.help_examples or (f"{command} --epochs 1", f"{command} --dry-run")
    return kind


def run(argv: Sequence[str]) -> int:
    start = time.monotonic()
    if not argv or argv[0] in ("-h", "--help"):
        print(
            "examples:\n"
            "  anaphor train lm --data grammar --model lstm --epochs 1\n"
            "  anaphor train images --data shapes\n\n"
            f"usage: anaphor train {'|'.join(TASKS)} [OPTIONS]\n\n`anaphor train TASK --help` lists the options."
        )
        return 0
    if argv[0].startswith("-"):
        raise ConfigError("the task is missing: " + " or ".join(f"`anaphor train {task} {argv[0]}`" for task in TASKS))
    early, _ = split_argv(TrainFlags, argv[1:])  # which other flags there are depends on the task
    imports = import_given(argv[1:])
    with suggest_imports(early.get("config")):
        folder = early.get("out") if early.get("resume") else None
        if folder is not None and RunFolder(folder).exists:
            # Before the task is looked up: it may be one of the user's.
            RunFolder(folder).check_imports(force=early.get("force", False), warn=lambda line: None)
        return train(look_up(TASKS, argv[0], "task"), argv[1:], imports, start)


def train(task: TaskDefinition, argv: Sequence[str], imports: list[ImportedFile], start: float) -> int:
    flags, spec, given = read_command_line(task, argv)
    if flags.config is not None and not flags.resume:
        spec = locate_paths(spec, flags.config, given)
    out = flags.out or unused_folder(spec.model)
    launch = read_launch()
    if not flags.dry_run and launch.is_first:
        # Before torch is imported: a folder that is in use or cannot be written is refused at once.
        with RunFolder(out).lock():
            if not (flags.resume or flags.overwrite or launch.restarts):
                RunFolder(out).refuse_existing()
    spec.reject_unused_flags(given)
    if not flags.resume:
        check_names(task, spec)
    if not flags.dry_run:
        inform(describe_plan(spec))
    import_torch()
    from anaphor.training.device import check_hardware
    from anaphor.training.trusted_data import refuse_untrusted_config

    if flags.config is not None and not flags.resume and "data" not in given:
        refuse_untrusted_config(spec, flags.config)
    if flags.recipe is not None:
        check_hardware(flags.recipe, recipe_file(flags.recipe, task), spec.device)
    if flags.dry_run:
        return print_plan(spec, out, flags)

    from anaphor.training.loop import train_run

    out = flags.out or unused_folder(spec.model)  # again: others may have started while torch was imported
    with Bar("training", task) as bar, progress_listener(SecondBar(bar)):
        result, code = train_run(spec, out, bar, train_options(flags, imports, start, trust="data" in given))
    show(result, task, flags)
    return code


def train_options(
    flags: TrainFlags, imports: Sequence[ImportedFile], start: float, *, trust: bool = False
) -> TrainOptions:
    """The options of the training loop, as the flags say."""
    return TrainOptions(
        resume=flags.resume,
        force=flags.force,
        trust=trust,
        overwrite=flags.overwrite,
        test=not flags.no_test,
        tensorboard=flags.tensorboard,
        log=flags.log,
        save_minutes=flags.save_minutes,
        threads=flags.threads,
        start=start,
        imports=tuple(imports),
        callbacks=flags.callbacks,
        inform=inform,
        warn=warn,
    )


def read_command_line(task: TaskDefinition, argv: Sequence[str]) -> tuple[TrainFlags, RunSpec, set[str]]:
    """Returns the options of `train`, the settings of the run, and which fields have flags on the command line. Flags
    override a file, and a file the defaults."""
    kind, program = flags_class(task), f"anaphor train {task.name}"
    early, _ = split_argv(TrainFlags, argv)
    file = settings_file(task, early)
    if asks_for_help(argv):
        print_help(kind, program, default=None if file is None else kind(**read_base_settings(task.run_spec, file, ())))
    given = read_flags(kind, argv, program=program, over_file=file is not None)
    names = {field.name for field in dataclasses.fields(TrainFlags)}
    settings = {name: value for name, value in given.items() if name not in names}
    base = {} if file is None else read_base_settings(task.run_spec, file, settings)
    spec = task.run_spec(**merge_settings(task.run_spec, base, settings))
    return TrainFlags(**{name: given[name] for name in names & given.keys()}), spec, set(given)


def settings_file(task: TaskDefinition, given: Mapping[str, Any]) -> Path | None:
    """Returns the file with the settings that flags override: a recipe, a config, or the run to resume."""
    recipe, file, out = (given.get(name) for name in ("recipe", "config", "out"))
    if recipe is not None and file is not None:
        raise ConfigError(f"--recipe {recipe} and --config {file}: give one of them")
    if recipe is not None:
        return recipe_file(recipe, task)
    if file is not None:
        return Path(file)
    resumed = RunFolder(out) if out is not None and given.get("resume") else None
    return resumed.spec if resumed is not None and resumed.exists else None


def import_torch() -> None:
    """Import torch without the garbage collector, which else looks at its 170,000 objects again and again, while they
    are created and during all that is imported afterwards: 0.3 s of every command."""
    if "torch" in sys.modules or not gc.isenabled():
        return
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def print_plan(spec: RunSpec, out: Path, options: Any) -> int:
    from anaphor.training.build import build_experiment, build_step, check_settings, rebuild_experiment
    from anaphor.training.checks import get_batches

    check_settings(spec)
    experiment = rebuild_experiment(spec, RunFolder(out)) if options.resume else build_experiment(spec)
    build_step(experiment)  # it refuses what does not fit the model
    notes = experiment.notes()
    for line in notes:
        warn(line)
    values = {
        "run": str(out),
        "parameters": sum(weight.numel() for weight in experiment.model.parameters()),
        "batches_per_epoch": len(get_batches(experiment, 0)),
        **{name: value for name, value in experiment.statistics().items() if value},
        **({"notes": notes} if options.json else {}),
        "device": str(experiment.device),
    }
    if options.json:
        print(json.dumps(replace_nonfinite(values)))
    else:
        print("\n".join(f"{key}: {value}" for key, value in values.items()))
    return 0


def inform(line: str) -> None:
    print(for_terminal(line, sys.stderr), file=sys.stderr, flush=True)


def warn(line: str) -> None:
    inform(f"anaphor: {line}")


def show(result: dict[str, Any], task: TaskDefinition, options: Any) -> None:
    if options.json:
        print(json.dumps(replace_nonfinite(result)))
        return
    imports = [word for path in options.imports for word in ("--import", str(path))]
    resume = shlex.join(["anaphor", "train", task.name, "--resume", "--out", result["run"], *imports])
    if result["status"] == "stopped":
        print(f"stopped; resume with: {resume}")
        return
    for split in ("valid", "test"):
        if result[split] is not None:
            for line in task.describe_split(split, result[split]):
                print_score(line)
    if result.get("padding_share") is not None:
        fixed = result.get("padding_share_at_max_length")
        beside = "" if fixed is None else f" ({fixed:.1%} if all were padded to the maximum length)"
        print(f"padding: {result['padding_share']:.1%} of all positions{beside}")
    if result.get("left_out"):
        print(f"left out: {count_noun(result['left_out'], 'example')} (too long)")
    speed = result[f"{task.unit}_per_second"]
    speed = "" if speed is None else f", {speed:,.0f} {task.unit}/s"
    print(f"{result['parameters']:,} parameters{speed}, {result['seconds']:.0f} s")
    for figure in figure_lines(result["figures"]):
        print(f"figure: {figure}")
    if result["stopped_early"]:
        print(f"stopped early at step {result['steps']:,}: validation did not improve")
    if result["status"] == "interrupted":
        print(f"interrupted at step {result['steps']:,}; resume with: {resume}")
    print(f"run: {result['run']}", flush=True)
    if "serve" in VERBS:
        inform(f"next: anaphor serve{name_served(result['run'])}")


def name_served(run: str) -> str:
    """The folder of a run as an argument of `anaphor serve`; none where the page of the current folder has the run."""
    folder = os.path.relpath(run)
    return "" if not folder.startswith(os.pardir) else f" {shlex.quote(run)}"
