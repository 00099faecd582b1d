"""Separate examples of a text without blank lines: a warning says that it is one example."""

import json

import pytest

from anaphor.cli.main import main
from command_line import override

pytestmark = pytest.mark.usefixtures("text")
WORDS = ["train", "lm", "--data", "text", "--batching", "padded", "--width", "8", "--device", "cpu", "--no-test"]
NOTE = "train.txt has no blank line, so it is one example of 279 tokens: separate examples by blank lines"


@pytest.mark.parametrize("more", [["--steps", "1", "--out", "run"], ["--dry-run"]], ids=["train", "dry-run"])
def test_a_text_without_blank_lines_is_reported_as_one_example(more, tmp_path, capsys):
    assert main([*WORDS, *more, "--json"]) == 0
    captured = capsys.readouterr()
    (note,) = json.loads(captured.out)["notes"]
    assert note.endswith(NOTE)
    assert captured.err.splitlines()[0] == f"anaphor: {note}"


@pytest.mark.parametrize("more", [[], ["--batching", "stream"], ["--max-examples", "1"]], ids=" ".join)
def test_other_texts_have_no_note(more, tmp_path, capsys):
    if "--batching" not in more:
        for split in ("train", "valid"):
            (tmp_path / "text" / f"{split}.txt").write_text("the cat sat\n\na dog\n")
    assert main([*override(WORDS, *more), "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["notes"] == []
    assert captured.err == ""
