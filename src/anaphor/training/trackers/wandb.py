"""Weights & Biases. Without `WANDB_MODE` it writes below the run's folder, and `wandb sync` uploads that later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from anaphor.training.trackers import TrackedRun, scalars_of, step_scalars


class WandbTracker:
    """A run of wandb with the id of ours, so that what is logged after a resume belongs to it."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self.metrics = run.metrics
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "anaphor"),
            name=run.name,
            id=run.id,
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=dict(run.settings),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
        )

    def add_step(self, line: Mapping[str, Any]) -> None:
        self.run.log(step_scalars(line), step=line["step"])

    def add(self, step: int, line: Mapping[str, Any], sample: str) -> None:
        self.run.log({**scalars_of(line, self.metrics), **({"sample": sample} if sample else {})}, step=step)

    def close(self) -> None:
        self.run.finish()
