"""The report says of a study by length what it says of the study itself: who is left out, and of how many seeds."""

import json

import numpy as np
import pytest

from anaphor.data.datasets import open_dataset
from anaphor.registry import TASKS
from anaphor.studies.cell import DIGESTS, JOB, MEASURES, digest_of_test
from anaphor.studies.engines import JobResult
from anaphor.studies.report import report
from anaphor.studies.study import Study
from anaphor.studies.study_file import read_study
from anaphor.tasks.lm.study import EXCLUDED
from studies.here import Here, Silent
from studies.pretended import Pretending, finish

STUDY = """
base: {data: %s, width: 8, device: cpu}
parameters: {variant: {settings: {plain: {}, wide: {width: 16}, seeing: {causal: false}}}}
lengths: [2, 4]
seeds: 3
test: none
"""


def worked(job):
    """Best is what sees later tokens, next what lost two of its three seeds."""
    said = json.loads((job.folder / JOB).read_text())
    spec = said["spec"]
    if spec["width"] == 16 and spec["seed"]:
        return JobResult(1, "no room")
    loss = (1.0 if spec["causal"] is False else 2.0 if spec["width"] == 16 else 3.0) + spec["seed"] / 100
    finish(job.folder, loss=loss, perplexity=float(np.exp(loss)) if spec["causal"] is not False else None)
    rows = [
        {"state": state, "length": length, "loss": loss + length / 100}
        for state in ("carried", "restarted")
        for length in (2, 4)
    ]
    table = {"axes": ["state", "length"], "rows": rows, "remark": ""}
    (job.folder / MEASURES).write_text(json.dumps({"wanted": said["measures"], "tables": {"length": table}}))
    return JobResult(0)


def test_by_length_nobody_is_best_who_is_not_so_in_the_study(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 40)
    file = tmp_path / "study.yaml"
    file.write_text(STUDY % (tmp_path / "text.txt"))
    (tmp_path / "out").mkdir()
    study = Study(read_study(file), tmp_path / "out", Pretending(ends=worked), Silent())
    study.run()
    result = report(study)
    assert result["best"]["parameters"] == {"variant": "plain"}
    by_length = [line.removeprefix("By length: ") for line in result["findings"] if line.startswith("By length: ")]
    assert [line for line in by_length if "variant plain" in line and line.startswith("Best of 8 settings: ")]
    (unranked,) = [line for line in by_length if line.startswith("Not ranked: ")]
    assert unranked.count("variant seeing") == 4
    assert EXCLUDED in unranked
    assert [line for line in by_length if line.startswith("8 of 36 cells have no result: variant wide, state carried")]
    rows = [line for line in result["table_by_length"].splitlines() if "wide" in line]
    assert len(rows) == 4
    assert all("1 of 3" in row for row in rows)


@pytest.fixture
def small_study(tmp_path, own_cache, single_precision):
    """A function that gives a study of one cell with these lengths."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 400)
    (tmp_path / "out").mkdir()

    def build(lengths, test):
        file = tmp_path / "study.yaml"
        base = f"base: {{data: {tmp_path / 'text.txt'}, model: lstm, width: 4, layers: 1, steps: 1, device: cpu}}\n"
        file.write_text(f"{base}parameters: {{lr: {{values: [0.1]}}}}\nlengths: {lengths}\nseeds: 1\ntest: {test}\n")
        return read_study(file)

    return build


def test_lengths_that_are_added_without_test_are_those_of_validation(small_study, tmp_path):
    """Earlier scores on test, which stay, have no such lengths, or others."""
    for lengths, test in (([], "all"), ([2], "none"), ([2], "all"), ([2, 3], "none")):
        study = Study(small_study(lengths, test), tmp_path / "out", Here(), Silent())
        study.run()
        result = report(study)
        if lengths:
            rows = result["table_by_length"].splitlines()
            assert ("test perplexity" if test == "all" else "validation perplexity") in rows[0]
            assert {int(row.split("|")[3]) for row in rows[2:]} == set(lengths)


def test_lengths_that_are_added_later_are_measured_on_test_too(small_study, tmp_path):
    """They were missing from the table, because the test scores of before were used."""
    actions, scores = [], []
    for lengths in ([2], [2], [2, 3]):
        study = Study(small_study(lengths, "all"), tmp_path / "out", engine := Here(), Silent())
        study.run()
        result = report(study)
        actions.append([action for action, _ in engine.jobs])
        scores.append(result["cells"][0]["test"])
        rows = [line.split("|") for line in result["table_by_length"].splitlines()[2:]]
        assert {int(row[3]) for row in rows} == set(lengths)
    assert actions == [["train", "test"], [], ["train", "test"]]
    assert scores[0] == scores[1] == scores[2]


def test_scores_of_a_test_split_that_has_changed_are_measured_again(tmp_path, own_cache, single_precision):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("the cat sat on the mat\n" * 20)
    file = tmp_path / "study.yaml"
    base = f"base: {{data: {tmp_path}, model: lstm, width: 4, layers: 1, steps: 1, device: cpu}}\n"
    file.write_text(f"{base}parameters: {{lr: {{values: [0.1]}}}}\nseeds: 1\n")
    (tmp_path / "out").mkdir()
    jobs, scores = [], []
    for text in ("the cat sat on the mat\n", "the cat sat on the mat\n", "the mat sat on the cat on the mat\n", None):
        if text is None:
            (tmp_path / "test.txt").unlink()  # the scores stay
        else:
            (tmp_path / "test.txt").write_text(text * 20)
        DIGESTS.clear()  # as in another process
        study = Study(read_study(file), tmp_path / "out", engine := Here(), Silent())
        study.run()
        scores.append(report(study)["cells"][0]["test"]["signature"].split("|")[4])
        jobs.append([action for action, _ in engine.jobs])
    assert scores == ["tokens:140", "tokens:140", "tokens:200", "tokens:200"]
    assert jobs == [["train", "test"], [], ["test"], []]


@pytest.mark.parametrize("task", ["lm", "translate", "classify", "images"])
def test_every_task_knows_its_test_split(task):
    data = {"lm": "grammar", "translate": "reverse", "classify": "negation", "images": "shapes"}[task]
    found = digest_of_test(task, TASKS[task].run_spec(data=data))
    assert found == open_dataset(data).digest("test")
