"""MLflow, with the store that it has by default or that `MLFLOW_TRACKING_URI` names."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from anaphor.training.trackers import TrackedRun, scalars_of, step_scalars

MAX_VALUE = 6000
"""Characters of a parameter that the store keeps."""


class MlflowTracker:
    """A run of MLflow. One that is resumed is found by a tag with its id."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient

        self.metrics, self.metric = run.metrics, Metric
        self.client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "anaphor")
        experiment = self.client.get_experiment_by_name(name)
        place = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        there = self.client.search_runs([place], filter_string=f"tags.anaphor = '{run.id}'", max_results=1)
        if there:
            self.id = there[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
        else:
            self.id = self.client.create_run(place, run_name=run.name, tags={"anaphor": run.id}).info.run_id
            params = [Param(key, str(value)[:MAX_VALUE]) for key, value in run.settings.items()]
            for start in range(0, len(params), 100):  # more at once are refused
                self.client.log_batch(self.id, params=params[start : start + 100])
            self.client.log_batch(self.id, tags=[RunTag("folder", str(run.folder.resolve()))])

    def add_step(self, line: Mapping[str, Any]) -> None:
        self._log(step_scalars(line), line["step"])

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None:
        self._log(scalars_of(line, self.metrics), step)
        if sample:
            self.client.log_text(self.id, sample, f"samples/step-{step}.txt")

    def close(self) -> None:
        self.client.set_terminated(self.id)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[self.metric(name, value, now, step) for name, value in values.items()])
