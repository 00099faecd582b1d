"""Known names: a model or a data set that does not exist is refused before torch is imported."""

from __future__ import annotations

from anaphor.config import look_up
from anaphor.registry import DATASETS, PRESETS
from anaphor.training.paths import existing_paths
from anaphor.training.spec import RunSpec
from anaphor.training.task import TaskDefinition


def check_names(task: TaskDefinition, spec: RunSpec) -> None:
    """Raise for the name of a model or of a data set that nobody has registered, with the nearest known one."""
    if task.columns and spec.data not in DATASETS and not existing_paths(spec.data):
        # Here, because it takes NumPy, which a run with a known name need not wait for before its first line.
        from anaphor.data.datasets import open_dataset

        open_dataset(spec.data, task.columns)
    if spec.presets is not None and getattr(spec, "init", None) is None:
        look_up(PRESETS[spec.presets], spec.model, "model")
