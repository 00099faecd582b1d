"""A study that is done, read from its folder."""

from __future__ import annotations

from pathlib import Path

from anaphor.errors import DataError
from anaphor.studies.cell import read_json
from anaphor.studies.results import StudyResult
from anaphor.training.run_folder import STUDY
from anaphor.user_paths import user_path
from anaphor.yaml_files import read_mapping

RESULT = "result.json"


def load_study(folder: Path | str) -> StudyResult:
    """The result of a study that `anaphor study` has finished.

    Raises:
        DataError: The folder has no result of a study.
    """
    folder = user_path(folder)
    result = read_json(folder / RESULT)
    if not {"table", "findings", "cells", "best"} <= result.keys():
        raise DataError(f"{folder} is no finished study: `anaphor study FILE --out {folder}` makes one")
    spec = read_mapping(folder / STUDY) if (folder / STUDY).is_file() else {}
    return StudyResult(folder, str(spec.get("about") or ""), result)
