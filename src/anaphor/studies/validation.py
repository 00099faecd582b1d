"""Checks before the first worker starts: settings that every worker would refuse, and an estimate of the time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.registry import OPTIMIZERS
from anaphor.studies.axes import Axis, Range
from anaphor.studies.spec import Setting, StudySpec
from anaphor.training.budget import build_budget
from anaphor.training.build import build_experiment, build_step, check_settings
from anaphor.training.device import thread_count
from anaphor.training.schedule import SCHEDULES
from anaphor.training.spec import RunSpec
from anaphor.training.time_limit import estimate_duration

STARTUP = (2.0, 6.0)  # seconds, least and most, until a new process has loaded torch and its data
PROBE_STEPS = 8
PROBE_SECONDS = 0.5  # for the steps, and for the part of a validation


def validate_study(spec: StudySpec, settings: Sequence[Setting] | None) -> None:
    """Raise for settings that could not be run. Those of a search (None) are unknown: only names are checked."""
    if spec.is_search:
        validate_search(spec, spec.parameters, f"method {spec.method} cannot vary")
    validate_search(spec, spec.tune, "tune cannot vary")
    for setting in [spec.example_setting()] if settings is None else settings:
        try:
            validate_run(setting.run, names_only=settings is None)
            for metric in (spec.target, *(one.base for one in spec.reported)):
                spec.support.validate(setting.run, metric, names_only=settings is None)
            if spec.longer:
                spec.support.validate_longer(setting.run)
        except ConfigError as error:
            raise spec.error_at(setting.labels, error) from None


def validate_search(spec: StudySpec, axes: Sequence[Axis | Range], what: str) -> None:
    """Raise for axes along which the metric changes its meaning: the search for its best value would follow it."""
    for axis in axes:
        all_settings = axis.settings if isinstance(axis, Axis) else [{axis.name: end} for end in (axis.low, axis.high)]
        names = {name for settings in all_settings for name in settings}
        values = {name: {str(settings.get(name, spec.base.get(name))) for settings in all_settings} for name in names}
        try:
            spec.support.validate_search({name for name in names if len(values[name]) > 1}, spec.target)
        except ConfigError as error:
            raise ConfigError(f"study {spec.name!r}: {what} {axis.name} by metric={spec.metric}: {error}") from None


def validate_run(run: RunSpec, *, names_only: bool) -> None:
    """Raise for an optimizer or a schedule that could not be built."""
    look_up(OPTIMIZERS, run.optimizer, "optimizer")
    look_up(SCHEDULES, run.schedule, "schedule")
    if not names_only:
        check_settings(run)


def estimate_range(run: RunSpec, threads: int) -> tuple[float, float]:
    """Least and most time that one cell would take here: training, its validations and its final score.

    Some steps are run, and the first part of a validation. The least is by the processor time they took, as on a
    machine with nothing else to do; the most by the wall time of the slowest, as on one that stays as busy as it is.
    """
    if run.minutes is not None:
        return STARTUP[0] + 60 * run.minutes, STARTUP[1] + 60 * run.minutes
    with thread_count(threads):
        experiment = build_experiment(run)
        step = build_step(experiment)
        batches = experiment.batches(0)
        carry, wall, processor = None, list[float](), list[float]()
        begin = time.perf_counter()
        while len(wall) < 2 or (len(wall) < PROBE_STEPS and time.perf_counter() - begin < PROBE_SECONDS):
            start, cpu = time.perf_counter(), time.process_time()
            metrics, carry = step([batches[len(wall) % len(batches)]], carry)
            metrics.read()
            if experiment.device.type == "cuda":
                torch.cuda.synchronize()
            wall.append(time.perf_counter() - start)
            processor.append(time.process_time() - cpu)
        start, cpu = time.perf_counter(), time.process_time()
        validating = estimate_duration(lambda: experiment.evaluate("valid"), PROBE_SECONDS, experiment.device)
        busy = min((time.process_time() - cpu) / threads / (time.perf_counter() - start), 1.0)
    steps_per_epoch = -(-len(batches) // run.accumulate)
    budget = build_budget(run, steps_per_epoch)
    assert budget.steps is not None, "epochs have become steps"
    validations = 2 + budget.steps // (run.eval_every or steps_per_epoch)  # with the final score
    on_gpu = experiment.device.type == "cuda"  # which works while the processor waits
    fastest = min(wall[1:]) if on_gpu else min(min(wall[1:]), min(processor[1:]) / threads)
    steps = budget.steps * run.accumulate
    return (
        STARTUP[0] + steps * fastest + validations * validating * (1.0 if on_gpu else busy),
        STARTUP[1] + steps * max(wall[1:]) + validations * validating,
    )
