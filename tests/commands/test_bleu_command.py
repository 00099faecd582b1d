"""`anaphor bleu`: one JSON value, a few lines for people, and one line for each thing that may be wrong with a file."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from anaphor.cli.main import main

HYPOTHESES = ["A man sits on a red bench.", "Two dogs run."]
REFERENCES = ["A man sits on a bench.", "Two dogs are running."]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hyp.txt").write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    (tmp_path / "ref.txt").write_text("\n".join(REFERENCES), encoding="utf-8")
    return tmp_path


def answer(capsys, *words):
    assert main(["bleu", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_json_value_holds_the_score_and_how_it_was_made(capsys):
    found = answer(capsys, "hyp.txt", "ref.txt", "--tokenize", "13a")
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], smooth_method="none")
    assert found["bleu"] == pytest.approx(expected.score, abs=1e-9)
    assert found["precisions"] == pytest.approx(expected.precisions)
    assert found["brevity_penalty"] == pytest.approx(expected.bp)
    assert found["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:none|version:anaphor-")
    assert "chrf" not in found
    assert "confidence" not in found


def test_several_references_and_more_numbers(capsys):
    words = ["hyp.txt", "ref.txt", "hyp.txt", "--chrf", "--confidence", "--lowercase"]
    found = answer(capsys, *words)
    # The second sentence has three tokens: the definition would count a 4-gram for it that does not match.
    assert (found["bleu"], found["chrf"]) == pytest.approx((100, 100))
    assert found["confidence"]["low"] <= found["confidence"]["high"]
    assert found["signature"].startswith("nrefs:2|case:lc|")
    assert main(["bleu", *words]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("BLEU 100.00 [")
    assert "chrF 100.00 (nrefs:2|case:lc|" in printed


def test_compressed_files_marks_and_strange_line_ends_are_read(capsys, files):
    plain = answer(capsys, "hyp.txt", "ref.txt")
    (files / "hyp.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + "\r\n".join(HYPOTHESES).encode()))
    assert answer(capsys, "hyp.txt.gz", "ref.txt") == plain
    (files / "odd.txt").write_text("A man\u2028sits on\x0b a red bench.\nTwo dogs run.\n", encoding="utf-8")
    assert answer(capsys, "odd.txt", "ref.txt") == plain


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hyp.txt"], "give a file of references after hyp.txt"),
        ([], "HYP"),
        (["hyp.txt", "long.txt"], "hyp.txt has 2 lines, but long.txt has 3 lines"),
        (["hyp.txt", "ref.txt", "one.txt"], "hyp.txt has 2 lines, but one.txt has 1 line:"),
        (["hyp.txt", "nowhere.txt"], "cannot read nowhere.txt: No such file"),
        (["hyp.txt", "."], "cannot read .: Is a directory"),
        (["empty.txt", "ref.txt"], "empty.txt is empty"),
        (["hyp.txt", "empty.txt"], "empty.txt is empty"),
        (["latin.txt", "ref.txt"], "latin.txt is not UTF-8: byte 0xfc at byte offset 2"),
        (["broken.gz", "ref.txt"], "broken.gz is not a complete gzip file"),
        (["hyp.txt", "ref.txt", "--tokenize", "13b"], "unknown tokenizer '13b'; did you mean '13a'?"),
        (["hyp.txt", "ref.txt", "--tokenise", "13a"], "did you mean '--tokenize'?"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(error_of, files, words, message):
    (files / "long.txt").write_text("a\nb\nc\n")
    (files / "one.txt").write_text("a")
    (files / "empty.txt").write_text("")
    (files / "latin.txt").write_bytes("grün\n".encode("latin-1") * 2)
    (files / "broken.gz").write_bytes(gzip.compress(b"a\nb\n")[:-6])
    assert message in error_of(["bleu", *words])


def test_blank_lines_are_sentences_without_tokens(capsys, files):
    (files / "blank.txt").write_text("\n\n")
    found = answer(capsys, "blank.txt", "ref.txt", "--chrf", "--confidence")
    assert (found["bleu"], found["brevity_penalty"], found["sentences"], found["chrf"]) == (0, 0, 2, 0)


def test_a_tokenizer_that_is_not_installed_says_how_to_get_it(error_of, monkeypatch):
    def refuse(**options):
        raise RuntimeError("Japanese tokenization requires\n\nmore")

    monkeypatch.setattr(sacrebleu, "BLEU", refuse)
    line = error_of(["bleu", "hyp.txt", "ref.txt", "--tokenize", "ja-mecab"])
    assert line == "tokenizer 'ja-mecab' is not installed: pip install 'sacrebleu[ja]'"


def test_scoring_needs_no_torch(files):
    script = (
        "import sys; from anaphor.cli.main import main; assert main(['bleu', *sys.argv[1:]]) == 0;"
        "assert 'torch' not in sys.modules"
    )
    words = [sys.executable, "-c", script, str(files / "hyp.txt"), str(files / "ref.txt")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


def test_a_perfect_translation_has_100_and_no_more(tmp_path, answer_of):
    path = tmp_path / "text.txt"
    path.write_text("a dog sat on a log\nthe cat sat on the mat\n")
    found = answer_of(["bleu", str(path), str(path), "--confidence", "--json"])
    assert found["bleu"] == 100
    assert found["confidence"]["mean"] == found["confidence"]["high"] == 100
