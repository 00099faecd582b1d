"""A finished run that is resumed keeps its scores and its spec."""

import json

import pytest

from anaphor.cli.main import main

pytestmark = pytest.mark.usefixtures("text")

SMALL = ["--model", "lstm", "--width", "8", "--layers", "1", "--batch-size", "2", "--bptt", "5", "--steps", "3"]
FRESH = ["train", "lm", "--data", "text", *SMALL, "--out", "run"]
AGAIN = ["train", "lm", "--resume", "--out", "run"]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "text" / "test.txt").write_text("the dog sat on the mat\n" * 9)
    assert main([*FRESH, "--device", "auto"]) == 0
    return tmp_path / "run"


def test_resuming_without_test_keeps_the_test_score(run):
    before = json.loads((run / "result.json").read_text())["test"]
    assert main([*AGAIN, "--no-test"]) == 0
    assert before["loss"] > 0
    assert json.loads((run / "result.json").read_text())["test"] == before


def test_resuming_says_that_nothing_is_left_to_train(run, capsys):
    capsys.readouterr()
    assert main(AGAIN) == 0
    assert "run has been trained to its end: it is only scored" in capsys.readouterr().err


def test_other_settings_are_refused_without_a_larger_budget(run, error_of):
    files = {path: path.read_bytes() for path in (run / "spec.yaml", run / "result.json")}
    line = error_of([*AGAIN, "--force", "--lr", "0.01"])
    assert "run is finished, so other settings have no effect: lr was 0.001 and is 0.01" in line
    assert files == {path: path.read_bytes() for path in files}
    assert main([*AGAIN, "--force", "--lr", "0.01", "--steps", "4"]) == 0
    assert json.loads((run / "result.json").read_text())["steps"] == 4


def test_a_device_by_another_name_is_the_same_device(run, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main([*AGAIN, "--device", "cpu"]) == 0


def test_a_loss_too_large_for_a_perplexity_is_divergence(capsys):
    assert (
        main([*FRESH, "--no-test", "--optimizer", "sgd", "--lr", "1e6", "--schedule", "constant", "--clip", "0"]) == 3
    )
    line = capsys.readouterr().err.splitlines()[-1]
    assert "(too large to be a loss)" in line
    assert "none" not in line
