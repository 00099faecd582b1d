"""The notebooks of the sheets: cells for code, checks after them; the teacher's runs from the first cell on."""

import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from anaphor.course.handout import make_handout
from anaphor.course.handout_notebook import notebook_name
from anaphor.course.sheet import read_sheet, sheet_numbers
from anaphor.course.submission import list_missing, read_submission
from commands.notebook_cells import read_cells, to_python

SOURCE = Path(__file__).parents[2] / "src"
MAX_SECONDS = 300
"""Of any command, on one thread."""


def split_cell(source):
    """What a cell is: a file to write, a command, or Python."""
    first, _, rest = source.partition("\n")
    if first.startswith("%%writefile "):
        return "file", (first.removeprefix("%%writefile "), rest)
    return ("command", shlex.split(source.removeprefix("!"))) if source.startswith("!anaphor ") else ("python", source)


def run_command(words, folder):
    """Exit code, what it printed, and seconds of the CPU."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20 * MAX_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def run_notebook(folder, name, wanted):
    """Run all cells in order; of the commands those whose verb is wanted. Yields each with its code, output, time."""
    namespace = {}
    for source in read_cells(folder / name):
        kind, content = split_cell(source)
        if kind == "file":
            file, text = content
            (folder / file).write_text(text, encoding="utf-8")
        elif kind == "python":
            exec(compile(to_python(source), name, "exec"), namespace)
        elif wanted is None or content[1] in wanted:
            yield content, *run_command(content, folder)


def make_copy(folder, number, teacher):
    make_handout(number, folder, student="ada", teacher=teacher)
    return notebook_name(read_sheet(number))


@pytest.mark.parametrize("number", sheet_numbers())
def test_a_cell_writes_each_file_of_code_and_a_check_follows(number, tmp_path):
    sheet = read_sheet(number)
    for teacher in (False, True):
        folder = tmp_path / str(teacher)
        cells = [split_cell(source) for source in read_cells(folder / make_copy(folder, number, teacher))]
        files = dict(content for kind, content in cells if kind == "file")
        assert [*files] == [*sheet.code_files]
        for file, text in files.items():
            assert text.strip() == (folder / file).read_text(encoding="utf-8").strip()
            checks = [check.command(file) for one in sheet.exercises if one.file == file for check in one.checks]
            later = cells[cells.index(("file", (file, text))) :]
            assert all(("command", shlex.split(check)) in later for check in checks)


@pytest.mark.parametrize("number", sheet_numbers())
def test_the_python_cells_of_a_students_notebook_run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = make_copy(tmp_path, number, teacher=False)
    assert [*run_notebook(tmp_path, name, wanted=())] == []


def test_a_notebook_alone_writes_its_handout(tmp_path, monkeypatch):
    name = make_copy(tmp_path / "whole", "001", teacher=False)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    monkeypatch.chdir(alone)
    assert [*run_notebook(alone, name, wanted=())] == []
    files = {
        folder: {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        for folder in (alone, tmp_path / "whole")
    }
    assert files[alone] == files[tmp_path / "whole"]


def test_a_notebook_is_stored_without_outputs(tmp_path):
    name = make_copy(tmp_path, "002", teacher=True)
    cells = json.loads((tmp_path / name).read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
@pytest.mark.needs("studies", "labs")
@pytest.mark.parametrize("number", sheet_numbers())
def test_every_cell_of_the_teachers_notebook_runs_and_its_runs_get_the_points(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = make_copy(tmp_path, number, teacher=True)
    for words, code, printed, seconds in run_notebook(tmp_path, name, wanted=None):
        sys.stdout.write(f"{seconds:6.1f} s  {shlex.join(words)}\n")  # shown with -rP
        assert code == 0, printed
        assert seconds < MAX_SECONDS, words
    submission = read_submission(tmp_path)
    drawn_by_hand = {one.id for one in submission.sheet.exercises if one.kind == "figure" and not one.commands}
    assert {*list_missing(submission)} == drawn_by_hand
    for exercise in submission.sheet.exercises:
        for run in exercise.runs:
            value = json.loads((tmp_path / run.folder / "result.json").read_text(encoding="utf-8"))["valid"][run.metric]
            assert run.at_most is None or value <= run.at_most, run.folder
            assert run.at_least is None or value >= run.at_least, run.folder
