"""Warnings about a text: examples without blank lines between them are one example; most words are unknown."""

import json

import pytest

from anaphor.cli.main import main
from command_line import override, without_start_lines

pytestmark = pytest.mark.usefixtures("text")
WORDS = ["train", "lm", "--data", "text", "--batching", "padded", "--width", "8", "--device", "cpu", "--no-test"]
NOTE = "train.txt has no blank line, so it is one example of 279 tokens: separate examples by blank lines"


@pytest.mark.parametrize("more", [["--steps", "1", "--out", "run"], ["--dry-run"]], ids=["train", "dry-run"])
def test_a_text_without_blank_lines_is_reported_as_one_example(more, tmp_path, capsys):
    assert main([*WORDS, *more, "--json"]) == 0
    captured = capsys.readouterr()
    (note,) = json.loads(captured.out)["notes"]
    assert note.endswith(NOTE)
    assert without_start_lines(captured.err)[0] == f"anaphor: {note}"


@pytest.mark.parametrize("more", [[], ["--batching", "stream"], ["--max-examples", "1"]], ids=" ".join)
def test_other_texts_have_no_note(more, tmp_path, capsys):
    if "--batching" not in more:
        for split in ("train", "valid"):
            (tmp_path / "text" / f"{split}.txt").write_text("the cat sat\n\na dog\n")
    assert main([*override(WORDS, *more), "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["notes"] == []
    assert captured.err == ""


@pytest.mark.parametrize("more", [["--steps", "1", "--out", "run"], ["--dry-run"]], ids=["train", "dry-run"])
@pytest.mark.parametrize("batching", ["stream", "padded"])
def test_a_text_of_unknown_words_is_reported_once(batching, more, tmp_path, capsys):
    (tmp_path / "text" / "valid.txt").write_text("the cat\n\nthe cat\n" * 20)
    words = override(WORDS, "--batching", batching, "--vocabulary", "3", "--max-examples", "1")
    words = words if batching == "padded" else [word for word in words if word not in ("--max-examples", "1")]
    assert main([*words, *more, "--json"]) == 0
    captured = capsys.readouterr()
    (note,) = json.loads(captured.out)["notes"]
    # Known of the 14 tokens of two lines are both line ends and one word; an example is without the last line end.
    share = {"stream": "71.4", "padded": "71.7"}[batching]
    advice = "use a larger --vocabulary, or --tokenizer bpe, which has no unknown words"
    assert note == f"tokens that are not in the vocabulary: {share}% of train; {advice}"
    assert captured.err.count(note) == 1
    assert without_start_lines(captured.err)[0] == f"anaphor: {note}"


def test_a_foreign_text_for_the_vocabulary_of_a_run_is_reported(tmp_path, capsys):
    words = override(WORDS, "--batching", "stream")
    assert main([*words, "--steps", "1", "--batch-size", "2", "--out", "run"]) == 0
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_text("die Katze lag da\n" * 20)
    capsys.readouterr()
    words = ["train", "lm", "--data", "text", "--init", "run", "--batch-size", "2", "--device", "cpu", "--no-test"]
    assert main([*words, "--dry-run"]) == 0
    advice = "the vocabulary comes with init=run: use text of the same language, or train without --init"
    shares = "80.0% of train, 80.0% of valid"
    assert capsys.readouterr().err == f"anaphor: tokens that are not in the vocabulary: {shares}; {advice}\n"


def test_a_few_unknown_words_have_no_note(tmp_path, answer_of):
    (tmp_path / "text" / "valid.txt").write_text("the cat lag da\n" * 20)
    assert answer_of([*override(WORDS, "--batching", "stream"), "--dry-run", "--json"])["notes"] == []


@pytest.mark.parametrize("more", [["--steps", "1", "--out", "run"], ["--dry-run"]], ids=["train", "dry-run"])
def test_pairs_of_unknown_words_are_reported_by_side(more, tmp_path, capsys):
    (tmp_path / "pairs").mkdir()
    sides = {"train.de": "die Katze", "train.en": "the cat", "valid.de": "ein Hund schlief", "valid.en": "the dog"}
    for name, line in sides.items():
        (tmp_path / "pairs" / name).write_text(f"{line}\n" * 4)
    words = ["train", "translate", "--data", "pairs", "--source", "de", "--target", "en", "--width", "8", "--no-test"]
    assert main([*words, "--device", "cpu", *more, "--json"]) == 0
    captured = capsys.readouterr()
    (note,) = json.loads(captured.out)["notes"]
    advice = "use --tokenizer bpe, which has no unknown words"
    assert note == f"tokens that are not in the vocabulary: 100.0% of the source of valid; {advice}"
    assert without_start_lines(captured.err)[0] == f"anaphor: {note}"


@pytest.mark.parametrize("more", [["--steps", "1", "--out", "run"], ["--dry-run"]], ids=["train", "dry-run"])
def test_labeled_texts_of_unknown_words_are_reported(more, tmp_path, capsys):
    (tmp_path / "labeled").mkdir()
    for split, texts in {"train": ("a fine day", "bad day"), "valid": ("ein Tag am blauen Meer", "bad day")}.items():
        lines = [f"{text}\t{label}" for text, label in zip(texts, ("good", "bad"), strict=True)]
        (tmp_path / "labeled" / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines, ""]))
    words = ["train", "classify", "--data", "labeled", "--width", "8", "--no-test", "--device", "cpu"]
    assert main([*words, *more, "--json"]) == 0
    captured = capsys.readouterr()
    (note,) = json.loads(captured.out)["notes"]
    advice = "use --tokenizer bpe, which has no unknown words"
    # Five of nine tokens: each text has an end.
    assert note == f"tokens that are not in the vocabulary: 55.6% of valid; {advice}"
    assert without_start_lines(captured.err)[0] == f"anaphor: {note}"
