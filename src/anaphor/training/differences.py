"""What differs between a checkpoint and the run that is to continue from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anaphor.plain_values import plain_value
from anaphor.registry import extra_settings
from anaphor.training.spec import spell_out_mixers

ADDED_SETTINGS = {"short_conv": 0, "norm_kind": "layernorm", "feedforward_bias": True, "parallel_residual": "none"}
"""Settings that runs of earlier versions do not name, with the values that all of them had."""


def differences(before: dict[str, Any], now: dict[str, Any], task: str) -> Iterator[str]:
    """What differs between a checkpoint and the present: settings, data, preprocessing, environment, files."""
    # A run from before an extra was there, or that did not use it, had the defaults of its settings.
    without = {name: plain_value(value) for kind in extra_settings(task) for name, value in vars(kind()).items()}
    yield from setting_differences(without | before.get("spec", {}), without | now["spec"])
    for split, digest in now["data"].items():
        if before.get("data", {}).get(split) != digest:
            yield f"{split} has changed"
    keys = {"spec", "data", "test", "environment", "imports", "callbacks", "progress", "schedule"}
    for name in sorted(now.keys() - keys):
        if before.get(name) != now[name]:
            yield f"the {name} has changed"
    old, new = before.get("environment", {}), now["environment"]
    # Sums on a CPU are rounded by how many threads share them; on a GPU threads only bring the batches.
    # Nor do they matter where the number of processes is another one.
    is_exact = new["device"] == "cpu" and old.get("ranks", 1) == new.get("ranks", 1)
    for name in ("device", "dtype", *(["threads"] if is_exact else [])):
        if old.get(name) != new[name]:
            yield f"{name} was {old.get(name)} and is {new[name]}"
    if (was_on := old.get("kernels", True)) != (is_on := new.get("kernels", True)):
        yield f"kernels were {'on' if was_on else 'off'} and are {'on' if is_on else 'off'} (--no-kernels)"
    hashes = {entry.get("sha256") for entry in before.get("imports", [])}
    for entry in now.get("imports", []):
        if entry["sha256"] not in hashes:
            yield f"{entry['file']} has changed"
    yield from _callback_differences(before.get("callbacks", []), now.get("callbacks", []))


def _callback_differences(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[str]:
    """Callbacks that change training, and are not those of the checkpoint. All others may come and go; registered ones
    follow from settings and files, which are compared."""
    old, new = (
        [one for one in some if one.get("changes_training") and not one.get("registered")] for some in (before, now)
    )
    for one in old:
        if one.get("sha256") not in [other.get("sha256") for other in new if other["class"] == one.get("class")]:
            again = f"; pass --callback {one['file']}:{one['class']}" if "file" in one else ""
            yield f"callback {one.get('class')}, which changes training, is not there as it was{again}"
    for one in new:
        if one["class"] not in [other.get("class") for other in old]:
            yield f"callback {one['class']}, which changes training, was not there"


def setting_differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Settings with other values. Device and dtype are compared as they were used, by the environment."""
    old = spell_out_mixers({name: value for name, value in ADDED_SETTINGS.items() if name in new} | old)
    new = spell_out_mixers(new)
    for name in sorted(old.keys() | new.keys()):
        if name not in ("device", "dtype") and old.get(name) != new.get(name):
            yield f"{name} was {_format_setting(old, name)} and is {_format_setting(new, name)}"


def _format_setting(settings: dict[str, Any], name: str) -> str:
    text = repr(settings[name]) if name in settings else "not set"
    return text if len(text) <= 80 else f"{text[:79]}…"
