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
