"""A user's own mixer is a mixer like any other: it trains, and it is seen by `models`, `look` and studies."""

import json
from pathlib import Path

import pytest

from anaphor.cli.main import main

FILE = str(Path(__file__).parents[2] / "examples" / "leaky_mixer.py")


@pytest.fixture
def run(tmp_path, capsys):
    words = ["--data", "grammar", "--width", "8", "--steps", "3", "--no-test", "--device", "cpu", "--json"]
    assert main(["train", "lm", "--import", FILE, "--model", "leaky", *words, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    return tmp_path / "run"


def test_models_lists_it(capsys):
    assert main(["models", "leaky", "--import", FILE, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["layers"] == ["leaky", "leaky"]
    assert not row["state_grows"]


def test_look_shows_its_losses_and_says_that_it_has_no_taps(run, tmp_path, capsys):
    words = ["look", str(run), "the cat sees a dog", "--import", FILE, "--out", str(tmp_path / "look"), "--json"]
    assert main(words) == 0
    (shown,) = json.loads(capsys.readouterr().out)["runs"]
    assert "2 × leaky" in shown["model"]
    assert len(shown["losses"]) == 6
    assert (tmp_path / "look" / "attention.html").is_file()


def test_a_study_compares_it_with_another(text, tmp_path, capsys):
    (tmp_path / "study.yaml").write_text(
        "base: {data: text, width: 8, steps: 3, bptt: 8, batch_size: 2}\n"
        "parameters: {model: {values: [leaky, lstm]}}\nseeds: 1\ntest: none\n"
    )
    words = ["study", str(tmp_path / "study.yaml"), "--import", FILE, "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert [cell["status"] for cell in report["cells"]] == ["finished", "finished"]


def test_it_generates_and_is_evaluated_with_its_file_only(run, capsys):
    assert main(["generate", str(run), "--import", FILE, "--tokens", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tokens"]) == 3
    assert main(["evaluate", str(run), "--import", FILE, "--json"]) == 0
