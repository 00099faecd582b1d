"""What works without the shelves that were deleted."""

import dataclasses
from collections.abc import Iterator

from anaphor.config import NOT_SETTINGS
from anaphor.training.task import TaskDefinition, recipes_of
from anaphor.yaml_files import read_mapping


def recipes_with_extras(task: TaskDefinition) -> Iterator[str]:
    """Names of the recipes whose extras are there. That this is all of them is tested with the extras."""
    settings = {field.name for field in dataclasses.fields(task.run_spec)}
    for name, file in recipes_of(task).items():
        if read_mapping(file).keys() - set(NOT_SETTINGS) <= settings:
            yield name
