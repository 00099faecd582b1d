"""What goes into a pipe or a file is neither broken into lines nor filled up with blanks."""

import pytest

from anaphor.cli.main import main
from anaphor.registry import has_shelf

PRINTED = ["data list", "models --vocabulary 100", "models luong"]


@pytest.mark.parametrize("words", [words.split() for words in PRINTED], ids=" ".join)
def test_a_table_has_a_line_for_each_row_and_no_blanks_behind_it(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(words) == 0
    narrow = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(words) == 0
    assert narrow == capsys.readouterr().out
    assert all(line == line.rstrip() for line in narrow.splitlines())


def test_a_row_of_a_table_is_a_line(capsys, answer_of, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = answer_of(["data", "list", "--json"])
    assert main(["data", "list"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    sets = lines[: len(rows)]  # pretrained weights follow
    assert all(line.endswith(row["about"]) for line, row in zip(sets, rows, strict=True))
    assert has_shelf("interchange") is bool([line for line in lines if line.startswith("minilm ")])


@pytest.fixture
def run(text, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = ["--model", "lstm", "--width", "8", "--batch-size", "2", "--bptt", "5", "--steps", "1", "--device", "cpu"]
    assert main(["train", "lm", "--data", "text", "--no-test", "--tokenizer", "character", *words, "--out", "run"]) == 0
    capsys.readouterr()
    return "run"


def test_the_title_of_a_narrow_table_is_a_line(run, capsys):
    assert main(["evaluate", run, "--bptt", "1", "--by-position", "--device", "cpu"]) == 0
    assert "loss by position within the segment\n" in capsys.readouterr().out


def test_a_scored_sentence_is_a_line(run, capsys):
    text = "the cat sat on the mat " * 20 + "\na dog"
    assert main(["score", run, text, "--device", "cpu"]) == 0
    tokens, told = capsys.readouterr().out.splitlines()
    assert tokens == tokens.rstrip()
    assert [word.partition("/")[0] for word in tokens.split(" ")] == list(text.replace(" ", "␣").replace("\n", "⏎"))
    assert told.endswith(f", {len(text)} tokens")
