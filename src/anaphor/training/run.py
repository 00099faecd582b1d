"""Train a run: from a spec to weights and scores in a folder."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any

from anaphor.config import writing_to
from anaphor.errors import ConfigError, DataError, Diverged
from anaphor.evaluation import Cancelled, ProgressListener, progress_listener
from anaphor.metrics.result import Result
from anaphor.mixers.kernels import describe_failure, disable_kernels, is_kernel_failure
from anaphor.registry import ImportedFile, files_used_by
from anaphor.training.averaging import copy_average
from anaphor.training.build import build_experiment, build_trainer, rebuild_experiment, spec_document, task_of
from anaphor.training.checkpoint import newest
from anaphor.training.experiment import MAX_THREADS, Experiment, check_threads, thread_count
from anaphor.training.run_folder import RunFolder, absolute_path, draw_curves, resolve_data_path
from anaphor.training.spec import RunSpec
from anaphor.training.time_limit import TimeIsUp, enforce_limit, reserve_time
from anaphor.training.trainer import Callback, NullCallback, OnceCallback, Trainer

NO_CALLBACK = NullCallback()
SAVE_MINUTES = 5.0


def print_warning(line: str) -> None:
    """To stderr, unless the caller has a better way."""
    print(f"anaphor: {line}", file=sys.stderr)  # noqa: T201 (not on stdout, which is for results)


def execute(
    spec: RunSpec,
    out: Path | str,
    callback: Callback = NO_CALLBACK,
    *,
    resume: bool = False,
    force: bool = False,
    overwrite: bool = False,
    test: bool = True,
    tensorboard: bool = False,
    save_minutes: float = SAVE_MINUTES,
    save_only_model: bool = False,
    threads: int | None = None,
    start: float | None = None,
    imports: Iterable[ImportedFile] = (),
    warn: Callable[[str], None] = print_warning,
) -> tuple[dict[str, Any], int]:
    """Train, keep the best checkpoint, score it. Gives the result and an exit code: 0, or 128 + N after signal N.

    A run that is in the folder is resumed with `resume` (`force`: although settings differ), or replaced with
    `overwrite`. `threads`: number of CPU threads; if not given, that of the run that is resumed, or torch's own for a
    new one. It never follows the load of the machine, because sums are rounded by it. `start`: when the command
    started, by `time.monotonic`; a budget in minutes counts from there. `save_only_model`: validations save the best
    weights alone, and what a resume needs is saved every `save_minutes`.

    Where a kernel of ours cannot be compiled, it continues without them: from the last checkpoint, or from the start.
    """
    if tensorboard:
        from anaphor.training.tensorboard import require_tensorboard

        require_tensorboard()
    start = time.monotonic() if start is None else start
    check_threads(threads)
    if not 0 < save_minutes < math.inf:
        raise ConfigError(f"save_minutes={save_minutes}: it must be above 0")
    folder = RunFolder(Path(out))
    with (
        folder.lock(),
        _divergence_recorded(folder),
        thread_count(recorded_threads(folder) if threads is None and resume else threads),
        Interruption() as interruption,
    ):
        reported, earlier = OnceCallback(callback), Attempts(start)
        attempt = partial(
            _train_and_score, spec, folder, out, reported, interruption, earlier, force=force,
            overwrite=overwrite, test=test, tensorboard=tensorboard, save_minutes=save_minutes,
            save_only_model=save_only_model, imports=tuple(imports),
            warn=cache(warn),  # each line once, also where there are two attempts
        )  # fmt: skip
        try:
            return attempt(resume=resume)
        except Exception as error:
            if not is_kernel_failure(error):
                raise
            reason = describe_failure(error)
        gc.collect()  # the model of this attempt; the handler would have kept it
        disable_kernels(reason)
        reported.restart()
        # Before the run is in its folder, checkpoints there are those of a run that is to be overwritten.
        is_saved = earlier.has_run and newest(folder.checkpoints, ())[0] is not None
        return attempt(resume=resume or is_saved)


@dataclass
class Attempts:
    """What an attempt to train a run has to know of an earlier one, which ended with the failure of a kernel."""

    start: float
    """When the command started; earlier by the time of those that it resumes."""
    has_run: bool = False
    """Whether the run is in its folder: it was created or resumed by this command."""


def _train_and_score(
    spec: RunSpec,
    folder: RunFolder,
    out: Path | str,
    callback: Callback,
    interruption: Interruption,
    earlier: Attempts,
    *,
    resume: bool,
    force: bool,
    overwrite: bool,
    test: bool,
    tensorboard: bool,
    save_minutes: float,
    save_only_model: bool,
    imports: Iterable[ImportedFile],
    warn: Callable[[str], None],
) -> tuple[dict[str, Any], int]:
    """What `execute` does, in a folder that is locked."""
    if resume:
        folder.require()
        _refuse_converted(folder)
        folder.check_imports(force=force, warn=warn)
    elif not (overwrite or earlier.has_run):
        folder.refuse_existing()
    data_path = kept_data_path(folder, spec) if resume else None
    experiment = rebuild_experiment(spec, folder, data_path) if resume else build_experiment(spec)
    files = {file.path: file for file in (*imports, *files_used_by(spec.task, vars(spec)))}
    trainer = build_trainer(
        experiment,
        folder,
        callback,
        interruption.is_requested,
        save_minutes=save_minutes,
        save_only_model=save_only_model,
        imports=files.values(),
    )
    trainer.start = earlier.start
    earlier_test = read_test_result(folder) if resume else None
    changes = _resume(folder, trainer, force=force, warn=warn) if resume else None
    if earlier.has_run:
        trainer.start = earlier.start  # a checkpoint of this command has counted some of its time already
    if changes is not None:
        test = test and trainer.facts["test"]  # a test split that was to stay unread stays unread
    first_step = trainer.progress.step
    trainer.facts["test"] = test
    experiment.validate(test)
    for line in experiment.notes():
        warn(line)
    document = spec_document(trainer, current_data_path(spec, data_path))
    if changes is not None:
        if changes:
            trainer.save()  # so that the newest checkpoint has the settings of the spec file
        folder.write_spec(document)
    else:
        if overwrite and folder.exists and not earlier.has_run:
            warn(f"overwriting {folder.folder}: deleting {folder.describe_contents()}")
        folder.create(document)
    earlier.start, earlier.has_run = trainer.start, True
    if tensorboard:
        from anaphor.training.tensorboard import TensorBoard

        metrics = [metric.name for metric in task_of(spec).metrics]
        trainer.events = TensorBoard(folder.events, metrics, trainer.progress.last_logged)
    # A run whose budget is spent is resumed to be scored, however long that takes.
    has_limit = trainer.budget.seconds is not None and not trainer.is_over()
    bound: Callable[[], AbstractContextManager[None]] = partial(enforce_limit, trainer) if has_limit else nullcontext
    within = f"within --minutes {spec.minutes:g}" if spec.minutes is not None else ""
    try:
        with progress_listener(_cancel_on_signal(interruption)):
            if has_limit:
                warn(reserve_time(trainer, splits=1 + test))
            with bound():
                trainer.fit()
    except TimeIsUp:
        trainer.save()
        return _unscored_result(out, warn, within)
    except Cancelled:  # while validating: the step is saved, and a resumed run validates it first
        trainer.save()
        return _stopped_result(out, interruption)
    finally:
        if trainer.progress.step > first_step:
            folder.result.unlink(missing_ok=True)  # that of the run before it was resumed
        if trainer.events is not None:
            trainer.events.close()
    if interruption.signal in (signal.SIGTERM, signal.SIGHUP):
        return _stopped_result(out, interruption)
    status = "finished" if trainer.is_over() else "interrupted"
    result: dict[str, Any] | None = None
    try:
        with progress_listener(_cancel_on_signal(interruption)), bound():
            valid, scores = _score(experiment, trainer, folder, interruption, warn)
            result = {"status": status, "run": str(out), **scores}
            if trainer.progress.step == first_step:
                result["test"] = earlier_test  # of the same weights
            if test:
                folder.write_result(result)  # in case that test cannot be scored
                with trainer.averaged_weights():
                    result["test"] = experiment.score_test(valid).to_plain()
    except TimeIsUp:
        if result is None:
            return _unscored_result(out, warn, within)
        warn(f"test is not scored {within}: use `anaphor evaluate {quote(str(out))} --split test`")
    except Cancelled:
        return _stopped_result(out, interruption)
    folder.write_result(result)
    return result, 130 if interruption.signal == signal.SIGINT else 0


@contextmanager
def _divergence_recorded(folder: RunFolder) -> Iterator[None]:
    """The result of a run says so where training diverged, or where its weights are no longer finite."""
    try:
        yield
    except Diverged as error:
        folder.write_result({"status": "diverged", "reason": str(error), "run": str(folder.folder)})
        raise


def _resume(folder: RunFolder, trainer: Trainer, *, force: bool, warn: Callable[[str], None]) -> list[str] | None:
    from anaphor.training.resume import resume_from  # a new run has no use for it

    return resume_from(folder, trainer, force=force, warn=warn)


def _stopped_result(out: Path | str, interruption: Interruption) -> tuple[dict[str, Any], int]:
    assert interruption.signal is not None, "only a signal stops it"
    return {"status": "stopped", "run": str(out)}, 128 + interruption.signal


def _unscored_result(out: Path | str, warn: Callable[[str], None], within: str) -> tuple[dict[str, Any], int]:
    warn(f"saved, but not scored {within}: `--resume` scores the run, however long it takes")
    return {"status": "stopped", "run": str(out), "valid": None, "test": None}, 0


def recorded_threads(folder: RunFolder) -> int | None:
    """The number of CPU threads that a run was trained with; None where it does not say."""
    threads = folder.read_environment().get("threads") if folder.exists else None
    return threads if type(threads) is int and 1 <= threads <= MAX_THREADS else None


def kept_data_path(folder: RunFolder, spec: RunSpec) -> str | None:
    """Where the data of an existing run were, as long as the same data are meant."""
    same = folder.exists and folder.read_settings().get("data") == spec.data
    return folder.read_data_path() if same else None


def current_data_path(spec: RunSpec, data_path: str | None) -> str | None:
    """Where the data are now: what is found from here goes before where they were."""
    return absolute_path(spec.data if data_path is None else resolve_data_path(spec.data, data_path)) or data_path


def read_test_result(folder: RunFolder) -> dict[str, Any] | None:
    """The earlier result on test, if there is one."""
    found = _read_result(folder).get("test")
    return found if isinstance(found, dict) else None


def _read_result(folder: RunFolder) -> dict[str, Any]:
    """The earlier result; empty where there is none."""
    if not folder.exists or not folder.result.is_file():
        return {}
    try:
        return folder.read_result()
    except DataError:  # it will be written again
        return {}


def _refuse_converted(folder: RunFolder) -> None:
    """Weights of `transformers` come without the state of an optimizer."""
    if _read_result(folder).get("status") == "converted":
        raise ConfigError(
            f"{folder.folder} was converted: there is no training to resume; start a new run from its weights with "
            f"--init {quote(str(folder.folder))}"
        )


def _cancel_on_signal(interruption: Interruption) -> ProgressListener:
    """Cancels long work at the next signal. An earlier one ended training, and the best model is still scored."""
    before = interruption.signal

    def listen(name: str, fraction: float) -> None:
        if interruption.signal != before:
            raise Cancelled

    return listen


def _score(
    experiment: Experiment,
    trainer: Trainer,
    folder: RunFolder,
    interruption: Interruption,
    warn: Callable[[str], None],
) -> tuple[Result, dict[str, Any]]:
    """Load the best weights and score them on valid. Gives the result, and all but the test split of `result.json`."""
    progress, task = trainer.progress, task_of(experiment.spec)
    # The last weights may be the best: a cell of a study, whose time counts, need not read what it has just written.
    is_loaded = progress.best_step == progress.step and trainer.settings.save_only_model
    saved = None if is_loaded else trainer.best_checkpoint(warn)
    if saved is not None:
        saved.load_into(experiment.model)
        if "average" in saved.parts:
            copy_average(saved.parts["average"], experiment.model)
        trainer.average = None  # a run may have been resumed by --force with another one, or without
    with trainer.averaged_weights():
        valid = experiment.score("valid")
        figures: list[Path] = []
        try:
            with interruption.raise_on_signal(), writing_to(folder.folder):
                figures += draw_curves(folder, task)
                figures += experiment.draw(folder.folder, valid)
        except TimeIsUp:
            warn("some figures are not drawn: the minutes are over")
    return valid, {
        "parameters": sum(weight.numel() for weight in experiment.model.parameters()),
        "notes": experiment.notes(),
        **experiment.statistics(),
        "steps": progress.step,
        "stopped_early": trainer.stopped_early(),
        "best_step": progress.best_step,
        "seconds": progress.seconds,
        **({} if trainer.budget.seconds is None else {"reserved_seconds": round(progress.reserve, 1)}),
        f"{task.counted}_per_second": progress.count / progress.seconds if progress.seconds else None,
        "valid": valid.to_plain(),
        "test": None,
        "figures": [str(path) for path in figures],
    }


class Interruption:
    """Inside the block the first SIGINT, SIGTERM or SIGHUP is recorded; a second SIGINT ends the program at once.

    SIGHUP says that the terminal is gone. Where it is ignored, as `nohup` has it, it stays ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._handlers: dict[int, Any] = {}
        self._terminals: list[int] = []
        self._cancels = False

    @contextmanager
    def raise_on_signal(self) -> Iterator[None]:
        """Inside the block, for work that does not ask for signals itself, a signal raises `Cancelled` at once."""
        before, self._cancels, hook = self.signal, True, sys.unraisablehook
        # Where an object is being deleted, Python prints the exception and continues.
        sys.unraisablehook = lambda raised: None if isinstance(raised.exc_value, Cancelled) else hook(raised)
        try:
            yield
        except Exception:
            if self.signal == before:
                raise
        finally:
            self._cancels, sys.unraisablehook = False, hook
        if self.signal != before:  # a library may have caught the exception, or made another one of it
            raise Cancelled

    def is_requested(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # signals cannot be caught in other threads
            self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
            hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
            for number in (signal.SIGINT, signal.SIGTERM, *hangup):
                self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        if number == signal.SIGHUP and self._terminals:  # to write there would fail, before the checkpoint is saved
            with open(os.devnull, "wb") as nowhere:
                for stream in self._terminals:
                    os.dup2(nowhere.fileno(), stream)
        if self._cancels:
            raise Cancelled
