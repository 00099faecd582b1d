"""Recipes: settings that are known to work, as files that come with the program."""

from __future__ import annotations

from pathlib import Path

from anaphor.config import look_up


def recipes() -> dict[str, Path]:
    """All of them, by name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}


def recipe_file(name: str) -> Path:
    """The file of one, or an error that says which there are."""
    return look_up(recipes(), name, "recipe")
