"""Trackio, a tracker that keeps runs on this machine; `trackio show` draws them. `TRACKIO_DIR` says where."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from anaphor.training.trackers import TrackedRun, scalars_of, step_scalars


class TrackioTracker:
    """A run of trackio with the name of ours and its id, because names need not be unique."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self.metrics, self.finish = run.metrics, trackio.finish  # that of the run would be called again at exit
        with contextlib.redirect_stdout(io.StringIO()):  # our stdout may be one JSON value
            self.run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", "anaphor"),
                name=f"{run.name}-{run.id}",
                config=dict(run.settings),
                resume="allow",
                embed=False,
            )

    def add_step(self, line: Mapping[str, Any]) -> None:
        self.run.log(step_scalars(line), step=line["step"])

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None:
        self.run.log({**scalars_of(line, self.metrics), **({"sample": sample} if sample else {})}, step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.finish()
