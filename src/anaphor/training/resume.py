"""Resume a run from its newest checkpoint, exactly, or raise and say what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from anaphor.config import plain_value
from anaphor.errors import CheckpointError, ConfigError
from anaphor.registry import extra_settings
from anaphor.training import checkpoint
from anaphor.training.run_folder import RunFolder
from anaphor.training.trainer import Trainer

Warn = Callable[[str], None]


def resume_from(folder: RunFolder, trainer: Trainer, *, force: bool, warn: Warn) -> list[str] | None:
    """Restore the newest checkpoint of a run and give what has changed. None: it has none, because it ended before.

    Settings, data or an environment that differ from those of the checkpoint are refused, unless by `force`.
    """
    saved, failures = checkpoint.newest(folder.checkpoints)
    for line in failures:
        warn(line if saved is None else f"{line}; skipping this checkpoint")
    if saved is None and failures:
        raise CheckpointError(
            f"{folder.folder} has no checkpoint that can be read: --overwrite would delete it and train anew"
            f"{folder.describe_previous()}"
        )
    if saved is None and folder.result.is_file() and folder.read_result().get("status") == "finished":
        if any(folder.checkpoints.glob("step-*")):
            raise CheckpointError(
                f"{folder.folder} cannot be resumed: it has the weights of its best step alone, as cells of a study "
                f"do; start another run from them with --init"
            )
        raise CheckpointError(f"{folder.folder} has no checkpoint: --overwrite would delete it and train anew")
    facts = {**trainer.facts, "spec": folder.read_settings()} if saved is None else saved.facts
    if saved is not None:
        fingerprint = trainer.experiment.fingerprint()
        saved.validate_for_resume(facts=[name for name, value in fingerprint.items() if isinstance(value, dict)])
    changed = list(differences(facts, trainer.facts, trainer.experiment.spec.task))
    if changed and not force:
        raise ConfigError(f"settings differ from the checkpoint: {'; '.join(changed)}; use --force to resume anyway")
    if saved is None:
        warn(f"{folder.folder} has no checkpoint yet: training starts at step 0")
        return None
    folder.set_damaged_lines_aside(warn)
    if not changed and trainer.experiment.initial_carry() is not None:
        saved.validate_for_resume("carry")
    trainer.load(saved)
    if saved.facts["spec"] != trainer.facts["spec"] and changed and trainer.is_over():
        raise ConfigError(
            f"{folder.folder} is finished, so that other settings have no effect: {'; '.join(changed)}; "
            f"give a larger budget as well, or train another run"
        )
    trainer.facts["test"] = saved.facts.get("test", True)
    if changed and not trainer.is_over():
        _compare_measurements(trainer, saved.facts)
    if trainer.progress.best_step != saved.step:
        trainer.best_checkpoint(warn)
    folder.truncate_after(trainer.progress.last_logged)
    folder.delete_previous()  # a kill may have come between the checkpoint and this
    if trainer.is_over():
        warn(f"{folder.folder} has been trained to its end: it is only scored")
    if changed:
        warn(f"resuming {folder.folder} with changes: {'; '.join(changed)}")
    return changed


def _compare_measurements(trainer: Trainer, before: dict[str, Any]) -> None:
    """Forget a best value that is of another metric or of other data, now, or by another protocol, as soon as the next
    validation shows it."""
    if before["spec"].get("select") != trainer.facts["spec"]["select"] or (
        before["data"].get("valid") != trainer.facts["data"].get("valid")
    ):
        trainer.forget_best()
    for line in trainer.folder.read_metrics():
        if line["step"] == trainer.progress.best_step and isinstance(line.get("valid"), dict):
            trainer.best_signature = line["valid"].get("signature")


def differences(before: dict[str, Any], now: dict[str, Any], task: str) -> Iterator[str]:
    """What differs between a checkpoint and the present: settings, data, preprocessing, environment, files."""
    # A run from before an extra was there, or that did not use it, had the defaults of its settings.
    without = {name: plain_value(value) for kind in extra_settings(task) for name, value in vars(kind()).items()}
    yield from setting_differences(without | before.get("spec", {}), without | now["spec"])
    for split, digest in now["data"].items():
        if before.get("data", {}).get(split) != digest:
            yield f"{split} has changed"
    known = {"spec", "data", "test", "environment", "imports", "progress", "schedule"}
    for name in sorted(now.keys() - known):
        if before.get(name) != now[name]:
            yield f"the {name} has changed"
    old, new = before.get("environment", {}), now["environment"]
    # Sums on a CPU are rounded by how many threads share them; on a GPU threads only bring the batches.
    for name in ("device", "dtype", *(["threads"] if new["device"] == "cpu" else [])):
        if old.get(name) != new[name]:
            yield f"{name} was {old.get(name)} and is {new[name]}"
    hashes = {entry.get("sha256") for entry in before.get("imports", [])}
    for entry in now.get("imports", []):
        if entry["sha256"] not in hashes:
            yield f"{entry['file']} has changed"


def setting_differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Settings with other values. Device and dtype are compared as they are resolved, by the environment."""
    for name in sorted(old.keys() | new.keys()):
        if name not in ("device", "dtype") and old.get(name) != new.get(name):
            yield f"{name} was {_format_setting(old, name)} and is {_format_setting(new, name)}"


def _format_setting(settings: dict[str, Any], name: str) -> str:
    text = repr(settings[name]) if name in settings else "not set"
    return text if len(text) <= 80 else f"{text[:79]}…"
