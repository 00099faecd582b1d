"""Recipes: settings that are known to work, as files that come with the program, in a folder for each task."""

from __future__ import annotations

from pathlib import Path

from anaphor.config import look_up
from anaphor.errors import ConfigError


def recipes(task: str) -> dict[str, Path]:
    """All recipes of a task, by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / task).glob("*.yaml"))}


def recipe_file(name: str, task: str) -> Path:
    """The file of one, or an error that says which there are."""
    found = recipes(task)
    for other in sorted(folder.name for folder in Path(__file__).parent.iterdir() if folder.is_dir()):
        if name not in found and name in recipes(other):
            there = ", ".join(found) or "none yet"
            raise ConfigError(f"recipe {name!r} is for `train {other}`, not for `train {task}` (known there: {there})")
    return look_up(found, name, "recipe")
