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
    raw = "\n".join(SENTENCES).encode() + b"\r\n"
    (tmp_path / "sentences.txt").write_bytes(raw)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert json.loads(scored("--file", name, "--json").out) == json.loads(scored(*SENTENCES, "--json").out)


def test_a_blank_sentence_keeps_its_place_and_has_no_score(scored, tmp_path):
    (tmp_path / "sentences.txt").write_text("the cat sat\n\ndog\n  \n")
    nothing = {"loss": None, "perplexity": None, "tokens": []}
    first, second = json.loads(scored(*SENTENCES, "--json").out)
    found = [first, {"text": "", **nothing}, second, {"text": "  ", **nothing}]
    assert json.loads(scored("--file", "sentences.txt", "--json").out) == found
    assert json.loads(scored("the cat sat", "", "dog", "  ", "--json").out) == found
    lines = scored("--file", "sentences.txt").out.splitlines()
    assert len(lines) == 8
    assert lines[2:4] == lines[6:8] == ["", "  no tokens"]


def test_an_empty_file_has_no_sentences(scored, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert json.loads(scored("--file", "empty.txt", "--json").out) == []
    assert scored("--file", "empty.txt").out == ""


def test_what_is_longer_than_the_positions_is_to_be_cut(scored, capsys):
    words = [
        "--model",
        "gpt-nano",
        "--max-positions",
        "5",
        "--bptt",
        "5",
        "--steps",
        "1",
        "--device",
        "cpu",
        "--no-test",
    ]
    assert main(["train", "lm", "--data", "text", *words, "--out", "short"]) == 0
    capsys.readouterr()
    assert main(["score", "short", "a dog sat on a", "--device", "cpu"]) == 0
    capsys.readouterr()
    for verb, tokens in (["score"], "6"), (["look", "--out", "seen"], "7"):
        assert main([*verb, "short", "a dog sat on a log", "--device", "cpu"]) == 2
        told = capsys.readouterr().err
        assert told.endswith(
            f"is too long: {tokens} tokens are more than the 5 learned positions of the model; cut it\n"
        )


def test_words_that_the_model_does_not_know_are_counted(scored):
    told = scored("cat Quetzalcoatl", "Ixchel")
    assert "2 of 3 tokens of the text are not in the vocabulary: replaced by <unk>" in told.err
    assert told.out.rstrip().endswith(", 1 token")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the text is missing: give texts behind the run, or a file with --file (- is standard input)"),
        (["cat", "--file", "sentences.txt"], "give texts behind the run, or a file with --file, but not both"),
        (["--file", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_cannot_be_scored_gets_one_line(scored, words, message):
    told = scored(*words, code=2)
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert message in told.err


def test_behind_two_dashes_a_text_may_begin_with_dashes(scored, capsys):
    given = ["--text", "-h", "--help", "--", "--force"]
    assert main(["score", "--device", "cpu", "--json", "--", "run", *given]) == 0
    assert [row["text"] for row in json.loads(capsys.readouterr().out)] == given


def test_an_unknown_option_is_said_to_be_a_text_behind_two_dashes(scored, error_of):
    assert error_of(["score", "run", "--wobble"]) == "unknown option --wobble; as a text: -- --wobble"
