"""The study of the examples that compares a mixer of one's own with others, on a task of one's own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from anaphor.cli.main import main
from anaphor.imported_files import import_file
from anaphor.studies.report import report
from anaphor.studies.study import Study
from anaphor.studies.study_file import find_study_file, read_study
from studies.here import Here, Silent

MIXERS = ["lstm", "attention", "linear", "my-gated-delta"]


@pytest.fixture
def spec(single_precision):
    for name in ("my_recall.py", "my_gated_delta.py"):
        import_file(name)
    return read_study(find_study_file("recall"))


@pytest.mark.slow
def test_in_its_smallest_form_it_goes_from_tuning_to_a_table_for_a_paper(spec, tmp_path):
    small = spec.with_base(steps=1, eval_every=1, pairs=1, keys=4, values=2, device="cpu")
    (axis,) = small.tune
    small = replace(small, tune=(replace(axis, values=axis.values[:1], settings=axis.settings[:1]),), seeds=(0,))
    small = replace(small, tune_seeds=(100,), match={**small.match, "parameters": 51_072})  # of a smaller vocabulary
    settings = small.settings()
    assert [setting.parameters["mixer"] for setting in settings] == MIXERS
    assert all(setting.run.mixers == (setting.parameters["mixer"],) * 2 for setting in settings)
    assert all(setting.run.feedforward == setting.run.width for setting in settings)
    wanted = small.match["parameters"]
    assert all(abs(setting.size - wanted) <= 0.02 * wanted for setting in settings)
    study = Study(small, tmp_path / "out", Here(), Silent())
    (tmp_path / "out").mkdir()
    study.run()
    result = report(study)
    header = result["table"].splitlines()[0]
    assert all(
        name in header for name in ("mixer", "accuracy", "learning rate", "width", "of 51,072", "4 times the length")
    )
    table = (tmp_path / "out" / "table.tex").read_text()
    assert "\\toprule" in table
    assert all(mixer in table for mixer in MIXERS)
    assert (tmp_path / "out" / "study.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_the_delta_rule_and_attention_recall_and_the_others_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = ["--import", "my_recall.py", "--import", "my_gated_delta.py"]
    assert main(["study", "recall", *own, "--device", "cpu", "--out", "recall"]) == 0
    result = json.loads(Path("recall/result.json").read_text())
    assert result["best"]["parameters"]["mixer"] in ("attention", "my-gated-delta")
    found = {mixer: [] for mixer in MIXERS}
    for cell in result["cells"]:
        found[cell["parameters"]["mixer"]].append(cell["valid"]["accuracy"])
    assert {mixer for mixer, values in found.items() if max(values) > 0.9} == {"attention", "my-gated-delta"}
