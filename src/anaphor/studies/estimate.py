"""How long a study would take: two steps of each setting are tried, and the second is timed."""

from __future__ import annotations

import time

import torch

from anaphor.studies.spec import Setting
from anaphor.training.run import build_step, prepare
from anaphor.training.schedule import make_budget

STARTING = 4.0  # seconds until a new process has loaded torch and its data


def estimate(setting: Setting) -> float:
    """Seconds that one cell would take here, its last validation not counted."""
    spec = setting.run
    if spec.minutes is not None:
        return STARTING + 60 * spec.minutes
    made = prepare(spec)
    step = build_step(spec, made.model, made.task, made.device)
    batches = made.task.batches(0)
    carry, seconds = None, 0.0
    for place in range(2):
        began = time.perf_counter()
        report, carry = step([batches[place % len(batches)]], carry)
        report.read()
        if made.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    steps_per_epoch = -(-len(batches) // spec.accumulate)
    budget = make_budget(epochs=spec.epochs, steps=spec.steps, minutes=None, steps_per_epoch=steps_per_epoch)
    assert budget.steps is not None, "epochs have become steps"
    return STARTING + budget.steps * spec.accumulate * seconds
