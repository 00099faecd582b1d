"""Options of a model among the settings of a run. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from anaphor.errors import ConfigError

REPLACED_LAYERS: Mapping[str, tuple[str, ...]] = {
    "model": ("mixers", "layer_widths", "layer_norms", "layer_residuals", "layer_dropouts", "layer_kernel_sizes"),
    "width": ("layer_widths",),
    "norm": ("layer_norms",),
    "residual": ("layer_residuals",),
    "dropout": ("layer_dropouts",),
    "kernel_size": ("layer_kernel_sizes",),
}
"""`RunSpec.replaced` of a stack of layers: what a flag says of all replaces what a file says of each."""


def drop_implied_options(
    settings: Mapping[str, Any], kind: Any, used_settings: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Settings without options of the model that follow from its preset and the other options.

    Args:
        settings: What is given.
        kind: The class with the options of the model.
        used_settings: The settings that the model of these settings uses; raises `ConfigError` where there is none.
    """
    kept = dict(settings)
    wanted = used_settings(kept)
    for name in [field.name for field in fields(kind) if kept.get(field.name) not in (None, ())]:
        fewer = {other: value for other, value in kept.items() if other != name}
        try:
            if used_settings(fewer) == wanted:
                kept = fewer
        except ConfigError:  # the preset does not work without it
            continue
    return kept


def pick_options(kind: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are options of this class; None for those that do not apply."""
    return {field.name: settings.get(field.name) for field in fields(kind)}
