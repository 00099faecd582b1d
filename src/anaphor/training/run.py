"""A run: from a spec to trained weights in a folder, and back from a folder to a model that can be used."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anaphor.config import from_yaml, look_up, read_mapping, to_yaml
from anaphor.errors import CheckpointError, ConfigError, DataError, Diverged
from anaphor.progress import Cancelled, ProgressListener, progress_listener
from anaphor.registry import DATASETS
from anaphor.tasks.base import Task
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.tasks.translate import TranslationRunSpec
from anaphor.training import checkpoint
from anaphor.training.accelerate import Captured
from anaphor.training.averaging import build_average
from anaphor.training.schedule import make_budget
from anaphor.training.curves import draw_curves
from anaphor.training.device import choose_precision, device_meant
from anaphor.training.events import TensorBoard, require_tensorboard
from anaphor.training.interruption import Interruption
from anaphor.training.language import PreparedLanguage, prepare_language
from anaphor.training.optim import OptimizerSpec, build_optimizer
from anaphor.training.place import at_hand, place_of
from anaphor.training.prepared import Prepared
from anaphor.training.requirement import to_go_on, to_use
from anaphor.training.run_folder import RunFolder
from anaphor.training.schedule import ScheduleSpec, build_schedule
from anaphor.training.spec import RunSpec
from anaphor.training.step import Step
from anaphor.training.trainer import Nobody, Settings, Trainer, Watcher
from anaphor.training.translation import PreparedTranslation, prepare_translation

PREPARE: dict[type[RunSpec], Callable[..., Prepared]] = {
    LanguageRunSpec: prepare_language,
    TranslationRunSpec: prepare_translation,
}
NAMES: dict[type[RunSpec], Container[str]] = {LanguageRunSpec: DATASETS, TranslationRunSpec: DATASETS}
"""Data that need no place to be found."""
KINDS: dict[str, type[RunSpec]] = {kind.task: kind for kind in PREPARE}


NOBODY = Nobody()


def tell(line: str) -> None:
    """To whoever sits there, unless the caller has a better way: what was lost must not go unheard."""
    print(f"anaphor: {line}", file=sys.stderr)  # noqa: T201 (not on stdout, which is for what was asked)


def prepare(spec: RunSpec, known: dict[str, Any] | None = None, place: str | None = None) -> Prepared:
    """Open the data and build the model. A run that exists brings what is `known` of it, its tokenizer, and the `place`
    where its data were; then they are not opened before a split is read."""
    return PREPARE[type(spec)](spec, known, place)


def _place_to_keep(spec: RunSpec, place: str | None) -> str | None:
    """Where the data are now: what is found from here goes before where they once were."""
    names = NAMES[type(spec)]
    return place_of(spec.data if place is None else at_hand(spec.data, place, names), names) or place


def kept_place(rundir: RunFolder, spec: RunSpec) -> str | None:
    """Where the data of a run were, as long as the same ones are meant."""
    same = rundir.exists and read_spec(rundir.spec).data == spec.data
    return rundir.read_place() if same else None


def execute(
    spec: RunSpec,
    out: Path | str,
    watcher: Watcher = NOBODY,
    *,
    resume: bool = False,
    force: bool = False,
    test: bool = True,
    tensorboard: bool = False,
    warn: Callable[[str], None] = tell,
) -> tuple[dict[str, Any], int]:
    """Train, keep the best, score it. Gives the result and an exit code: 0, or 130 and 143 when asked to end early."""
    if tensorboard:
        require_tensorboard()
    rundir = RunFolder(Path(out))
    with rundir.lock(), Interruption() as interruption:
        place = kept_place(rundir, spec) if resume else None
        made = prepare(spec, place=place)
        trainer = _trainer(made, rundir, watcher, interruption)
        tested = None
        if resume:
            tested = _test_score(rundir)
            _resume(trainer, rundir, spec, force, warn)
            test = test and trainer.facts["test"]  # what was to stay unread stays so
        begun_at = trainer.progress.step
        trainer.facts["test"] = test
        made.check(test)
        for line in made.notes():
            warn(line)
        if not resume:
            rundir.begin(described(spec), force=force)
        rundir.keep_place(_place_to_keep(spec, place))
        if tensorboard:
            trainer.events = TensorBoard(rundir.events, trainer.progress.step)
        try:
            trainer.fit()
        except Diverged as error:
            rundir.write_result({"status": "diverged", "reason": str(error), "run": str(out)})
            raise
        finally:
            trainer.events.close()
        if interruption.signal == signal.SIGTERM:
            return {"status": "stopped", "run": str(out)}, 143
        status = "finished" if trainer.over() else "interrupted"
        try:
            with progress_listener(_end_at_a_signal(interruption)):
                result = {"status": status, "run": str(out), **_result(made, trainer, rundir, warn)}
                if trainer.progress.step == begun_at:
                    result["test"] = tested  # of these very weights: what was read is not unread by --no-test
                if test:
                    rundir.write_result(result)  # what is known, should the test split turn out to be beyond the model
                    with trainer.scored():
                        result["test"] = made.score_test(result["valid"])
        except Cancelled:
            assert interruption.signal is not None, "nothing else ends it"
            return {"status": "stopped", "run": str(out)}, 128 + interruption.signal
        rundir.write_result(result)
        return result, 130 if interruption.signal == signal.SIGINT else 0


def _test_score(rundir: RunFolder) -> dict[str, Any] | None:
    """What is known of the test split, if the run has ended before."""
    if not rundir.exists or not rundir.result.is_file():
        return None
    try:
        found = rundir.read_result().get("test")
    except DataError:  # it will be written anew
        return None
    return found if isinstance(found, dict) else None


def _end_at_a_signal(interruption: Interruption) -> ProgressListener:
    """Ends long work at the next signal. One that came before has ended training, and is no reason not to score."""
    before = interruption.signal

    def listen(what: str, share: float) -> None:
        if interruption.signal != before:
            raise Cancelled

    return listen


def described(spec: RunSpec) -> str:
    """The spec as a run's folder keeps it: the task first, then every setting."""
    return f"task: {spec.task}\n{to_yaml(spec)}"


def read_spec(path: Path) -> RunSpec:
    """The spec of a run's folder, whatever its task."""
    return from_yaml(look_up(KINDS, str(read_mapping(path).get("task", "lm")), "task"), path)


def check_rules(spec: RunSpec) -> None:
    """Refuse what an optimizer or a schedule would refuse, without building them."""
    optimizer_spec(spec)
    schedule_spec(spec)


def schedule_spec(spec: RunSpec) -> ScheduleSpec:
    return ScheduleSpec(
        schedule=spec.schedule, warmup=spec.warmup, min_lr_ratio=spec.min_lr_ratio, plateau_factor=spec.plateau_factor
    )


def optimizer_spec(spec: RunSpec) -> OptimizerSpec:
    return OptimizerSpec(
        optimizer=spec.optimizer,
        lr=spec.lr,
        weight_decay=spec.weight_decay,
        betas=spec.betas or None,
        momentum=spec.momentum,
        layer_lr=spec.layer_lr,
    )


def build_step(spec: RunSpec, model: nn.Module, task: Task, device: torch.device) -> Step:
    """The step of a run: captured where there is a GPU and the optimizer allows it."""
    optimizer = build_optimizer(optimizer_spec(spec), model, captured=spec.cuda_graph and device.type == "cuda")
    kind = Captured if optimizer.capturable else Step
    return kind(model, task, optimizer, clip=spec.clip, precision=choose_precision(spec.dtype, device))


def _trainer(made: Prepared, rundir: RunFolder, watcher: Watcher, interruption: Interruption) -> Trainer:
    spec = made.spec
    step = build_step(spec, made.model, made.task, made.device)
    steps_per_epoch = -(-len(made.task.batches(0)) // spec.accumulate)
    return Trainer(
        model=made.model,
        task=made.task,
        step=step,
        schedule=build_schedule(schedule_spec(spec)),
        budget=make_budget(epochs=spec.epochs, steps=spec.steps, minutes=spec.minutes, steps_per_epoch=steps_per_epoch),
        settings=Settings(
            lr=optimizer_spec(spec).rate,
            accumulate=spec.accumulate,
            eval_every=spec.eval_every,
            patience=spec.patience,
            average_from=0.5 if spec.average == "tail" else 0.0,
            sample_seed=spec.seed,
        ),
        rundir=rundir,
        watcher=watcher,
        facts=_facts(made),
        average=None if spec.average == "none" else build_average(spec.average, made.model),
        stop=interruption.asked,
    )


def _facts(made: Prepared) -> dict[str, Any]:
    """What must not change between the parts of a run, for then it would be another run."""
    return {
        "spec": _plain(made.spec),
        **made.facts(),
        "test": True,
        # Sums of a CPU are rounded by how many share them; elsewhere threads only bring the batches.
        "threads": torch.get_num_threads() if made.device.type == "cpu" else None,
    }


def _plain(spec: RunSpec) -> dict[str, Any]:
    """As a checkpoint keeps it, which knows no tuples."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(spec).items()}


def _resume(trainer: Trainer, rundir: RunFolder, spec: RunSpec, force: bool, warn: Callable[[str], None]) -> None:
    rundir.require()
    path, warnings = checkpoint.newest(rundir.checkpoints)
    for line in warnings:
        warn(line)
    # A run that ended before its first checkpoint has nothing but its spec to be compared with.
    saved = None if path is None else checkpoint.read(path)
    if saved is not None:
        to_go_on(saved)
    facts = trainer.facts | {"spec": _plain(read_spec(rundir.spec))} if saved is None else saved.facts
    changed = list(_differences(facts, trainer.facts))
    if changed and not force:
        raise ConfigError(f"{rundir.folder} was begun otherwise: {'; '.join(changed)}; --force goes on all the same")
    if saved is None:
        if warnings:
            warn("no checkpoint can be read: the run begins anew")
        rundir.begin(described(spec), force=True)
        return
    if not changed and trainer.task.empty_carry(trainer.model) is not None:
        to_go_on(saved, "carry")
    trainer.load(saved)
    if saved.facts.get("spec") != trainer.facts["spec"] and changed and trainer.over():
        raise ConfigError(
            f"{rundir.folder} is finished, and nothing would be learned otherwise now: {'; '.join(changed)}; "
            f"give a larger budget as well, or train another run"
        )
    trainer.facts["test"] = saved.facts.get("test", True)
    if trainer.progress.best_step != saved.step:
        _best(trainer, rundir, warn)
    rundir.go_back(saved.step)
    if changed:
        warn(f"{rundir.folder} goes on otherwise than it was begun: {'; '.join(changed)}")
        rundir.change(described(spec))


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    old, new = before.get("spec", {}), now["spec"]
    for name in sorted(old.keys() | new.keys()):
        if name == "device" and device_meant(old.get(name)) == device_meant(new.get(name)):
            continue
        if old.get(name) != new.get(name):
            yield f"{name} was {old.get(name)!r} and is {new.get(name)!r}"
    for split, digest in now["data"].items():
        if before.get("data", {}).get(split) != digest:
            yield f"the text of {split} is another one"
    if before.get("tokenizer") != now["tokenizer"]:
        yield "the tokenizer is another one"
    if now["threads"] is not None and before.get("threads") != now["threads"]:
        yield f"threads were {before.get('threads')} and are {now['threads']}"


def _result(made: Prepared, trainer: Trainer, rundir: RunFolder, warn: Callable[[str], None]) -> dict[str, Any]:
    """Take the best weights and score them. Of the test split nothing is known yet."""
    progress = trainer.progress
    _take_best(trainer, rundir, warn)
    with trainer.scored():
        valid = made.score("valid")
    return {
        "parameters": made.model.count_parameters(),
        "notes": made.notes(),
        "padding_share": made.padding_share(),
        "left_out": made.left_out(),
        "steps": progress.step,
        "stopped_early": trainer.stopped_early(),
        "best_step": progress.best_step,
        "seconds": progress.seconds,
        "tokens_per_second": progress.tokens / progress.seconds if progress.seconds else None,
        "valid": valid,
        "test": None,
        "figures": [str(path) for path in draw_curves(rundir)],
    }


def _best(trainer: Trainer, rundir: RunFolder, warn: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """The best so far. It may be damaged, or deleted for a better one that is damaged now: then it is forgotten."""
    step = trainer.progress.best_step
    if step is None:
        return None
    try:
        saved = checkpoint.read(rundir.checkpoints / f"step-{step}")
        to_use(saved)
    except CheckpointError as error:
        warn(f"{error}; it was the best, and is forgotten")
        trainer.progress.forget_best()
        return None
    return saved


def _take_best(trainer: Trainer, rundir: RunFolder, warn: Callable[[str], None]) -> None:
    """Its weights, or those of the last step where there is none."""
    saved = _best(trainer, rundir, warn)
    if saved is None:
        return
    saved.give_weights(trainer.model)
    if trainer.average is not None:
        trainer.average.load_state_dict(saved.parts.get("average"))


@contextmanager
def opened_language(folder: Path, device: str = "auto") -> Iterator[PreparedLanguage]:
    """A run of a language model to be used; runs of other tasks are refused."""
    with opened(folder, device) as made:
        if not isinstance(made, PreparedLanguage):
            raise ConfigError(f"the run in {folder} is no language model: it was trained by `train {made.spec.task}`")
        yield made


@contextmanager
def opened_translation(folder: Path, device: str = "auto") -> Iterator[PreparedTranslation]:
    """A run of a translation model to be used; runs of other tasks are refused."""
    with opened(folder, device) as made:
        if not isinstance(made, PreparedTranslation):
            raise ConfigError(f"the run in {folder} translates nothing: it was trained by `train {made.spec.task}`")
        yield made


@contextmanager
def opened(folder: Path | str, device: str = "auto", warn: Callable[[str], None] = tell) -> Iterator[Prepared]:
    """A run to be used: its data, its tokenizer, and its model with the best weights that can be read."""
    rundir = RunFolder(Path(folder))
    rundir.require()
    spec = dataclasses.replace(read_spec(rundir.spec), device=device)
    path, warnings = checkpoint.newest(rundir.checkpoints)
    if path is None:
        raise CheckpointError("; ".join([f"{folder} has no checkpoint that can be read", *warnings]))
    for line in warnings:
        warn(line)
    saved = checkpoint.read(path)
    best = to_use(saved).best_step
    if best not in (None, saved.step):
        try:
            better = checkpoint.read(rundir.checkpoints / f"step-{best}")
            to_use(better)
        except CheckpointError as error:
            warn(f"{error}; it was the best, and step-{saved.step} takes its place")
        else:
            saved = better
    made = prepare(spec, saved.facts, rundir.read_place())
    saved.give_weights(made.model)
    with _averaged(made, saved):
        made.model.eval()
        yield made


def _averaged(made: Prepared, saved: checkpoint.Checkpoint) -> AbstractContextManager[None]:
    if made.spec.average == "none":
        return nullcontext()
    average = build_average(made.spec.average, made.model)
    average.load_state_dict(saved.parts.get("average"))
    return average.swapped_in()
