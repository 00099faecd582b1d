"""Names that become names of files and folders."""

from __future__ import annotations

import re

from anaphor.errors import ConfigError

MAX_NAME = 60  # characters
_NAME = re.compile(rf"\w[\w .,+=@()-]{{0,{MAX_NAME - 1}}}")


def check_name(name: str, what: str) -> None:
    """Raise for a name that cannot be the name of one file or folder on every system."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what}={name[:80]!r}: a name begins with a letter or a digit and has at most {MAX_NAME} letters, digits "
            f"and characters of ' .,+=@()_-'"
        )
