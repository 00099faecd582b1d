"""Unusual input and surroundings end with one line and exit code 2, or work: never with a traceback."""

import json
import os
import pwd

import pytest

import anaphor
from anaphor.cli.main import main
from anaphor.errors import ConfigError
from anaphor.training.run_folder import RunFolder

TRAIN = ["train", "lm", "--data", "text", "--model", "lstm", "--width", "8", "--batch-size", "2", "--bptt", "8",
         "--steps", "3", "--no-test", "--device", "cpu", "--out", "run"]  # fmt: skip

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("good \\ud800", "a"),
        ("good", "a\\ud800"),
        ("\\udc80\\udc80", "a"),
        ("good", "\\ud83d"),
        ("\\ud83d", "b\\ud83d"),
    ],
)
def test_half_a_character_in_json_lines(own_folder, tmp_path, error_of, text, label):
    rows = [f'{{"text": "{text} {n}", "label": "{label}"}}\n{{"text": "bad {n}", "label": "z"}}\n' for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    line = error_of(["train", "classify", "--data", "rows.jsonl", "--model", "bag-of-words", "--steps", "2"])
    assert "row 1 of rows.jsonl has half a character, \\u" in line


def test_standard_input_that_is_closed(text, monkeypatch, error_of):
    assert main(TRAIN) == 0
    monkeypatch.setattr("sys.stdin", None)
    assert error_of(["score", "run", "--file", "-", "--device", "cpu"]) == (
        "standard input is closed: there is nothing to read"
    )


@pytest.mark.parametrize("words", [["runs"], ["serve", "--no-browser", "--port", "0"]])
@pytest.mark.needs("web")
def test_a_current_folder_that_was_deleted(tmp_path, monkeypatch, error_of, words):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert error_of(words) == "the current folder has been deleted: change to another one"


def test_no_home_folder(text, monkeypatch):
    def fail(user):
        raise KeyError(user)

    for name in ("HOME", "ANAPHOR_CACHE", "ANAPHOR_STATE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", fail)
    assert main([*TRAIN, "--tokenizer", "bpe", "--vocabulary", "300"]) == 0
    assert main(["evaluate", "run", "--data", "text", "--device", "cpu"]) == 0
    assert not os.path.exists("~")


@pytest.mark.needs("labs")
def test_a_factor_that_overflows(error_of):
    assert "sharpness=1e+308: it must be at most" in error_of(["lab", "kronecker", "--sharpness", "1e308"])


@pytest.mark.parametrize(("register", "kind"), [("mixer", "a MixerSpec"), ("optimizer", "an OptimizerFactory")])
def test_a_part_that_is_a_number(register, kind):
    with pytest.raises(ConfigError, match=f"is 5: register {kind}"):
        getattr(anaphor, f"register_{register}")("m", 5)


@pytest.mark.parametrize("content", ["raise BaseException('no')", "raise SystemExit(7)", "exit(0)"])
def test_an_import_that_raises_what_is_no_exception(own_folder, tmp_path, error_of, content):
    (tmp_path / "parts.py").write_text(f"{content}\n")
    assert "--import parts.py: " in error_of(["models", "--import", "parts.py"])


def test_a_heading_of_thousands_of_digits(text, tmp_path):
    assert main(TRAIN) == 0
    samples = tmp_path / "run" / "samples.txt"
    samples.write_text(f"=== step {'9' * 5000} ===\nhi\n\n{samples.read_text()}")
    assert main(["train", "lm", "--resume", "--force", "--steps", "5", "--out", "run"]) == 0
    if anaphor.registry.has_shelf("web"):
        from anaphor.web.history import read_samples

        assert [sample["step"] for sample in read_samples(tmp_path / "run")] == [3, 5]


@pytest.mark.needs("web")
def test_a_metric_called_step_per_second(text, tmp_path):
    from anaphor.web.history import read_curves

    assert main(TRAIN) == 0
    folder = RunFolder(tmp_path / "run")
    rows = [{"step_per_second": 5.0, "epoch_per_second": 1.0, **row} for row in folder.read_metrics()]
    folder.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    columns = read_curves(folder.folder)["columns"]
    assert columns["step"] == [3]
    assert columns["step_per_second"] == [5.0]
