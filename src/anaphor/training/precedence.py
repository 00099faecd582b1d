"""Precedence: what gives way where settings are laid over others, such as flags over a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anaphor.training.spec import BUDGETS

# What takes the place of something else: what is said of all layers, of what was said of each; a rule, of its options.
REPLACED = {
    "model": ("mixers", "layer_widths", "layer_norms", "layer_residuals", "layer_dropouts", "layer_lr"),
    "width": ("layer_widths",),
    "norm": ("layer_norms",),
    "residual": ("layer_residuals",),
    "dropout": ("layer_dropouts",),
    "optimizer": ("betas", "momentum"),
    "schedule": ("min_lr_ratio", "plateau_factor"),
}


def without_replaced(base: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, without what gives way to something that is said: a budget to another, whatever its unit."""
    gone = set(BUDGETS) if any(said.get(name) is not None for name in BUDGETS) else set()
    for name, others in REPLACED.items():
        if said.get(name) not in (None, base.get(name)):
            gone |= set(others)
    return {name: value for name, value in base.items() if name not in gone}


def laid_over(base: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """What is said, and the base where nothing is."""
    return {**without_replaced(base, said), **said}
