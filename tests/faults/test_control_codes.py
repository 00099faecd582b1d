"""Control codes in what a model writes, or in a name, do not reach a terminal; into a pipe they go as they are."""

import io
import sys

import pytest

from anaphor.cli.main import main
from anaphor.cli.table import for_terminal

CODES = "\x1b]0;title\x07\x1b[31mred\x9b"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_generated_text(text, tmp_path, monkeypatch, stream, single_precision):
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_text("\x1b[31m\x07" * 200)
    words = [
        "train",
        "lm",
        "--data",
        "text",
        "--tokenizer",
        "character",
        "--width",
        "4",
        "--bptt",
        "8",
        "--batch-size",
        "2",
    ]
    assert main([*words, "--steps", "1", "--no-test", "--device", "cpu", "--out", "run"]) == 0
    output = stream()
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["generate", "run", "--device", "cpu", "--tokens", "60"]) == 0
    is_terminal = stream is Terminal
    assert ("\x1b" in output.getvalue()) != is_terminal
    assert ("\x07" in output.getvalue()) != is_terminal
    assert ("\\x1b" in output.getvalue()) == is_terminal


@pytest.mark.parametrize("words", [["train", "lm", "--data", CODES], [CODES], ["evaluate", CODES]])
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_an_error_message(text, monkeypatch, words, stream):
    output = stream()
    monkeypatch.setattr(sys, "stderr", output)
    assert main(words) == 2
    if stream is Terminal:
        assert "\x1b]0" not in output.getvalue()  # a progress bar has codes of its own
        assert "\x07" not in output.getvalue()
        assert "\\x1b" in output.getvalue()


def test_only_control_codes_are_escaped():
    assert for_terminal("größe\t×\n—\u00a0日本 👩‍🔬", Terminal()) == "größe\t×\n—\u00a0日本 👩‍🔬"
    assert for_terminal("a\rb\x7f\u202e", Terminal()) == "a\\x0db\\x7f\\u202e"
    assert for_terminal(CODES, io.StringIO()) == CODES


def test_names_of_classes_in_scores(tmp_path, monkeypatch, single_precision):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    rows = [
        f'{{"text": "good {n}", "label": "a\\u001b[31m"}}\n{{"text": "bad {n}", "label": "z"}}\n' for n in range(60)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    output = Terminal()
    monkeypatch.setattr(sys, "stdout", output)
    words = ["--data", "rows.jsonl", "--model", "bag-of-words", "--steps", "2", "--device", "cpu", "--out", "run"]
    assert main(["train", "classify", *words]) == 0
    assert main(["evaluate", "run", "--device", "cpu"]) == 0
    assert "a\x1b[31m" not in output.getvalue()
    assert "a\\x1b[31m" in output.getvalue()


@pytest.mark.needs("web")
def test_a_name_with_the_end_of_a_line_is_one_row(tmp_path, capsys):
    from web.pretended_runs import write_run

    write_run(tmp_path / "a\u2028b\x85c\x0bd\x1ce")
    assert main(["runs", str(tmp_path)]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "\\u2028" in line]
    assert r"a\u2028b\x85c\x0bd\x1ce" in row
