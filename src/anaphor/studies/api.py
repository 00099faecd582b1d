"""Studies from Python: what `anaphor study` does, with its result as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from anaphor.config import look_up
from anaphor.imported_files import import_file
from anaphor.studies.command import execute_study
from anaphor.studies.progress import make_no_progress, make_progress
from anaphor.studies.results import StudyResult
from anaphor.studies.spec import StudySpec
from anaphor.studies.study_file import find_study_file, read_study, read_study_values
from anaphor.studies.verb import Options, check_counts, default_name, override, refuse_varied
from anaphor.typecheck import check_types, checks_arguments

OPTIONS = (
    "seeds", "select", "test", "prune", "engine", "address", "workers", "per_device", "threads", "device", "force",
)  # fmt: skip
"""Flags of `anaphor study` that are keywords here."""


@checks_arguments
def study(
    spec: StudySpec | Mapping[str, Any] | Path | str,
    *,
    data: str | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    imports: Iterable[Path | str] = (),
    progress: bool = True,
    **options: Any,
) -> StudyResult:
    """Run a study, or resume it: `study("gates.yaml", out="gates").to_pandas()`.

    Args:
        spec: A spec, what a study file has as a mapping, a file, or the name of a preset.
        data: Data set, in place of the study's own.
        settings: Settings of every run; they override the study's own.
        out: Folder of the study; the same one resumes it (`studies/NAME` if not given).
        imports: Python files that register parts of your own; workers import them too.
        progress: Show the progress on stderr.
        **options: `seeds`, `select`, `test`, `prune`, `engine`, `address`, `workers`, `per_device`, `threads`, `device`
            and `force`, as the flags of `anaphor study`.

    Returns:
        The result, with a row for each run.
    """
    for path in imports:
        import_file(path)
    for name in options:
        look_up(dict.fromkeys(OPTIONS), name, "option of study")
    found, file = _read(spec, data)
    given = Options(study=file, out=None if out is None else Path(out), **options)
    check_types(given)
    check_counts(given)
    changes = dict(settings or {})
    if data is not None:
        changes["data"] = data
    for name in changes:
        refuse_varied(found, name, file)
    found = override(found.with_base(**changes), given)
    folder = Path("studies") / default_name(found) if out is None else Path(out)
    result = execute_study(found, folder, given, make_progress if progress else make_no_progress)
    assert result is not None, "it has no other workers"
    return StudyResult(folder, found.about, result)


def _read(spec: StudySpec | Mapping[str, Any] | Path | str, data: str | None) -> tuple[StudySpec, str]:
    """A study, and how messages call it."""
    if isinstance(spec, StudySpec):
        return spec, spec.name
    if isinstance(spec, Mapping):
        values = {str(name): value for name, value in spec.items()}
        name = str(values.pop("name", "study"))
        return read_study_values(values, Path(name), name, data), name
    file = find_study_file(str(spec))
    return read_study(file, data=data), str(file)
