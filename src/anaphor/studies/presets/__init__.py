"""Presets: studies that come with the program, as files one can copy and change."""

from __future__ import annotations

from pathlib import Path

from anaphor.config import nearest, read_mapping
from anaphor.errors import ConfigError


def presets() -> dict[str, Path]:
    """All of them, by name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}


def study_file(name: str) -> Path:
    """A preset by its name, or a file by its path."""
    if name in presets():
        return presets()[name]
    if Path(name).is_file():
        return Path(name)
    known = ", ".join(presets())
    raise ConfigError(f"no study {name!r}{nearest(name, presets())} (known: {known}; or a YAML file)")


def questions() -> dict[str, str]:
    """What each preset asks."""
    return {name: str(read_mapping(path).get("about", "")) for name, path in presets().items()}
