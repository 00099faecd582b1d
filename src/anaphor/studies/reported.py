"""Metrics that a study reports beside the one that selects: `accuracy`, or `accuracy_2x` on examples twice as long."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.metrics.result import Metric
from anaphor.training.task import TaskDefinition

MAX_FACTOR = 1024
_LONGER = re.compile(r"(?P<metric>.+)_(?P<factor>\d{1,9})x")


@dataclass(frozen=True)
class Reported:
    """A metric, and how many times as long as in training the examples are that it is measured on."""

    metric: Metric
    """With a name and a label that say the length."""
    base: Metric
    """The task's own."""
    factor: int = 1

    def find_result(self, result: Mapping[str, Any], measures: Mapping[str, Any]) -> Any:
        """The result to take the value from: that of the split, or that at the length; None where it is missing."""
        return result if self.factor == 1 else measures.get("longer", {}).get(str(self.factor))


def read_reported(names: Sequence[str], task: TaskDefinition) -> tuple[Reported, ...]:
    """The metrics of these names, checked."""
    found = tuple(read_metric(str(name).removeprefix("valid."), task) for name in names)
    repeated = [one.metric.name for one in found if sum(other == one for other in found) > 1]
    if repeated:
        raise ConfigError(f"report has {repeated[0]} twice")
    return found


def read_metric(name: str, task: TaskDefinition) -> Reported:
    metrics = {metric.name: metric for metric in task.metrics}
    match = None if name in metrics else _LONGER.fullmatch(name)
    base = look_up(metrics, match["metric"] if match else name, "metric to report")
    if match is None:
        return Reported(base, base)
    factor = int(match["factor"])
    if task.evaluate_longer is None:
        raise ConfigError(
            f"report: {name}: task {task.name} does not say how it is evaluated on longer examples than those of "
            f"training (`evaluate_longer` of its definition)"
        )
    if not 2 <= factor <= MAX_FACTOR:
        raise ConfigError(
            f"report: {name}: give 2 to {MAX_FACTOR} times the length of training, such as {base.name}_2x"
        )
    return Reported(replace(base, name=name, label=f"{base.label} at {factor}× length"), base, factor)
