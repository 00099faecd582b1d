"""Links in the folder of a study lead to files of the user: nothing is written or deleted through them."""

import json

import pytest

from anaphor.cli.main import main
from anaphor.errors import AnaphorError, DataError
from anaphor.studies.import_runs import copy_run
from anaphor.studies.study import Study
from faults.planted import plant
from studies.here import Here

STUDY = """
base: {data: text.txt, layers: 1, width: 4, batch_size: 2, bptt: 8, steps: 2, device: cpu}
parameters: {dropout: {values: [0]}}
seeds: 1
test: none
"""
REPLACED = ("result.json", "findings.txt", "table.md", "job.json", "measures.json")
"""Files that are replaced at once: of a link, the link itself."""


@pytest.mark.parametrize("name", [".lock", "cells", "study.yaml", "log.jsonl", "seal.json", "table.md", "result.json"])
def test_a_study(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Study, "run", lambda self: self.log("started"))  # what follows is tested below
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 40)
    (tmp_path / "study.yaml").write_text(STUDY)
    check = plant(tmp_path / "out", name, tmp_path / "victim")
    code = main(["study", "study.yaml", "--out", "out", "--json"])
    if name not in REPLACED:
        assert code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"out/{name} is a link" in line
    check()


@pytest.mark.parametrize(
    "name", ["", ".lock", "job.json", "status.json", "stop", "metrics.jsonl", "checkpoints", "measures.json"]
)
def test_a_cell(begin, tmp_path, name):
    engine = Here()
    lines = "parameters: {width: {values: [4]}}\nseeds: 1"
    study = begin(engine, lines)
    study.spec.settings()
    study.run()
    (cell,) = study.cells
    (cell.folder / "result.json").unlink()
    for path in (cell.folder / "checkpoints").iterdir():
        path.rename(path.with_name("step-0"))
    check = plant(cell.folder.parent, cell.key, tmp_path / "victim") if not name else None
    check = check or plant(cell.folder, name, tmp_path / "victim")
    again = begin(engine, lines)
    try:
        again.run()
    except AnaphorError as error:
        assert "is a link" in str(error)  # noqa: PT017 (files that are replaced raise nothing)
    check()


def test_a_run_with_links_is_not_copied(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "run" / "checkpoints" / "notes.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(DataError, match=r"notes.txt is a link"):
        copy_run(tmp_path / "run", tmp_path / "study" / "cells" / "key")
    assert not (tmp_path / "study").exists()


def test_a_leftover_that_is_a_link_is_deleted_itself(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.yaml").write_text(json.dumps({}))
    cells = tmp_path / "study" / "cells"
    check = plant(cells, "key.tmp", tmp_path / "victim")
    copy_run(tmp_path / "run", cells / "key")
    assert [path.name for path in cells.iterdir()] == ["key"]
    check()
