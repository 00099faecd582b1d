"""A task from a user's file is studied like any other: table, figure, findings, and a test score of the choice."""

import json
from pathlib import Path

import pytest

from anaphor.errors import ConfigError
from anaphor.imported_files import IMPORTED, ImportedFile, import_file
from anaphor.registry import TASKS
from anaphor.shipped_files import EXAMPLES
from anaphor.studies import worker
from anaphor.studies.cell import JOB, make_cell
from anaphor.studies.report import report
from anaphor.studies.spec import StudySpec
from anaphor.studies.study import Study
from anaphor.studies.study_file import read_study
from anaphor.studies.validation import validate_study
from studies.here import Here, Silent

FILE = EXAMPLES / "digit_sum.py"
STUDY = """
task: digit-sum
base: {steps: 4, eval_every: 2, device: cpu}
parameters: {model: {values: [gru, rnn]}}
seeds: 2
"""


@pytest.fixture(autouse=True)
def _imported(single_precision):
    import_file(FILE)


def read(tmp_path, more=""):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY + more)
    return read_study(path)


def test_four_cells_have_a_table_a_figure_findings_and_a_test_score(tmp_path):
    spec = read(tmp_path)
    assert (spec.metric, spec.goal, spec.measures) == ("valid.mse", "minimize", {})
    validate_study(spec, spec.settings())
    (tmp_path / "out").mkdir()
    study = Study(spec, tmp_path / "out", engine := Here(), Silent())
    study.run()
    result = report(study)
    assert [cell["status"] for cell in result["cells"]] == ["finished"] * 4
    job = json.loads((study.cells[0].folder / JOB).read_text())
    assert job["imports"][str(FILE)] == IMPORTED[FILE].sha256
    assert "validation mean squared error" in result["table"]
    names = [f"{name}.{suffix}" for name in ("study", "learning") for suffix in ("png", "svg", "pdf")]
    assert [Path(path).name for path in result["figures"]] == names
    assert result["findings"][0].startswith("Best of 2 settings: model ")
    assert "mean squared error (2 seeds)" in result["findings"][0]
    assert not [line for line in result["findings"] if "On the same" in line], "the task saves no losses of items"
    assert result["best"]["test"]["mean"] > 0
    assert [action for action, _ in engine.jobs] == ["train"] * 4 + ["test"] * 2


def test_any_metric_of_the_task_may_select(tmp_path):
    for more in (
        "metric: within_half\n",
        "metric: valid.within_half\n",
        "metric: {name: within_half, goal: maximize}\n",
    ):
        spec = read(tmp_path, more)
        assert (spec.metric, spec.goal) == ("valid.within_half", "maximize")
    chosen = StudySpec(name="one", task="digit-sum", base={"select": "within_half"}, parameters=spec.parameters)
    assert chosen.metric == "valid.within_half"
    with pytest.raises(ConfigError, match=r"unknown metric 'accuracy' \(known: valid.mse, valid.within_half\)"):
        read(tmp_path, "metric: accuracy\n")
    with pytest.raises(ConfigError, match="goal=minimize would select the worst setting"):
        read(tmp_path, "metric: {name: within_half, goal: minimize}\n")
    with pytest.raises(ConfigError, match="lengths is for `task: lm`, and this study has `task: digit-sum`"):
        read(tmp_path, "lengths: [5]\n")


def test_an_edited_file_is_another_cell(tmp_path):
    setting = read(tmp_path).settings()[0]
    before = make_cell(setting, 0, tmp_path, "digit-sum", 1).key
    IMPORTED[FILE.absolute()] = ImportedFile(FILE.absolute(), "0" * 64)
    assert make_cell(setting, 0, tmp_path, "digit-sum", 1).key != before
    assert "digit-sum" in TASKS


def test_a_worker_refuses_a_file_that_was_edited_since_the_study_started(tmp_path, monkeypatch, capsys):
    spec = read(tmp_path)
    cell = make_cell(spec.settings()[0], 0, tmp_path, spec.task, 1)
    cell.write_job(spec, 1)
    job = json.loads((cell.folder / JOB).read_text())
    job["imports"][str(FILE)] = "0" * 64
    (cell.folder / JOB).write_text(json.dumps(job))
    monkeypatch.setattr(worker, "watch_for_stop", lambda folder: None)
    assert worker.main(["train", str(cell.folder)]) == 2
    assert capsys.readouterr().err == f"{FILE} has changed since the study started: run the study again\n"
