"""`spec.yaml`: the settings of a run with the values that are used, none left open, and the environment they ran in.

The same settings are in every checkpoint, as metadata that must not change when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anaphor.config import FORMAT, group_by_section, settings_of
from anaphor.imported_files import ImportedFile
from anaphor.metrics.described import describe_metrics
from anaphor.metrics.result import find_metric
from anaphor.plain_values import plain_value
from anaphor.registry import TASKS, extra_settings
from anaphor.training.budget import choose_epochs
from anaphor.training.build import task_of
from anaphor.training.checks import get_fingerprint
from anaphor.training.device import describe_environment
from anaphor.training.experiment import Experiment
from anaphor.training.optimizers import OptimizerSpec
from anaphor.training.schedule import ScheduleSpec
from anaphor.training.spec import RunSpec
from anaphor.yaml_files import dump_yaml


def collect_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings of a run with the values that are used, flat and plain. Those that do not apply are left out, and so
    are those of an extra whose settings all have their defaults."""
    spec = experiment.spec
    values: dict[str, Any] = dict(vars(spec))
    values |= dict.fromkeys(("betas", "momentum", "min_lr_ratio", "plateau_factor"))
    values |= OptimizerSpec.of(spec).used_settings() | ScheduleSpec.of(spec).used_settings()
    values["epochs"] = choose_epochs(spec)
    values["select"] = find_metric(task_of(spec).metrics, spec.select).name
    values |= experiment.chosen_settings()
    for kind in extra_settings(spec.task):
        unused = vars(kind())
        if vars(settings_of(spec, kind)) == unused:  # the run can be read where the extra is missing
            values = {name: value for name, value in values.items() if name not in unused}
    return {name: plain_value(value) for name, value in values.items() if value not in (None, ())}


def collect_metadata(experiment: Experiment, imports: Iterable[ImportedFile], *, test: bool) -> dict[str, Any]:
    """What must be the same when a run is resumed: settings, data, preprocessing, environment, the user's own files;
    and whether its test split is scored."""
    return {
        "spec": collect_settings(experiment),
        **get_fingerprint(experiment),
        "test": test,
        "environment": describe_environment(experiment.device, experiment.spec.dtype, experiment.model),
        "imports": [{"file": str(file.path), "sha256": file.sha256} for file in imports],
    }


def spec_document(spec: RunSpec, metadata: Mapping[str, Any], **paths: str | None) -> str:
    """The text of `spec.yaml`.

    Args:
        spec: The spec of the run, whose sections the settings are sorted into.
        metadata: Its settings (`spec`), `environment`, `imports` and `callbacks`, as checkpoints have them.
        **paths: `data_path` and `init_path`: where data and initial weights were found, for the environment.
    """
    document: dict[str, Any] = {"format": FORMAT, "task": spec.task, **group_by_section(type(spec), metadata["spec"])}
    found = {name: path for name, path in paths.items() if path is not None}
    document["environment"] = metadata["environment"] | found
    for name in ("imports", "callbacks"):
        if metadata.get(name):
            document[name] = metadata[name]
    if not TASKS.is_builtin(spec.task):
        task = task_of(spec)
        document["measures"] = describe_metrics(task.metrics, task.unit)
    return dump_yaml(document)
