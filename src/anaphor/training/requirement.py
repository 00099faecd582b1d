"""Requirement: what the checkpoint of a run must hold, beyond being as it was written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from anaphor.errors import CheckpointError, ConfigError
from anaphor.training.checkpoint import Checkpoint
from anaphor.training.state_dicts import Mismatch
from anaphor.training.progress import Progress

_FACTS = ("spec", "data", "tokenizer", "progress")


def to_use(saved: Checkpoint) -> Progress:
    """Refuse a checkpoint whose model cannot be used. Gives its progress, of which only the best step must be told."""
    told = _required(saved, ("model",), _FACTS)
    if "best_step" not in told:
        raise CheckpointError(f"{saved.facts_file}: the progress does not fit: missing: best_step")
    known = {field.name for field in fields(Progress)}
    return _checked(saved, {name: value for name, value in told.items() if name in known})


def to_go_on(saved: Checkpoint, *more: str) -> Progress:
    """Refuse a checkpoint from which training cannot go on, or which lacks `more` parts. Gives its progress, which must
    be all of it: whoever begins to count anew goes on elsewhere."""
    told = _required(saved, ("model", "optimizer", "random", *more), (*_FACTS, "schedule"))
    known = [field.name for field in fields(Progress)]
    missing, extra = [name for name in known if name not in told], [name for name in told if name not in known]
    Mismatch(missing, extra).refuse(f"{saved.facts_file}: the progress")
    return _checked(saved, told)


def _required(saved: Checkpoint, parts: Iterable[str], facts: Iterable[str]) -> dict[str, Any]:
    """The progress as it is told, where nothing is missing."""
    lacking = [name for name in facts if name not in saved.facts]
    if lacking:
        raise CheckpointError(f"{saved.facts_file} lacks {', '.join(lacking)}")
    for name in facts:
        if not isinstance(saved.facts[name], dict):
            kind = type(saved.facts[name]).__name__
            raise CheckpointError(f"{saved.facts_file}: {name} must hold names and values, but it is a {kind}")
    # What the run says of itself, which another spec may not: a run may go on by --force with an average or without.
    averaged = ["average"] if saved.facts["spec"].get("average", "none") != "none" else []
    lacking = [saved.file(part).name for part in (*parts, *averaged) if part not in saved.parts]
    if lacking:
        raise CheckpointError(f"{saved.path} lacks {', '.join(lacking)}")
    progress: dict[str, Any] = saved.facts["progress"]
    return progress


def _checked(saved: Checkpoint, told: dict[str, Any]) -> Progress:
    progress = Progress(**told)
    try:
        progress.check()
    except ConfigError as error:
        raise CheckpointError(f"{saved.facts_file}: {error}") from None
    return progress
