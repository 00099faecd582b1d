"""Runs and studies of a folder as data, and what shows them: the live page, the report and `anaphor runs`."""

from anaphor.registry import SERVICES, register_verb


def register() -> None:
    """Add the verbs, and what a notebook shows: the registry calls it when names are first needed."""
    SERVICES.add("show-run", "anaphor.web.notebook:show_run")
    SERVICES.add("show-look", "anaphor.web.notebook:show_look")
    register_verb(
        "runs", "list runs and studies: status, values, speed, age, settings that differ", "anaphor.web.runs_verb:run"
    )
    register_verb("serve", "show runs and studies in the browser, live", "anaphor.web.serve_verb:run")
    register_verb("report", "one page of one or several runs that needs no network", "anaphor.web.report_verb:run")
