"""The training loop: all that happens between the settings of a run and its `result.json`.

The file is read from top to bottom. `train_run` is the whole story; what it calls stands below it, in the order of the
calls:

    train_run               lock the folder; then:
        build_run           build the experiment (or rebuild that of the run in the folder), step, budget, schedule
        resume              restore the newest checkpoint; settings that differ are refused
        write_spec          check what could not be scored later, write spec.yaml
        add_registered_callbacks   those that users and extras have registered
        describe_run        a line about model, device and data, for people
        fit                 for each group of batches:
            train_step          learning rate, forward, backward, update
            record_step         loss and gradient norms, which may arrive later; a line of steps.jsonl every few
                                seconds; the end of a run that diverges
            validate            metrics, a line of metrics.jsonl, the best checkpoint
            save                a checkpoint
        score               load the best weights; score valid and test, draw the curves, write result.json

The parts are the files beside this one. Each does one thing, is called from here, and knows nothing of the loop: an
`experiment` (data, model, loss, evaluation of a task), `step` and `optimizers`, `schedule`, `budget`, `averaging`,
`checkpoint`, `run_folder`, `signals`, `time_limit`, `distributed`. A run in `run.py` knows whether it is over, and
whether a validation or a checkpoint is due.

Resuming is exact. What a step needs beyond weights and data is in the checkpoint (`TrainState` in `run.py`), and the
order of batches is a function of seed and epoch.
"""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from torch import Tensor

from anaphor.errors import CheckpointError, ConfigError, Diverged
from anaphor.files import delete
from anaphor.metrics.result import Result, find_metric, select_value
from anaphor.operations import kernel_errors
from anaphor.progress_listener import Cancelled
from anaphor.registry import files_used_by
from anaphor.training import checkpoint
from anaphor.training.averaging import build_average, copy_average
from anaphor.training.budget import build_budget
from anaphor.training.build import build_experiment, build_step, rebuild_experiment, task_of
from anaphor.training.callbacks import (
    Callback,
    EvaluationInfo,
    StepInfo,
    attach_callback,
    describe_callbacks,
    make_callbacks,
)
from anaphor.training.checks import evaluate_split, get_batches
from anaphor.training.curves import draw_curves
from anaphor.training.device import name_device, thread_count
from anaphor.training.differences import differences
from anaphor.training.distributed import (
    RankLost,
    Ranks,
    build_distributed_step,
    copy_state,
    current_ranks,
    estimate_on_ranks,
    join_ranks,
    select_callbacks,
    split_state,
    work_alone,
)
from anaphor.training.experiment import Experiment
from anaphor.training.memory import keep_freed_memory
from anaphor.training.optimizers import OptimizerSpec
from anaphor.training.options import TrainOptions
from anaphor.training.paths import current_data_path, current_init_path, recorded_data_path
from anaphor.training.random_state import get_random_state, set_random_state
from anaphor.training.run import PendingStep, TrainingRun, TrainState
from anaphor.training.run_folder import RunFolder, SharedRunFolder
from anaphor.training.schedule import ScheduleSpec, build_schedule
from anaphor.training.signals import ENDING, Interruption
from anaphor.training.spec import RunSpec
from anaphor.training.spec_file import collect_metadata, spec_document
from anaphor.training.start_lines import describe_built
from anaphor.training.state_dicts import flatten, unflatten
from anaphor.training.step_log import StepLog
from anaphor.training.time_limit import TimeIsUp, enforce_limit, reserve_time
from anaphor.training.trackers import check_trackers
from anaphor.training.trained_runs import record_run
from anaphor.training.trusted_data import refuse_untrusted_data, trust_data
from anaphor.user_paths import writing_to

NEWEST = 2
"""Checkpoints that are kept beside the best: the last one, and one for the case that it is damaged."""

Outcome = tuple[dict[str, Any], int]
"""What a training command ends with: a result, as `result.json` has it where there are scores, and an exit code."""


# The story ------------------------------------------------------------------------------------------------------------


def train_run(
    spec: RunSpec, out: Path | str, callback: Callback | None = None, options: TrainOptions | None = None
) -> Outcome:
    """Train a run, keep its best checkpoint, score it.

    Args:
        spec: The settings.
        out: Folder of the run.
        callback: Called at every step and validation, as by a progress bar.
        options: What is done with a run that is in the folder, and how this one is saved.

    Returns:
        The result, and an exit code: 0, or 128 + N after signal N.

    Raises:
        Diverged: A loss, a gradient or a validation is not finite; `result.json` then says so.
    """
    options = TrainOptions() if options is None else options
    check_trackers(options.trackers)
    with Interruption() as interruption, join_ranks(spec.device, interruption) as ranks:
        name = ranks.share_text(str(out))
        folder = RunFolder(Path(name)) if ranks.is_first else SharedRunFolder(Path(name))
        with folder.lock():
            ranks.wait()  # until the first one has the lock
            options = options.on_rank(ranks.rank, can_resume=folder.exists)
            with (
                folder.record_divergence(keep_finished=options.resume),
                kernel_errors(),
                choose_threads(folder, options),
            ):
                if options.resume:
                    folder.check_resumable(force=options.force, warn=options.warn)
                elif not options.overwrite:
                    folder.refuse_existing()
                experiment = rebuild_experiment(spec, folder) if options.resume else build_experiment(spec)
                run = build_run(experiment, folder, name, callback, options, interruption)
                changes = resume(run) if options.resume else None
                check_data(run)
                write_spec(run, changes)
                add_registered_callbacks(run)
                options.inform(describe_run(run))
                outcome = fit_and_score(run)
                ranks.wait()  # until all is written
                return outcome


def choose_threads(folder: RunFolder, options: TrainOptions) -> AbstractContextManager[None]:
    """As many CPU threads as the options say. Sums are rounded by how many threads share them: a run that is resumed on
    as many ranks has as many as before."""
    is_alike = options.resume and folder.read_ranks() == current_ranks().count
    return thread_count(options.threads or (folder.read_threads() if is_alike else None))


def fit_and_score(run: TrainingRun) -> Outcome:
    """Train to the end of the budget and score the best weights, or stop in order.

    The first Ctrl-C (SIGINT) ends training after the present step, and the best weights are scored; a second one ends
    the program at once. SIGTERM and SIGHUP end the command as soon as the state is saved. A validation, and the scores
    at the end, are cancelled by the next signal, and when `--minutes` are exceeded. Whatever ends a command, a resumed
    run continues from there.
    """
    progress, interruption = run.state.progress, run.interruption
    run.first_step = progress.step
    # A run whose budget is spent is resumed to be scored, however long that takes.
    run.limit = None if run.is_over else run.budget.seconds
    run.trackers = run.open_trackers()
    try:
        with interruption.cancel_on_signal():
            if run.limit is not None:
                splits = 1 + run.metadata["test"]
                measure = partial(estimate_on_ranks, run.ranks, interruption)
                run.reserve, line = reserve_time(run.experiment, run.budget, progress, splits, run.start, measure)
                run.options.warn(line)
            with (
                enforce_limit(run.start, run.limit),
                keep_freed_memory(run.experiment.device),
                run.ranks.hold_listeners(),
            ):
                fit(run)
    except RankLost as error:
        raise RankLost(f"{error}: {describe_loss(run)}") from None
    except TimeIsUp:
        save(run)
        return unscored_result(run)
    except Cancelled:  # while validating: the step is saved, and a resumed run validates it first
        save(run)
        return stopped_result(run)
    finally:
        if progress.step > run.first_step and run.ranks.is_first:
            delete(run.folder.result)  # that of the run before it was resumed
        run.trackers.close()
    # What starts several processes gives them half a minute to end.
    ends_at_once = ENDING if run.ranks.count == 1 else interruption.handled
    if interruption.signal in ends_at_once:
        return stopped_result(run)
    return score(run)


def build_run(
    experiment: Experiment,
    folder: RunFolder,
    out: str,
    callback: Callback | None,
    options: TrainOptions,
    interruption: Interruption,
) -> TrainingRun:
    """All parts of a run, as they are before the first step."""
    spec = experiment.spec
    task = task_of(spec)
    files = {file.path: file for file in (*options.imports, *files_used_by(spec.task, vars(spec)))}
    batches = len(get_batches(experiment, 0))
    ranks = current_ranks()
    step = build_step(experiment) if ranks.count == 1 else build_distributed_step(experiment, ranks)
    given = [*(() if callback is None else (callback,)), *options.callbacks]
    callbacks = tuple(attach_callback(one, experiment) for one in given)
    metadata = collect_metadata(experiment, files.values(), test=options.test)
    ranks.require_same(metadata)
    metadata["environment"] |= {} if ranks.count == 1 else {"ranks": ranks.count}
    return TrainingRun(
        experiment=experiment,
        folder=folder,
        options=options,
        interruption=interruption,
        step=step,
        budget=build_budget(spec, steps_per_epoch=-(-batches // spec.accumulate)),
        peak_lr=OptimizerSpec.of(spec).peak_lr,
        metric=find_metric(task.metrics, spec.select),
        metadata=metadata | {"callbacks": describe_callbacks(callbacks)},
        state=TrainState(
            model=experiment.model,
            optimizer=step.optimizer,
            schedule=build_schedule(ScheduleSpec.of(spec)),
            average=None if spec.average == "none" else build_average(spec.average, experiment.model),
        ),
        out=out,
        callbacks=select_callbacks(ranks, callbacks),
        start=options.start,
        ranks=ranks,
    )


# Before training: the run that is in the folder -----------------------------------------------------------------------


def resume(run: TrainingRun) -> list[str] | None:
    """Continue from the newest checkpoint.

    Settings, data or an environment that differ from those of the checkpoint are refused, unless by `--force`.

    Returns:
        What has changed since. None: the run ended before its first checkpoint, and starts again.
    """
    folder, warn = run.folder, run.options.warn
    test = folder.read_earlier_result().get("test")
    run.earlier_test = test if isinstance(test, dict) else None
    saved = find_checkpoint(run)
    before = {**run.metadata, "spec": folder.read_settings()} if saved is None else saved.metadata
    changes = list(differences(before, run.metadata, run.spec.task))
    if not run.options.trust:
        refuse_untrusted_data(run.spec, folder, run.metadata["data"], saved)
    if changes and not run.options.force:
        raise ConfigError(f"settings differ from the checkpoint: {'; '.join(changes)}; use --force to resume anyway")
    if saved is None:
        warn(f"{folder.folder} has no checkpoint yet: training starts at step 0")
        return None
    has_damaged_lines = folder.set_damaged_lines_aside(warn)
    if not changes and not saved.is_only_model and run.experiment.initial_carry() is not None:
        saved.check_resumable("carry")
    restore(run, saved)
    if saved.metadata["spec"] != run.metadata["spec"] and changes and run.is_over:
        raise ConfigError(
            f"{folder.folder} is finished, so other settings have no effect: {'; '.join(changes)}; "
            f"give a larger budget as well, or train another run"
        )
    # A test split that was to stay unread stays unread.
    run.metadata["test"] = run.options.test and saved.metadata.get("test", True)
    if changes and not run.is_over:
        compare_measurements(run, saved.metadata)
    if run.state.progress.best_step != saved.step:
        read_best(run)  # so that it is known to be lost before training, not after it
    folder.truncate_after(run.state.progress.last_logged)
    run.logged = folder.hash_metrics()
    if not has_damaged_lines and saved.metadata.get("metrics", run.logged.hexdigest()) != run.logged.hexdigest():
        warn(f"{folder.metrics} has rows that were changed, added or removed since {saved.path} was written")
    folder.delete_previous()  # a kill may have come between the checkpoint and this
    if run.is_over:
        warn(f"{folder.folder} has been trained to its end: it is only scored")
    if changes:
        warn(f"resuming {folder.folder} with changes: {'; '.join(changes)}")
    return changes


def find_checkpoint(run: TrainingRun) -> checkpoint.Checkpoint | None:
    """The newest checkpoint of the run that can be resumed; damaged ones are skipped, with a warning each. None: there
    is no checkpoint yet."""
    folder = run.folder
    saved, failures = checkpoint.newest(folder.checkpoints, or_weights=not run.options.save_only_model)
    remedy = ""
    if saved is not None and saved.is_only_model:  # the run was finished
        saved.check_usable()
        remedy = (
            f"; resuming from the weights of {saved.path} without the states of the optimizer and the random "
            f"generators, so that the result will differ"
        )
    elif saved is not None:
        remedy = "; skipping this checkpoint"
        fingerprint = run.experiment.fingerprint()
        saved.check_resumable(metadata=[name for name, value in fingerprint.items() if isinstance(value, dict)])
    for line in failures:
        run.options.warn(f"{line}{remedy}")
    if saved is not None:
        return saved
    if failures:
        raise CheckpointError(
            f"{folder.folder} has no checkpoint that can be read: --overwrite would delete it and start again"
            f"{folder.describe_previous()}"
        )
    if folder.result.is_file() and folder.read_result().get("status") == "finished":
        if any(folder.checkpoints.glob("step-*")):
            raise CheckpointError(
                f"{folder.folder} cannot be resumed: it has the weights of its best step alone, as cells of a study "
                f"do; start another run from them with --init"
            )
        raise CheckpointError(f"{folder.folder} has no checkpoint: --overwrite would delete it and start again")
    return None


def restore(run: TrainingRun, saved: checkpoint.Checkpoint) -> None:
    """Put the state of a checkpoint in the place of the run's own: the counterpart of `save`."""
    state = run.state
    state.progress = saved.read_progress()
    run.resumable_step, run.resumable_best = saved.step, state.progress.best_step
    if run.options.save_only_model:
        prune(run)  # weights of later steps, which will be trained again
    run.start -= state.progress.elapsed
    saved.load_into(state.model)
    if not saved.is_only_model:
        state.optimizer.load_state_dict(saved.parts["optimizer"])
    state.schedule.load_state_dict(saved.metadata["schedule"])
    # As the last step had it: a validation that is missing logs it.
    state.optimizer.set_lr(run.peak_lr * state.schedule.factor(run.budget.spent(state.progress)))
    run.loaded_average = saved.parts.get("average")
    if state.average is not None:
        state.average.load_state_dict(run.loaded_average if run.is_averaging else None)
    if "carry" in saved.parts:
        state.carry = split_state(unflatten(run.experiment.initial_carry(), saved.parts["carry"]), run.ranks)
    if saved.is_only_model:
        return
    try:
        set_random_state(saved.parts["random"], run.experiment.device)  # last, so that nothing draws in between
    except (KeyError, RuntimeError, TypeError):
        raise CheckpointError(f"{saved.file('random')} does not hold the state of a random generator") from None


def compare_measurements(run: TrainingRun, before: Mapping[str, Any]) -> None:
    """Forget a best value that cannot be compared: now, where it is of another metric or of other data; where it is of
    another protocol, as soon as the next validation shows it."""
    if before["spec"].get("select") != run.metadata["spec"]["select"] or (
        before["data"].get("valid") != run.metadata["data"].get("valid")
    ):
        forget_best(run)
    for line in run.folder.read_metrics():
        if line["step"] == run.state.progress.best_step and isinstance(line.get("valid"), dict):
            run.best_signature = line["valid"].get("signature")


def forget_best(run: TrainingRun) -> None:
    """The next validation is the best: earlier values cannot be compared with it."""
    run.state.progress.forget_best()
    run.state.schedule.forget_best()


def check_data(run: TrainingRun) -> None:
    """Raise for data that could not be scored after training, and print what is to be known of them. Of the test split
    only that it exists is asked here: it is scored in `score`, at the very end."""
    run.experiment.validate(run.metadata["test"])
    for line in run.experiment.notes():
        run.options.warn(line)


def write_spec(run: TrainingRun, changes: list[str] | None) -> None:
    """Write `spec.yaml`, with which there is a run in the folder. `changes` are those of a run that is resumed; without
    them (None) it is a new one."""
    folder, options = run.folder, run.options
    run.ranks.wait()  # until all have read what is there
    if changes:
        save(run)  # so that the newest checkpoint has the settings of the spec file
    if not run.ranks.is_first:
        return
    document = format_spec(run)
    if changes is None:
        if options.overwrite and folder.exists:
            options.warn(f"overwriting {folder.folder}: deleting {folder.describe_contents()}")
        folder.create(document)
    else:
        folder.write_spec(document)
    record_run(folder.folder, document)


def format_spec(run: TrainingRun) -> str:
    """The text of `spec.yaml`."""
    spec, folder = run.spec, run.folder
    recorded = recorded_data_path(folder, spec) if run.options.resume else None
    data_path = current_data_path(spec, recorded)
    trust_data(spec.data, data_path, run.metadata["data"])
    return spec_document(spec, run.metadata, data_path=data_path, init_path=current_init_path(spec, folder))


def add_registered_callbacks(run: TrainingRun) -> None:
    """Make the callbacks that users and extras have registered, which may write to the folder by now, and name them
    in `spec.yaml`."""
    registered = make_callbacks(run.experiment, run.folder.folder)
    run.callbacks += select_callbacks(run.ranks, registered)
    if registered and run.ranks.is_first:
        run.metadata["callbacks"] = describe_callbacks(run.callbacks)
        document = format_spec(run)
        run.folder.write_spec(document)
        record_run(run.folder.folder, document)


def describe_run(run: TrainingRun) -> str:
    """The line about a run whose data and model are there."""
    parameters = sum(weight.numel() for weight in run.state.model.parameters())
    batches = len(get_batches(run.experiment, run.state.progress.epoch))
    return describe_built(parameters, name_device(run.experiment.device), batches, run.state.progress.step, run.out)


# Training -------------------------------------------------------------------------------------------------------------


def fit(run: TrainingRun) -> None:
    """Train until the budget is spent, validation has stopped improving, or a signal has come.

    A checkpoint is written every `--save-minutes`, after each validation (`save_validated`), and when the budget is
    spent or a signal has come. A run that diverges keeps its last good one.
    """
    progress = run.state.progress
    run.experiment.model.train()
    copy_state(run.ranks, run.experiment)
    run.measure_time()
    run.last_save = progress.elapsed
    groups = read_batches(run)
    lag = 0 if any(callback.synchronizes for callback in run.callbacks) else run.step.lag
    pending = deque[PendingStep]()  # a GPU is given the next step before the metrics of the last one are read
    if run.is_validation_missing:
        run.batches_per_epoch = len(get_batches(run.experiment, progress.epoch))
        validate(run)
    while not run.is_over:
        start = time.perf_counter()
        pending.append(train_step(run, next(groups)))
        record_steps(run, pending, keep=lag)
        progress.add_time(time.perf_counter() - start)
        run.measure_time()
        if run.is_validation_due or run.is_over:
            record_steps(run, pending)
            validate(run)
        elif run.is_save_due:
            record_steps(run, pending)
            save(run)
        if run.interruption.is_requested():
            break
    record_steps(run, pending)
    if progress.step and not run.is_saved:
        save(run)


def read_batches(run: TrainingRun) -> Iterator[list[Any]]:
    """The batches of one update after the other, epoch after epoch, from where training is."""
    progress = run.state.progress
    while True:
        batches = get_batches(run.experiment, progress.epoch)
        run.batches_per_epoch = len(batches)
        if progress.batch >= len(batches):  # of a run that is resumed with larger batches, by --force
            progress.batch = 0
            progress.epoch += 1
            continue
        is_last = False
        while not is_last:
            size = min(run.spec.accumulate, len(batches) - progress.batch)
            group = [batches[progress.batch + place] for place in range(size)]
            is_last = progress.batch + size == len(batches)
            # Counted before the group is yielded, so that a checkpoint after its step has the right position.
            progress.batch = 0 if is_last else progress.batch + size
            progress.epoch += is_last
            yield group


def train_step(run: TrainingRun, group: list[Any]) -> PendingStep:
    """One update of the weights, by a group of batches: here the learning rate of a step is decided."""
    state, progress = run.state, run.state.progress
    # The fraction at the end of the step: with a warmup from zero the first step would otherwise be wasted.
    lr = run.peak_lr * state.schedule.factor(run.budget.spent(progress, more=1))
    state.optimizer.set_lr(lr)
    report, state.carry = run.step(group, state.carry)
    count = sum(batch.count for batch in group)
    progress.step += 1
    progress.count += count
    if state.average is not None and run.is_averaging:
        state.average.update()
    return PendingStep(progress.step, run.epochs, lr, count, report)


def record_steps(run: TrainingRun, pending: deque[PendingStep], keep: int = 0) -> None:
    """Read the metrics of all steps but the newest `keep`, oldest first."""
    while len(pending) > keep:
        record_step(run, pending.popleft())


def record_step(run: TrainingRun, done: PendingStep) -> None:
    """Add a step's loss to the mean since the last validation, and call the callbacks. A loss that is not finite ends
    the run. `metrics.norms` has the gradient norm of each parameter."""
    metrics = done.report.read()
    if not metrics.is_finite(run.experiment.largest_loss):
        bad = metrics.first_nonfinite
        beyond = " (too large to be a loss)" if bad is None else ""
        where = "" if bad is None else f", first non-finite gradient in {bad}"
        raise Diverged(
            f"training diverged at step {done.step}: loss {metrics.loss:.4g}{beyond}, gradient norm "
            f"{metrics.norm:.4g}{where}, learning rate {done.lr:.4g}; {run.folder.describe_last_checkpoint()}"
        )
    progress = run.state.progress
    progress.add_loss(metrics.loss, done.count, metrics.correct)
    spent = run.budget.spent(progress)
    if run.step_log is None:
        run.step_log = StepLog(run.folder)
    line = run.step_log.add(done.step, done.lr, done.count, metrics, progress, spent)
    if line is not None and run.trackers is not None:
        run.trackers.add_step(line)
    info = StepInfo(
        step=done.step,
        epoch=done.epoch,
        progress=spent,
        count=progress.count,
        loss=metrics.loss,
        lr=done.lr,
        gradient_norms=metrics.norms,
        model=run.experiment.model,
        folder=run.folder.folder,
    )
    with work_alone():
        for callback in run.callbacks:
            callback.on_step(info)


def describe_loss(run: TrainingRun) -> str:
    """What is left of a run that has lost a rank. The first rank saves the last whole step, unless rows of a carried
    state are gone with the other."""
    last = run.folder.describe_last_checkpoint()
    if run.ranks.is_first:
        run.ranks.claim_last_word()  # before it saves, which may take long
    if run.ranks.is_first and run.state.carry is None and run.whole is not None and run.whole.progress.step:
        run.ranks, run.state.progress = Ranks(), run.whole.progress
        set_random_state(run.whole.random, run.experiment.device)
        save(run)
        last = f"saved at step {run.state.progress.step}"
    return f"{last}; resume with --resume --out {quote(run.out)}, on any number of ranks"


# Validation -----------------------------------------------------------------------------------------------------------


def validate(run: TrainingRun) -> None:
    """Evaluate on valid, log a line, tell the schedule, and save."""
    state, progress = run.state, run.state.progress
    start = time.perf_counter()
    run.ranks.copy_tensors(list(run.experiment.model.buffers()))  # statistics of a batch norm are those of its rank
    with state.averaged_weights():
        with run.ranks.lead(run.interruption):
            result = evaluate_split(run.experiment, "valid")
        (value,) = run.ranks.share_values([select_value(run.metric, result)])
        check_finite(run, value, result)
        with work_alone():
            sample = run.experiment.sample(run.spec.seed) if run.ranks.is_first else ""
    run.experiment.model.train()  # a user's own task may leave it in evaluation mode
    if run.best_signature not in (None, result.signature):
        forget_best(run)
    run.best_signature = None
    is_best = run.metric.is_better(value, progress.best_value)
    if is_best:
        progress.best_value, progress.best_step = value, progress.step
    progress.evaluations_without_improvement = 0 if is_best else progress.evaluations_without_improvement + 1
    state.schedule.report(value if run.metric.goal == "min" else -value)
    recent = progress.pop_recent(run.task.unit)
    line = {
        "epoch": run.epochs,
        run.task.unit: progress.count,
        "seconds": round(progress.seconds, 3),
        **recent,
        "lr": state.optimizer.lr,
        "valid": result.to_plain(),
    }
    run.logged.update(run.folder.log(progress.step, **line))
    if sample:
        run.folder.add_sample(progress.step, sample)
    # Before the checkpoint, so that a run that is resumed from it does not log this again.
    if run.trackers is not None:
        run.trackers.add(progress.step, line, sample)
    progress.reserve = run.reserve.seconds(time.perf_counter() - start)
    save_validated(run, is_best)
    run.measure_time()
    info = EvaluationInfo(
        step=progress.step,
        epoch=run.epochs,
        train_loss=recent["train_loss"],
        result=result,
        is_best=is_best,
        lr=state.optimizer.lr,
        model=run.experiment.model,
        folder=run.folder.folder,
    )
    with work_alone():
        for callback in run.callbacks:
            callback.on_evaluation(info)


def check_finite(run: TrainingRun, value: float, result: Result) -> None:
    """Raise for a validation whose value or loss is not finite."""
    loss = result.values.get("loss")
    has_bad_loss = loss is not None and not loss < run.experiment.largest_loss
    if not math.isfinite(value) or has_bad_loss:
        shown = f"loss {loss:.4g}" if has_bad_loss else f"{run.metric.label} {value:.4g}"
        raise Diverged(
            f"training diverged at step {run.state.progress.step}: validation {shown}, learning rate "
            f"{run.state.optimizer.lr:.4g}; {run.folder.describe_last_checkpoint()}"
        )


# Checkpoints ----------------------------------------------------------------------------------------------------------


def save(run: TrainingRun, *, only_model: bool = False) -> None:
    """Write a checkpoint, which can be resumed unless it has the weights alone."""
    state = run.state
    carry = None if only_model else run.join_carry()
    parts: dict[str, Mapping[str, Tensor]] = {"model": state.model.state_dict()}
    if state.average is not None:
        parts["average"] = state.average.state_dict()
    if run.loaded_average is not None and state.progress.step == run.resumable_step:
        parts["average"] = dict(run.loaded_average)
    run.loaded_average = None
    if not only_model:
        parts["optimizer"] = state.optimizer.state_dict()
        parts["random"] = get_random_state(run.experiment.device)
        if carry is not None:
            parts["carry"] = flatten(carry)
    run.measure_time()
    metadata = {**run.metadata, "progress": asdict(state.progress), "schedule": state.schedule.state_dict()}
    metadata["metrics"] = run.logged.hexdigest()
    if only_model:
        metadata[checkpoint.ONLY_MODEL] = True
    try:
        if run.ranks.is_first:
            checkpoint.write(run.folder.checkpoints, state.progress.step, parts, metadata)
    except Diverged as error:
        raise Diverged(
            f"training diverged at step {state.progress.step}: {error}, learning rate {state.optimizer.lr:.4g}; "
            f"{run.folder.describe_last_checkpoint()}"
        ) from None
    if not only_model:
        run.resumable_step, run.resumable_best = state.progress.step, state.progress.best_step
        run.last_save = state.progress.elapsed
    prune(run)
    run.folder.delete_previous()


def save_validated(run: TrainingRun, is_best: bool) -> None:
    """Save after a validation; with `save_only_model`, only what is the best, unless it is time for more."""
    run.measure_time()
    if not run.options.save_only_model or run.is_save_due:
        save(run)
    elif is_best:
        # A resumed run may validate the step that it was resumed from: that checkpoint is not to lose its parts.
        save(run, only_model=run.state.progress.step != run.resumable_step)


def prune(run: TrainingRun) -> None:
    """Delete checkpoints: the newest two and the best stay; with `save_only_model`, the best and the last that can be
    resumed."""
    if not run.ranks.is_first:
        return
    kept = (run.state.progress.best_step, run.resumable_step, run.resumable_best)
    newest = 0 if run.options.save_only_model else NEWEST
    checkpoint.prune(run.folder.checkpoints, keep=newest, also=[step for step in kept if step is not None])


def prune_finished(run: TrainingRun) -> None:
    """Keep of a run that is over the last checkpoint, from which it can be resumed with a larger budget, and one more
    for the case that it is damaged: of the best step, or where that is the last, the one before. This one keeps its
    weights alone."""
    best, folder = run.state.progress.best_step, run.folder.checkpoints
    if run.options.save_only_model or not run.ranks.is_first:
        return
    is_last = best in (None, run.state.progress.step)
    checkpoint.prune(folder, keep=NEWEST if is_last else 1, also=() if best is None else (best,))
    for path in islice(checkpoint.newest_first(folder), 1, None):
        with suppress(CheckpointError, Diverged):  # where it cannot be written again, it stays as it is
            checkpoint.keep_weights(path)


def read_best(run: TrainingRun) -> checkpoint.Checkpoint | None:
    """The best checkpoint so far. Where it is damaged or missing, the next validation is the best."""
    step = run.state.progress.best_step
    if step is None:
        return None
    try:
        saved = checkpoint.read(run.folder.checkpoints / f"step-{step}", ("model", "average"))
        saved.check_usable()
    except CheckpointError as error:
        run.options.warn(f"{error}; the best checkpoint is lost")
        run.state.progress.forget_best()
        return None
    return saved


# After training: scores and result ------------------------------------------------------------------------------------


def score(run: TrainingRun) -> Outcome:
    """Score the best weights on valid and test, draw the curves, and write `result.json`."""
    result: dict[str, Any] | None = None
    status = "finished" if run.is_over else "interrupted"
    run.ranks.wait()  # until the last checkpoint is written
    try:
        with (
            run.interruption.cancel_on_signal(),
            enforce_limit(run.start, run.limit),
            run.ranks.lead(run.interruption),
        ):
            load_best(run)
            with run.state.averaged_weights():
                valid = run.experiment.score("valid")
                figures = draw_figures(run, valid)
                result = {"status": status, "run": run.out, **describe_result(run, valid, figures)}
                if run.metadata["test"]:
                    run.folder.write_result(result)  # in case that test cannot be scored
                    # The only place where training scores the test split.
                    result["test"] = run.experiment.score_test(valid).to_plain()
    except TimeIsUp:
        if result is None:
            return unscored_result(run)
        run.options.warn(
            f"test is not scored {within_minutes(run)}: use `anaphor evaluate {quote(run.out)} --split test`"
        )
    except Cancelled:
        return stopped_result(run)
    run.folder.write_result(result)
    if status == "finished":
        prune_finished(run)
    return result, 130 if run.interruption.signal == signal.SIGINT else 0


def load_best(run: TrainingRun) -> None:
    """Load the best weights into the model, the average of those where there is one."""
    state = run.state
    # The last weights may be the best: a cell of a study, whose time counts, need not read what it has just written.
    if run.options.save_only_model and state.progress.best_step == state.progress.step:
        return
    saved = read_best(run)
    if saved is None:
        return
    saved.load_into(state.model)
    if "average" in saved.parts:
        copy_average(saved.parts["average"], state.model)
    state.average = None  # a run may have been resumed by --force with another one, or without


def draw_figures(run: TrainingRun, valid: Result) -> list[Path]:
    """The curves, and what the task draws of a result."""
    figures: list[Path] = []
    if not run.ranks.is_first:
        return figures
    try:
        with run.interruption.raise_on_signal(), writing_to(run.folder.folder), work_alone():
            figures += draw_curves(run.folder, run.task)
            figures += run.experiment.draw(run.folder.folder, valid)
    except TimeIsUp:
        run.options.warn("some figures are not drawn: the minutes are over")
    return figures


def describe_result(run: TrainingRun, valid: Result, figures: list[Path]) -> dict[str, Any]:
    """What `result.json` says of a run besides its status: all but the score of test, which follows."""
    progress = run.state.progress
    reserved = {} if run.budget.seconds is None else {"reserved_seconds": round(progress.reserve, 1)}
    return {
        "parameters": sum(weight.numel() for weight in run.state.model.parameters()),
        "notes": run.experiment.notes(),
        **run.experiment.statistics(),
        "steps": progress.step,
        "stopped_early": run.has_stopped_early,
        "best_step": progress.best_step,
        "seconds": progress.seconds,
        **reserved,
        f"{run.task.unit}_per_second": progress.count / progress.seconds if progress.seconds else None,
        "valid": valid.to_plain(),
        "test": run.earlier_test if progress.step == run.first_step else None,  # of the same weights
        "figures": [str(path) for path in figures],
    }


def stopped_result(run: TrainingRun) -> Outcome:
    """The result after a signal: the run is saved, and can be resumed."""
    number = run.interruption.signal
    assert number is not None, "only a signal stops it"
    return {"status": "stopped", "run": run.out}, 128 + number


def unscored_result(run: TrainingRun) -> Outcome:
    """The result where the minutes were over before valid was scored."""
    run.options.warn(f"saved, but not scored {within_minutes(run)}: `--resume` scores the run, however long it takes")
    return {"status": "stopped", "run": run.out, "valid": None, "test": None}, 0


def within_minutes(run: TrainingRun) -> str:
    """How a message names the time limit of a run."""
    return f"within --minutes {run.spec.minutes:g}"
