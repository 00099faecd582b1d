"""The notebooks run from the first cell to the last, and their objects show themselves."""

import json

import pytest
import torch

from anaphor.examples.notebooks.__main__ import main
from anaphor.registry import MIXERS
from anaphor.shipped_files import NOTEBOOKS, files_by_name, find_file
from commands.notebook_cells import read_cells, run_cells

ALL = files_by_name(NOTEBOOKS, ".ipynb")
SLOW = {"fine_tuning", "first_model", "look_inside", "study"}
SHOWN = {"first_model": "Run", "look_inside": "TextLook", "study": "StudyResult"}
"""What shows itself richly in a notebook."""


def cases():
    for name in ALL:
        needs = [pytest.mark.needs("web", *(["studies"] if name == "study" else []))]
        yield pytest.param(name, marks=[*needs, pytest.mark.slow] if name in SLOW else needs)


@pytest.mark.parametrize("name", [*cases()])
def test_every_cell_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anaphor.training.loop.draw_curves", lambda folder, task: list(folder.curves))
    if name == "study":
        from studies.here import Here

        monkeypatch.setattr("anaphor.studies.command.build_engine", lambda name, **options: Here(slots=2))
    torch.set_default_dtype(torch.float32)
    try:
        shown = [value for value in run_cells(ALL[name]) if value is not None]
    finally:
        MIXERS.remove("mean")
    rich = {type(value).__name__: value._repr_html_() for value in shown if hasattr(value, "_repr_html_")}
    if name in SHOWN:
        assert len(rich[SHOWN[name]]) > 1000


@pytest.mark.parametrize("name", ALL)
def test_a_notebook_begins_with_what_it_is_about_and_one_cell_that_installs(name):
    cells = json.loads(ALL[name].read_text(encoding="utf-8"))["cells"]
    assert [cell["cell_type"] for cell in cells[:2]] == ["markdown", "code"]
    assert cells[0]["source"][0].startswith("# ")
    assert [("%pip install" in source) for source in read_cells(ALL[name])].count(True) == 1
    assert "%pip install" in read_cells(ALL[name])[0]


@pytest.mark.parametrize("name", ALL)
def test_the_first_cell_installs_the_wheel_beside_the_notebook_or_else_from_an_index(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    choice, installation = read_cells(ALL[name])[0].split("try:")
    assert "%pip install -q {SOURCE}" in installation
    for wheel in ("anaphor", "anaphor-1.0.0-py3-none-any.whl", "anaphor-1.0.1-py3-none-any.whl"):
        if wheel.endswith(".whl"):
            (tmp_path / wheel).touch()
        found: dict[str, str] = {}
        exec(choice, found)
        assert found["SOURCE"] == wheel


@pytest.mark.parametrize("name", ALL)
def test_a_notebook_is_stored_without_outputs(name):
    cells = json.loads(ALL[name].read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_notebooks_are_found_by_name_and_copied_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert find_file("study", ".ipynb", NOTEBOOKS) == ALL["study"]
    assert main([]) == 0
    assert capsys.readouterr().out.split() == [*ALL]
    assert main(["first_model"]) == 0
    assert (tmp_path / "first_model.ipynb").read_bytes() == ALL["first_model"].read_bytes()
    assert main(["first_model"]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["frist_model"]) == 2
    assert "did you mean 'first_model'?" in capsys.readouterr().err
