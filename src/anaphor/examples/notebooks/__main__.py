"""`python -m anaphor.examples.notebooks` lists the notebooks; with names it copies them into the current folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from anaphor.config import look_up
from anaphor.errors import AnaphorError, ConfigError
from anaphor.shipped_files import NOTEBOOKS, files_by_name


def copy_notebooks(names: list[str]) -> None:
    """Copy notebooks into the current folder, where no file of the name is."""
    found = files_by_name(NOTEBOOKS, ".ipynb")
    wanted = [look_up(found, name.removesuffix(".ipynb"), "notebook") for name in names]
    for path in wanted:
        if Path(path.name).exists():
            raise ConfigError(f"{path.name} exists: move it, or copy into another folder")
        print(shutil.copyfile(path, path.name))


def main(names: list[str]) -> int:
    if not names:
        print("\n".join(files_by_name(NOTEBOOKS, ".ipynb")))
        return 0
    try:
        copy_notebooks(names)
    except AnaphorError as error:
        print(f"anaphor: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
