"""Recipes: settings that are known to work, as YAML files in a task's folder."""

from __future__ import annotations

from pathlib import Path

from anaphor.config import look_up
from anaphor.errors import ConfigError
from anaphor.registry import TASKS


def recipes(task: str) -> dict[str, Path]:
    """All recipes of a task, by name."""
    folder = TASKS[task].recipes
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def recipe_file(name: str, task: str) -> Path:
    """The file of a recipe; an unknown name is refused with the known ones."""
    found = recipes(task)
    for other in TASKS:
        if name not in found and name in recipes(other):
            known = ", ".join(found) or "none yet"
            raise ConfigError(f"recipe {name!r} is for `train {other}`, not for `train {task}` (known there: {known})")
    return look_up(found, name, "recipe")
