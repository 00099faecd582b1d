"""Many runs, one answer: a study names axes, seeds and what to choose by."""

from anaphor.studies.spec import StudySpec, read_study

__all__ = ["StudySpec", "read_study"]
