"""`score`: sentences from the command, a file or standard input, and what is told of words nobody knows."""

import io
import json

import pytest

from anaphor.cli.main import main

pytestmark = pytest.mark.usefixtures("text")
TINY = ["--model", "lstm", "--width", "8", "--layers", "1", "--batch-size", "2", "--bptt", "5", "--device", "cpu"]
SENTENCES = ["the cat sat", "dog"]


@pytest.fixture
def scored(capsys):
    assert main(["train", "lm", "--data", "text", "--no-test", *TINY, "--steps", "2", "--out", "run"]) == 0
    capsys.readouterr()

    def scored(*words, code=0):
        assert main(["score", "run", *words, "--device", "cpu"]) == code
        return capsys.readouterr()

    return scored


@pytest.mark.parametrize("name", ["sentences.txt", "-"])
def test_a_file_or_standard_input_holds_a_sentence_on_each_line(scored, tmp_path, monkeypatch, name):
    raw = "\n\n".join(SENTENCES).encode() + b"\r\n"
    (tmp_path / "sentences.txt").write_bytes(raw)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert json.loads(scored("--file", name, "--json").out) == json.loads(scored(*SENTENCES, "--json").out)


def test_words_that_the_model_does_not_know_are_counted(scored):
    told = scored("cat Quetzalcoatl", "Ixchel")
    assert "the model does not know 2 of 3 tokens of the text" in told.err
    assert told.out.rstrip().endswith(", 1 token")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "write sentences behind the run, or name one with --file"),
        (["cat", "--file", "sentences.txt"], "score sentences or a file"),
        (["--file", "nowhere.txt"], "nowhere.txt"),
        (["--file", "blank.txt"], "blank.txt holds no sentence"),
    ],
)
def test_what_cannot_be_scored_gets_one_line(scored, tmp_path, words, message):
    (tmp_path / "blank.txt").write_text("\n \n")
    told = scored(*words, code=2)
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert message in told.err
