"""The reference of the command is what `--help` says."""

import pytest

from anaphor.registry import SHELVES, VERBS
from commands.verb_pages import FOLDER, index_page, verb_page

pytestmark = pytest.mark.needs(*SHELVES)  # each adds verbs or options
AGAIN = "the help has changed: run `PYTHONPATH=tests python tests/commands/verb_pages.py`"


def read(name):
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _help_of_a_fixed_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("verb", [path.stem for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"])
def test_the_page_of_a_verb_has_what_its_help_says(verb):
    assert verb_page(verb) == read(verb), AGAIN


def test_every_verb_has_a_page_and_a_line_in_the_index():
    ours = [name for name in VERBS if str(VERBS[name].function).startswith("anaphor.")]  # other tests register more
    assert {path.stem for path in FOLDER.glob("*.md")} == {"index", *ours}
    assert index_page(ours) == read("index"), AGAIN
