"""A finished study as an object: question, table and findings, also in a notebook."""

import json

import pytest

from anaphor.errors import DataError
from anaphor.studies import load_study

TABLE = "| model | perplexity |\n| ----- | ---------: |\n| <lstm> |        12 |\n"
CELL = {"parameters": {"model": "<lstm>"}, "seed": 0, "status": "finished", "valid": {"loss": 2.5, "signature": "a"}}
CELL |= {"seconds": 1.0, "run": "cells/a"}


@pytest.fixture
def folder(tmp_path):
    result = {"table": TABLE, "findings": ["Best: <lstm>."], "cells": [CELL], "best": None}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "study.yaml").write_text("about: is <lstm> good?\n")
    (tmp_path / "study.svg").write_text("<svg/>")
    return tmp_path


def test_a_study_is_read_from_its_folder(folder):
    study = load_study(folder)
    assert study.question == "is <lstm> good?"
    assert study.findings == ("Best: <lstm>.",)
    assert study.cells == (CELL,)
    row = {"model": "<lstm>", "seed": 0, "status": "finished", "valid_loss": 2.5, "seconds": 1.0, "run": "cells/a"}
    assert list(study) == [row]
    assert str(study) == TABLE + "Best: <lstm>."


def test_a_notebook_shows_question_table_findings_and_figure_and_nothing_of_it_is_markup(folder):
    html = load_study(folder)._repr_html_()
    assert "<td>&lt;lstm&gt;</td><td>12</td>" in html
    assert "<lstm>" not in html
    assert html.index("is &lt;lstm&gt; good?") < html.index("<table>") < html.index("Best: ") < html.index("<img")
    assert "data:image/svg+xml;base64," in html
    assert "<svg" not in html


def test_a_folder_without_a_finished_study_is_refused(tmp_path):
    with pytest.raises(DataError, match="is no finished study: `anaphor study FILE --out"):
        load_study(tmp_path)
