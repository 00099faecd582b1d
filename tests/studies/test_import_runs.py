"""A run that becomes a cell of a study does so whole or not at all."""

import json
import shutil

import pytest

from anaphor.errors import DataError
from anaphor.studies import import_runs as module
from anaphor.studies.import_runs import find_runs, import_runs
from anaphor.studies.study_file import read_study


@pytest.fixture
def run(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 40)
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "spec.yaml").write_text(f"format: 2\ntask: lm\ndata:\n  data: {tmp_path}/text.txt\n")
    (folder / "result.json").write_text('{"status": "finished"}\n')
    (folder / "checkpoints" / "weights").write_text("weights")
    return folder


def study(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(f"base: {{data: {tmp_path}/text.txt}}\nparameters: {{model: {{values: [lstm]}}}}\nseeds: 1\n")
    return read_study(file)


def test_an_adoption_that_was_cut_short_is_made_again(tmp_path, run, monkeypatch):
    copied = []

    def cut_short(source, target, **options):
        copied.append(target)
        target.mkdir(parents=True)
        shutil.copy(run / "spec.yaml", target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "copytree", cut_short)
        with pytest.raises(KeyboardInterrupt):
            import_runs(study(tmp_path), tmp_path / "cells", run, 1)
    assert copied
    (cell,) = import_runs(study(tmp_path), tmp_path / "cells", run, 1)
    assert (cell.folder / "checkpoints" / "weights").read_text() == "weights"
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [cell.key], "nothing else stays behind"


def test_what_an_earlier_version_copied_in_part_is_copied_again(tmp_path, run):
    (cell,) = import_runs(study(tmp_path), tmp_path / "cells", run, 1)
    (cell.folder / "result.json").unlink()
    shutil.rmtree(cell.folder / "checkpoints")
    import_runs(study(tmp_path), tmp_path / "cells", run, 1)
    assert (cell.folder / "checkpoints" / "weights").is_file()


def test_what_was_adopted_and_measured_stays(tmp_path, run):
    (cell,) = import_runs(study(tmp_path), tmp_path / "cells", run, 1)
    (cell.folder / "measures.json").write_text("{}")
    import_runs(study(tmp_path), tmp_path / "cells", run, 1)
    assert (cell.folder / "measures.json").is_file()


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"best": {"parameters": {}}, "cells": [{}]}'])
def test_a_study_without_a_result_that_can_be_read_is_one_line(tmp_path, content):
    (tmp_path / "seal.json").write_text("{}")
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(DataError, match=r"result.json .* run the study again") as caught:
        find_runs(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "result.json").write_text(json.dumps({"best": None, "cells": []}))
    with pytest.raises(DataError, match="selected nothing"):
        find_runs(tmp_path)


def test_the_runs_of_a_study_that_was_moved_are_found(tmp_path):
    """The result has the paths that the study had when it was written, as the command named them."""
    cells = [{"run": f"runs/old/cells/{name}", "parameters": {"width": width}} for name, width in (("a", 8), ("b", 9))]
    (tmp_path / "seal.json").write_text("{}")
    (tmp_path / "result.json").write_text(json.dumps({"best": {"parameters": {"width": 9}}, "cells": cells}))
    assert find_runs(tmp_path) == [tmp_path / "cells" / "b"]
