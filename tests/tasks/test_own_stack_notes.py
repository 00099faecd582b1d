"""A run whose mixers are spelled out says in one line what was chosen around them, and keeps it when it is resumed."""

import json

import pytest

from anaphor.cli.main import main

WORDS = "--width 8 --bptt 8 --batch-size 2 --steps 2 --no-test --device cpu --out run"
LINE = "layers lstm, attention: pre-norm, residual connections, feed-forward networks, no positions"


def notes_of(run):
    return json.loads((run / "result.json").read_text())["notes"]


def test_the_line_is_printed_and_kept(text, tmp_path, capsys):
    assert main(["train", "lm", "--data", "text", "--mixers", "lstm", "attention", *WORDS.split()]) == 0
    first, line, *_ = capsys.readouterr().err.splitlines()
    assert first == "training lm: layers lstm, attention, data text, 2 steps"
    assert line == f"anaphor: {LINE}"
    assert LINE in notes_of(tmp_path / "run")
    assert main(["train", "lm", "--resume", "--force", "--steps", "3", "--out", "run"]) == 0
    assert LINE in notes_of(tmp_path / "run")


@pytest.mark.parametrize("words", ["--model hybrid", "--model lstm --layers 3", "--mixers lstm lstm"])
def test_the_layers_of_a_preset_need_no_line(words, text, tmp_path, capsys):
    assert main(["train", "lm", "--data", "text", *words.split(), *WORDS.split()]) == 0
    assert not any(note.startswith("layers") for note in notes_of(tmp_path / "run"))


def test_it_is_printed_before_a_run_is_made(text, capsys):
    words = ["--mixers", "attention", "attention", *WORDS.split(), "--dry-run"]
    assert main(["train", "lm", "--data", "text", *words]) == 0
    assert "layers 2 × attention: pre-norm, residual connections, feed-forward networks, sinusoidal positions" in (
        capsys.readouterr().err
    )
