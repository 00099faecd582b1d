"""Claims that courses make about attention and recurrence, each as a short module that can be run and changed."""

from anaphor.registry import register_verb


def register() -> None:
    """Add the verbs of this shelf: the registry calls it when names are first needed."""
    register_verb("lab", "claims about attention and recurrence as programs with checks", "anaphor.labs.verb:run")
