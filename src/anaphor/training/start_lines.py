"""Start lines: what a training says when it begins. The first line needs no torch and comes before it is imported."""

from __future__ import annotations

from anaphor.errors import count_noun
from anaphor.training.budget import choose_epochs
from anaphor.training.spec import RunSpec


def describe_plan(spec: RunSpec) -> str:
    """Task, model, data, and what ends training."""
    init, mixers = getattr(spec, "init", None), getattr(spec, "mixers", ())
    model = f"model {spec.model}" if init is None else f"model from {init}"
    if mixers and init is None:
        model = f"layers {', '.join(mixers)}"
    return f"training {spec.task}: {model}, data {spec.data}, {describe_end(spec)}"


def describe_end(spec: RunSpec) -> str:
    """What ends training: the budget, or validations that do not improve."""
    if spec.minutes is not None:
        end = f"{spec.minutes:g} min, validation and scores included"
    elif spec.steps is not None:
        end = count_noun(spec.steps, "step")
    else:
        epochs = choose_epochs(spec)
        end = f"{epochs:g} epoch{'' if epochs == 1 else 's'}"
    if spec.patience is None:
        return end
    return f"{end} at most, fewer after {count_noun(spec.patience, 'validation')} without improvement"


def describe_built(parameters: int, device: str, batches: int, step: int, out: str) -> str:
    """What is known once data and model are there. `step` is the one that a resumed run continues from."""
    resumed = [f"resumed at step {step:,}"] if step else []
    per_epoch = f"{batches:,} {'batch' if batches == 1 else 'batches'} per epoch"
    return ", ".join([f"{parameters:,} parameters on {device}", per_epoch, *resumed, f"run {out}"])
