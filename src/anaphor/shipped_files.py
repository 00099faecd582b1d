"""Files that come with the program, found by name: recipes, studies, examples and the documentation."""

from __future__ import annotations

from pathlib import Path

from anaphor.user_paths import user_path

PACKAGE = Path(__file__).parent
EXAMPLES = PACKAGE / "examples"
"""Files to try, to read and to copy: parts for `--import`, functions for `trace`, studies."""
NOTEBOOKS = EXAMPLES / "notebooks"
DOCS = "docs"
"""Folder of the documentation in an installed package."""


def find_docs() -> Path | None:
    """The pages of the documentation: in the package, or beside it in a checkout; None where there are none."""
    folders = (PACKAGE / DOCS, PACKAGE.parents[1] / DOCS)
    return next((folder for folder in folders if (folder / "index.md").is_file()), None)


def files_by_name(folder: Path, ending: str) -> dict[str, Path]:
    """The files of a folder of the program that have an ending, by name without it."""
    return {path.stem: path for path in sorted(folder.glob(f"*{ending}")) if not path.stem.startswith("_")}


def find_file(given: Path | str, ending: str, *folders: Path) -> Path:
    """The file that a user names: their own by its path, or one of the program's by its name.

    `leaky_mixer` is the file of the program; so is `leaky_mixer.py`, where the current folder has no such file. Where
    nothing has the name, the path as it was given.
    """
    path = user_path(given)
    name = str(given) if path.exists() else str(given).removesuffix(ending)
    for folder in folders:
        files = files_by_name(folder, ending)
        if name in files:
            return files[name]
    return path
