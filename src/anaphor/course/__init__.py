"""For teachers and their students: handouts, checks of a student's own implementations, grading, bundles."""

from anaphor.registry import register_verb


def register() -> None:
    """Add the verbs of this shelf: the registry calls it when names are first needed."""
    register_verb(
        "check", "check your own implementation against ours, and name the mistake", "anaphor.course.verb:run"
    )
    register_verb("handout", "write the exercises of a course sheet for a student", "anaphor.course.handout_verb:run")
    register_verb("hint", "show the hints of an exercise, one at a time", "anaphor.course.hint_verb:run")
    register_verb("grade", "grade submissions of a course sheet in a sandbox", "anaphor.course.grade_verb:run")
    register_verb("leaderboard", "rank the runs of submissions, with ties", "anaphor.course.leaderboard_verb:run")
    register_verb(
        "adapter", "write the checks of a course sheet for Otter or nbgrader", "anaphor.course.adapter_verb:run"
    )
    register_verb(
        "bundle", "pack a course for a room without a network into one file", "anaphor.course.bundle_verb:run"
    )
