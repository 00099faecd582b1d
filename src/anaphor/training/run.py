"""A run: from a spec to trained weights in a folder, and back from a folder to a model that can be used."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anaphor.config import from_yaml, to_yaml
from anaphor.data.corpus import build_tokenizer, encoded
from anaphor.data.reading import dialogues
from anaphor.data.source import Source
from anaphor.data.sources import EXAMPLES, LINES, open_source, overlap
from anaphor.data.synthetic import GrammarSource
from anaphor.data.text import Padded, columns, largest_offset
from anaphor.data.tokenizer import Tokenizer
from anaphor.data.vocab import tokenizer_from_plain
from anaphor.errors import CheckpointError, ConfigError, DataError, Diverged
from anaphor.models import LanguageModel, preset
from anaphor.tasks.base import Task
from anaphor.tasks.language_modelling import (
    ExampleModelling,
    LanguageModelling,
    Protocol,
    Split,
    check_examples,
    resolve_carry,
)
from anaphor.training import checkpoint
from anaphor.training.accelerate import Captured
from anaphor.training.averaging import build_average
from anaphor.training.budget import make_budget
from anaphor.training.curves import draw_curves
from anaphor.training.events import TensorBoard, require_tensorboard
from anaphor.training.interruption import Interruption
from anaphor.training.optim import OptimizerSpec, build_optimizer
from anaphor.training.rundir import RunDir
from anaphor.training.schedule import ScheduleSpec, build_schedule
from anaphor.training.spec import LanguageRunSpec
from anaphor.training.step import Step
from anaphor.training.trainer import Settings, Trainer, Watcher


@dataclass(frozen=True)
class Prepared:
    """A spec turned into things: data, model and task."""

    spec: LanguageRunSpec
    source: Source
    tokenizer: Tokenizer
    model: LanguageModel
    task: LanguageModelling | ExampleModelling
    device: torch.device


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r} (known: auto, cpu, cuda)")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda': there is no GPU that torch can use here; leave it to auto, or say cpu")
    return torch.device(name)


def choose_precision(name: str, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Single precision on a CPU, where half is far slower."""
    if name == "bfloat16" or (name == "auto" and device.type == "cuda"):
        return partial(torch.autocast, device.type, torch.bfloat16)
    return nullcontext


def prepare(spec: LanguageRunSpec, tokenizer: Tokenizer | None = None) -> Prepared:
    """Open the data and build the model. A run that exists brings its own tokenizer."""
    device = choose_device(spec.device)
    source = open_source(spec.data)
    tokenizer = tokenizer or build_tokenizer(source, spec.tokenizer, spec.vocabulary)
    torch.manual_seed(spec.seed)
    model = preset(spec.model, vocabulary=len(tokenizer), **spec.model_options()).build().to(device)
    task: LanguageModelling | ExampleModelling
    if spec.batching == "stream":
        task = _stream_task(spec, source, tokenizer, resolve_carry(model, spec.carry, spec.bptt), device)
    else:
        task = _padded_task(spec, source, tokenizer, model.limit, device)
    return Prepared(spec, source, tokenizer, model, task, device)


def _stream_task(
    spec: LanguageRunSpec, source: Source, tokenizer: Tokenizer, carry: bool, device: torch.device
) -> LanguageModelling:
    if spec.limit is not None:
        raise ConfigError(f"limit={spec.limit} counts examples, and a stream has none: use --batching padded")

    @cache
    def split(name: str) -> Split:
        corpus = encoded(source, name, tokenizer)
        return Split(corpus.tensor(device), corpus.bytes, corpus.unknowns)

    protocol = Protocol(spec.evaluation_rows, spec.bptt, carry, spec.protocol == "complete")
    return LanguageModelling(
        tokenizer, split, rows=spec.batch_size, bptt=spec.bptt, carry=carry, shift=spec.shift, protocol=protocol
    )


def _padded_task(
    spec: LanguageRunSpec, source: Source, tokenizer: Tokenizer, limit: int | None, device: torch.device
) -> ExampleModelling:
    @cache
    def examples(name: str) -> Padded:
        raw = source.read(name)
        texts = dialogues(tokenizer.as_text(raw, where=source.where(name), start=source.start(name)))
        check_examples(texts, source.where(name))
        chosen = texts[: spec.limit] if name == "train" else texts
        ids = [np.concatenate(([tokenizer.boundary], tokenizer.encode_sentence(text))) for text in chosen]
        longest = max(map(len, ids)) - 1
        if limit is not None and longest > limit:
            raise DataError(
                f"the longest example of {source.where(name)} has {longest:,} tokens, but the model knows {limit:,} "
                f"positions: choose a larger --positions, or positions without end"
            )
        return Padded(
            [example for example in ids if len(example) > 1],
            pad=tokenizer.pad,
            rows=spec.batch_size,
            seed=spec.seed,
            device=device,
        )

    return ExampleModelling(tokenizer, examples)


def execute(
    spec: LanguageRunSpec,
    out: Path,
    watcher: Watcher,
    *,
    resume: bool = False,
    force: bool = False,
    test: bool = True,
    tensorboard: bool = False,
    warn: Callable[[str], None] = lambda line: None,
) -> tuple[dict[str, Any], int]:
    """Train, keep the best, score it. Gives the result and an exit code: 0, or 130 and 143 when asked to end early."""
    if tensorboard:
        require_tensorboard()
    rundir = RunDir(out)
    with rundir.lock(), Interruption() as interruption:
        made = prepare(spec)
        _check_splits(made, test)
        trainer = _trainer(made, rundir, watcher, interruption)
        if resume:
            _resume(trainer, rundir, force, warn)
        else:
            rundir.begin(to_yaml(spec), force=force)
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
        result = _result(made, trainer, rundir, test)
        rundir.write_result(result)
        return result, 130 if interruption.signal == signal.SIGINT else 0


def _check_splits(made: Prepared, test: bool) -> None:
    """Refuse before the first step what could not be scored later. Whether there is a test split is asked, no more."""
    for split in ("valid", "test") if test else ("valid",):
        made.source.check(split)
    task = made.task
    if isinstance(task, LanguageModelling):
        task.protocol.batches(task.splits("valid").tokens, task.tokenizer.boundary)
        if task.shift:
            columns(task.splits("train").tokens, task.rows, largest_offset(task.rows, task.bptt))
    else:
        task.examples("valid")


def padding_share(made: Prepared) -> float | None:
    """The part of all positions that is padding; None for a stream, which has none."""
    return made.task.examples("train").padding_share if isinstance(made.task, ExampleModelling) else None


def shared_with_train(made: Prepared) -> dict[str, Any]:
    """What of test stands in train too: whole examples where they are separate, else lines. It reads the test split."""
    separate = isinstance(made.task, ExampleModelling)
    found = overlap(made.source, EXAMPLES if separate else LINES)
    return {"unit": "examples" if separate else "lines", "test": found.parts, "in_train": found.in_train}


def optimizer_spec(spec: LanguageRunSpec) -> OptimizerSpec:
    return OptimizerSpec(optimizer=spec.optimizer, lr=spec.lr, weight_decay=spec.weight_decay)


def build_step(spec: LanguageRunSpec, model: LanguageModel, task: Task, device: torch.device) -> Step:
    """The step of a run: captured where there is a GPU and the optimizer allows it."""
    optimizer = build_optimizer(optimizer_spec(spec), model, captured=spec.capture and device.type == "cuda")
    kind = Captured if optimizer.capturable else Step
    return kind(model, task, optimizer, clip=spec.clip, precision=choose_precision(spec.dtype, device))


def _trainer(made: Prepared, rundir: RunDir, watcher: Watcher, interruption: Interruption) -> Trainer:
    spec = made.spec
    step = build_step(spec, made.model, made.task, made.device)
    steps_per_epoch = -(-len(made.task.batches(0)) // spec.accumulate)
    return Trainer(
        model=made.model,
        task=made.task,
        step=step,
        schedule=build_schedule(ScheduleSpec(schedule=spec.schedule, warmup=spec.warmup)),
        budget=make_budget(epochs=spec.epochs, steps=spec.steps, minutes=spec.minutes, steps_per_epoch=steps_per_epoch),
        settings=Settings(
            lr=optimizer_spec(spec).rate,
            accumulate=spec.accumulate,
            evaluate_every=spec.evaluate_every,
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
        "spec": {key: list(value) if isinstance(value, tuple) else value for key, value in vars(made.spec).items()},
        "tokenizer": made.tokenizer.to_plain(),
        "data": {split: made.source.digest(split) for split in ("train", "valid")},
        "threads": torch.get_num_threads(),
    }


def _resume(trainer: Trainer, rundir: RunDir, force: bool, warn: Callable[[str], None]) -> None:
    rundir.require()
    path, warnings = checkpoint.newest(rundir.checkpoints)
    for line in warnings:
        warn(line)
    if path is None:
        rundir.begin(rundir.spec.read_text(encoding="utf-8"), force=True)  # it ended before its first checkpoint
        return
    saved = checkpoint.read(path)
    changed = list(_differences(saved.facts, trainer.facts))
    if changed and not force:
        raise ConfigError(f"{rundir.folder} was begun otherwise: {'; '.join(changed)}; --force goes on all the same")
    trainer.load(saved)
    rundir.go_back(saved.step)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for key in ("spec", "data"):
        old, new = before.get(key, {}), now[key]
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                yield f"{name} was {old.get(name)!r} and is {new.get(name)!r}"
    if before.get("tokenizer") != now["tokenizer"]:
        yield "the tokenizer is another one"
    if before.get("threads") != now["threads"]:
        yield f"threads were {before.get('threads')} and are {now['threads']}"


def _result(made: Prepared, trainer: Trainer, rundir: RunDir, test: bool) -> dict[str, Any]:
    """Score the best weights. The test split is read here and not before."""
    progress = trainer.progress
    if progress.best_step is not None:
        _take_best(trainer, rundir)
    with trainer.scored():
        valid = _scored(made, "valid")
        tested = _scored(made, "test") if test else None
    return {
        "status": "finished",
        "run": str(rundir.folder),
        "parameters": made.model.count_parameters(),
        "padding_share": padding_share(made),
        "steps": progress.step,
        "best_step": progress.best_step,
        "seconds": progress.seconds,
        "tokens_per_second": progress.tokens / progress.seconds if progress.seconds else None,
        "valid": valid,
        "test": tested,
        "figures": [str(path) for path in draw_curves(rundir)],
    }


def _scored(made: Prepared, split: str) -> dict[str, Any]:
    """A score; where the text was drawn from a grammar, beside it the loss of whoever knows the grammar."""
    score = made.task.evaluate(made.model, split).to_plain()
    if isinstance(made.source, GrammarSource):
        total, tokens = made.source.loss(made.source.text(split))
        score["source_loss"] = total / tokens
    if split == "test":
        score["overlap"] = shared_with_train(made)
    return score


def _take_best(trainer: Trainer, rundir: RunDir) -> None:
    saved = checkpoint.read(rundir.checkpoints / f"step-{trainer.progress.best_step}")
    checkpoint.fit(trainer.model, saved.parts["model"])
    if trainer.average is not None:
        trainer.average.load_state_dict(saved.parts["average"])


@contextmanager
def opened(folder: Path, device: str = "auto") -> Iterator[Prepared]:
    """A run to be used: its data, its tokenizer, and its model with the best weights."""
    rundir = RunDir(folder)
    rundir.require()
    spec = dataclasses.replace(from_yaml(LanguageRunSpec, rundir.spec), device=device)
    path, warnings = checkpoint.newest(rundir.checkpoints)
    if path is None:
        raise CheckpointError("; ".join([f"{folder} has no checkpoint that can be read", *warnings]))
    saved = checkpoint.read(path)
    best = rundir.checkpoints / f"step-{saved.facts['progress']['best_step']}"
    if best != path and best.is_dir():
        saved = checkpoint.read(best)
    made = prepare(spec, tokenizer_from_plain(saved.facts["tokenizer"]))
    checkpoint.fit(made.model, saved.parts["model"])
    with _averaged(made, saved):
        made.model.eval()
        yield made


def _averaged(made: Prepared, saved: checkpoint.Checkpoint) -> AbstractContextManager[None]:
    if made.spec.average == "none":
        return nullcontext()
    average = build_average(made.spec.average, made.model)
    average.load_state_dict(saved.parts["average"])
    return average.swapped_in()
