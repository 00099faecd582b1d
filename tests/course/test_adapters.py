"""Files for Otter and nbgrader, run by stand-ins: a right solution passes, a wrong one fails with its mistake."""

import doctest
import json

import pytest

from anaphor.cli.main import main
from anaphor.course.adapters import ADAPTERS
from anaphor.course.sheet import read_sheet, sheet_numbers
from course.submissions import RIGHT, WRONG
from course.test_check_command import refusal


def run_otter(path):
    """What failed in a test file, as Otter runs it: the cases are doctests."""
    names = {}
    exec(path.read_text(encoding="utf-8"), names)
    assert names["OK_FORMAT"] is True
    failures = []
    for suite in names["test"]["suites"]:
        assert suite["type"] == "doctest"
        for case in suite["cases"]:
            test = doctest.DocTestParser().get_doctest(case["code"], {}, names["test"]["name"], None, 0)
            said = []
            doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
            failures += said
    return names["test"]["points"], "".join(failures)


def run_nbgrader(path):
    """What failed in the cells, as nbgrader counts them: a cell without an error has its points."""
    found = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        facts = cell["metadata"]["nbgrader"]
        assert (facts["grade"], facts["solution"], facts["schema_version"]) == (True, False, 3)
        try:
            exec("".join(cell["source"]), {})
            found[facts["grade_id"]] = facts["points"], ""
        except AssertionError as error:
            found[facts["grade_id"]] = 0, str(error)
    return found


@pytest.fixture
def submission(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "attention.py"


def test_otter_passes_a_right_solution_and_shows_the_mistake_of_a_wrong_one(submission, capsys):
    assert main(["adapter", "otter", "002", "--out", "tests", "--json"]) == 0
    assert "q002_2a.py" in json.loads(capsys.readouterr().out)["files"]
    submission.write_text(RIGHT, encoding="utf-8")
    file = submission.parent / "tests" / "q002_2a.py"
    assert run_otter(file) == (read_sheet("002").find("002.2a").points, "")
    submission.write_text(WRONG, encoding="utf-8")
    assert "softmax-over-queries" in run_otter(file)[1]


def test_nbgrader_gives_points_to_a_right_solution_and_shows_the_mistake_of_a_wrong_one(submission, monkeypatch):
    assert main(["adapter", "nbgrader", "002", "--out", "cells"]) == 0
    file = submission.parent / "cells" / "nbgrader-002.ipynb"
    cells = json.loads(file.read_text(encoding="utf-8"))
    cells["cells"] = [cell for cell in cells["cells"] if cell["id"] == "check_002_2a"]
    file.write_text(json.dumps(cells), encoding="utf-8")
    submission.write_text(RIGHT, encoding="utf-8")
    assert run_nbgrader(file) == {"check_002_2a": (read_sheet("002").find("002.2a").points, "")}
    submission.write_text(WRONG, encoding="utf-8")
    assert "softmax-over-queries" in run_nbgrader(file)["check_002_2a"][1]


@pytest.mark.parametrize("grader", ADAPTERS)
@pytest.mark.parametrize("number", sheet_numbers())
def test_every_check_of_a_sheet_is_in_the_files(grader, number):
    sheet = read_sheet(number)
    text = "\n".join(ADAPTERS[grader](sheet).values()).replace("\\", "")
    for exercise in sheet.exercises:
        for check in exercise.checks:
            assert f"{exercise.file}::{check.name}" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adapter", "oter", "002", "--out", "x"], "did you mean 'otter'?"),
        (["adapter", "otter", "999", "--out", "x"], "unknown sheet '999'"),
        (["adapter", "otter", "002"], "--out"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(main(words), capsys)
    assert not (tmp_path / "x").exists()
