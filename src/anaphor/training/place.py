"""Place: where the data of a run lie, so that they are found again from any folder."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from pathlib import Path

from anaphor.errors import DataError


def place_of(data: str, names: Container[str]) -> str | None:
    """Data as a path that means the same in every folder. None: they have a name, or are such a path already."""
    if data in names:
        return None
    place = ",".join(str(path.absolute()) for path in _paths(data))
    return None if place in ("", data) else place


def at_hand(data: str, place: str | None, names: Container[str]) -> str:
    """The data of a run as they are found here and now: as the run calls them, else where they were when it began."""
    if data in names or _paths(data):
        return data
    if place is not None and _paths(place):
        return place
    here = "" if Path(data).expanduser().is_absolute() else " in this folder"
    before = "" if place is None else f", and no {place}"
    raise DataError(f"the data of the run are gone: there is no {data}{here}{before}")


def _paths(data: str) -> list[Path]:
    """A folder or a file, or two files with a comma between them; none where there is nothing."""
    # Not Path.exists, which raises an error of the system's for names that no file can have.
    whole = Path(data).expanduser()
    if os.path.exists(whole):
        return [whole]
    for comma in re.finditer(",", data):
        both = [Path(half).expanduser() for half in (data[: comma.start()], data[comma.end() :])]
        if all(map(os.path.isfile, both)):
            return both
    return []
