"""Many runs, one answer: a study names axes, seeds and what to choose by."""

from typing import TYPE_CHECKING, Any

from anaphor.registry import register_verb

if TYPE_CHECKING:
    from anaphor.studies.load import load_study
    from anaphor.studies.results import StudyResult
    from anaphor.studies.spec import StudySpec
    from anaphor.studies.study_file import read_study

__all__ = ["StudyResult", "StudySpec", "load_study", "read_study"]


def register() -> None:
    """Add the verbs of this shelf: the registry calls it when names are first needed."""
    register_verb(
        "study", "train many runs, compare them with statistics, draw a table and a figure", "anaphor.studies.verb:run"
    )


if not TYPE_CHECKING:  # which would take every name for known

    def __getattr__(name: str) -> Any:
        """Public names are imported on first use, so that `anaphor --help` does not wait for them."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

        from anaphor.studies import load, results, spec, study_file

        places = {"StudySpec": spec, "read_study": study_file, "load_study": load, "StudyResult": results}
        return getattr(places[name], name)
