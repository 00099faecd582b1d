"""What a command writes to: narrow encodings, full disks, readers that leave, files in place of a terminal."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from anaphor.cli.main import main


def test_what_an_encoding_lacks_is_replaced(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert main(["models", "lstm"]) == 0
    assert b"2 ? lstm" in narrow.buffer.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize(
    "words", [["--version"], ["models", "lstm"], ["models", "--help"], ["models", "lstm", "--json"]]
)
def test_a_full_disk_is_told_in_one_line(words, capsys, monkeypatch):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 2
        monkeypatch.undo()
    assert capsys.readouterr().err == "anaphor: the output cannot be written to: No space left on device\n"


@pytest.mark.parametrize(
    "words", [["--version"], ["models", "lstm"], ["models", "--help"], ["models", "lstm", "--json"]]
)
def test_a_reader_that_leaves_is_no_mistake(words, capsys, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(words) == 141
        monkeypatch.undo()
    assert capsys.readouterr().err == ""


def test_no_output_at_all_is_fine(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["--version"]) == 0


SMALL = ["--model", "lstm", "--width", "4", "--layers", "1", "--batch-size", "2", "--bptt", "5", "--device", "cpu"]
TRAIN = ["train", "lm", "--data", "text", "--no-test", *SMALL]


def test_training_needs_no_stderr(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert main([*TRAIN, "--steps", "2", "--json", "--out", "run"]) == 0
    assert sys.stderr is None
    assert json.loads(capsys.readouterr().out)["steps"] == 2, "nothing but the result is printed"
    assert main(["train", "nothing"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_log_on_a_full_disk_ends_no_training(text, capsys, monkeypatch):
    with Path("/dev/full").open("w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert main([*TRAIN, "--steps", "2", "--eval-every", "1", "--json", "--out", "run"]) == 0
        monkeypatch.undo()
    assert json.loads(capsys.readouterr().out)["steps"] == 2


def test_a_name_that_is_no_text_here_is_refused_before_anything_is_written(tmp_path, error_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "ä.txt".encode().decode("ascii", "surrogateescape")  # as Python reads it where the locale knows ASCII only
    line = error_of(["train", "lm", "--data", name, "--out", f"run-{name}"])
    assert "'ä.txt' cannot be read as text" in line
    assert "PYTHONUTF8=1" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["models"], ["models", "luong"], ["data", "list"]])
def test_a_file_gets_every_cell_whole(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "8")
    assert main(words) == 0
    assert "…" not in capsys.readouterr().out
