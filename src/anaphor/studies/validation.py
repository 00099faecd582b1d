"""Checks before the first worker starts: settings that every worker would refuse, and an estimate of the time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.studies.axes import Axis
from anaphor.studies.spec import Setting, StudySpec
from anaphor.training.spec import RunSpec

STARTUP = 4.0  # seconds until a new process has loaded torch and its data


def validate_study(spec: StudySpec, settings: Sequence[Setting] | None) -> None:
    """Raise for settings that could not be run. Those of a search (None) are unknown: only names are checked."""
    if spec.is_search:
        validate_search(spec)
    for setting in [spec.example_setting()] if settings is None else settings:
        try:
            validate_run(setting.run, names_only=settings is None)
            spec.support.validate(setting.run, spec.target, names_only=settings is None)
        except ConfigError as error:
            raise spec.error_at(setting.parameters, error) from None


def validate_search(spec: StudySpec) -> None:
    """Raise for axes along which the metric changes its meaning: a search would follow it."""
    for axis in spec.parameters:
        all_settings = axis.settings if isinstance(axis, Axis) else [{axis.name: end} for end in (axis.low, axis.high)]
        names = {name for settings in all_settings for name in settings}
        values = {name: {str(settings.get(name, spec.base.get(name))) for settings in all_settings} for name in names}
        try:
            spec.support.validate_search({name for name in names if len(values[name]) > 1}, spec.target)
        except ConfigError as error:
            raise ConfigError(
                f"study {spec.name!r}: method {spec.method} cannot vary {axis.name} by metric={spec.metric}: {error}"
            ) from None


def validate_run(run: RunSpec, *, names_only: bool) -> None:
    """Raise for an optimizer or a schedule that could not be built."""
    from anaphor.registry import OPTIMIZERS
    from anaphor.training.build import check_settings
    from anaphor.training.schedule import SCHEDULES

    look_up(OPTIMIZERS, run.optimizer, "optimizer")
    look_up(SCHEDULES, run.schedule, "schedule")
    if not names_only:
        check_settings(run)


def estimate_seconds(run: RunSpec) -> float:
    """Time that one cell would take here, without its final evaluation: two steps are run and the second is timed."""
    import torch

    from anaphor.training.build import build_experiment, build_step
    from anaphor.training.schedule import make_budget

    if run.minutes is not None:
        return STARTUP + 60 * run.minutes
    experiment = build_experiment(run)
    step = build_step(experiment)
    batches = experiment.batches(0)
    carry, seconds = None, 0.0
    for index in range(2):
        start = time.perf_counter()
        metrics, carry = step([batches[index % len(batches)]], carry)
        metrics.read()
        if experiment.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    steps_per_epoch = -(-len(batches) // run.accumulate)
    budget = make_budget(epochs=run.epochs, steps=run.steps, minutes=None, steps_per_epoch=steps_per_epoch)
    assert budget.steps is not None, "epochs have become steps"
    return STARTUP + budget.steps * run.accumulate * seconds
