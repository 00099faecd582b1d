"""Runs and studies of a folder as data, and what shows them: the live page, the report and `anaphor runs`."""

from anaphor.registry import register_verb


def register() -> None:
    """Add the verbs of this shelf: the registry calls it when names are first needed."""
    register_verb("serve", "show runs and studies in the browser, live", "anaphor.cli.serve:run")
    register_verb("report", "one page of one or several runs that needs no network", "anaphor.cli.report:run")
