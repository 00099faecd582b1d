"""Broken, tiny, foreign and edited texts through the command: one clear line, or a run that works."""

import gzip
import json
import math

import pytest

from anaphor.cli.main import main
from anaphor.registry import TOKENIZERS
from command_line import without_start_lines

SETTINGS = ["--model", "lstm", "--width", "8", "--layers", "1", "--batch-size", "4", "--steps", "2", "--device", "cpu"]
GOOD = b"one two three .\nfour five , six .\n\n" * 40


pytestmark = pytest.mark.usefixtures("own_cache", "single_precision")


@pytest.fixture
def train(tmp_path, capsys):
    """Train on a file. Returns the result, or the error, which is one line."""

    def trained(data, *words):
        out = tmp_path / "run"
        code = main(["train", "lm", "--data", str(data), *SETTINGS, *words, "--out", str(out), "--overwrite", "--json"])
        captured = capsys.readouterr()
        if code == 0:
            return json.loads(captured.out)
        assert code == 2
        assert captured.out == ""
        (line,) = without_start_lines(captured.err)
        assert line.startswith("anaphor: ")
        assert not (out / "spec.yaml").exists(), "it was refused before the first step"
        return line

    return trained


def file(tmp_path, raw):
    path = tmp_path / "text.txt"
    path.write_bytes(raw)
    return path


def folder(tmp_path, **texts):
    path = tmp_path / "texts"
    path.mkdir()
    for name, raw in texts.items():
        (path / f"{name}.txt").write_bytes(raw)
    return path


def works(result):
    """Whether the losses are finite; two steps cannot promise more."""
    losses = [result[split]["loss"] for split in ("valid", "test")]
    return all(isinstance(loss, float) and math.isfinite(loss) and loss >= 0 for loss in losses)


QUICK = {("word", "stream"), ("treebank", "padded"), ("byte", "stream"), ("byte", "padded"), ("character", "stream")}
both = pytest.mark.parametrize(
    ("kind", "batching"),
    [
        pytest.param(kind, batching, marks=[] if (kind, batching) in QUICK else pytest.mark.slow)
        for kind in TOKENIZERS
        for batching in ("stream", "padded")
    ],
)


def train_with(train, data, kind, batching):
    return train(data, "--tokenizer", kind, "--batching", batching, *(["--vocabulary", "300"] if kind == "bpe" else []))


@both
@pytest.mark.parametrize("raw", [b"", b" \n\t\r\n"], ids=["empty", "blank"])
def test_an_empty_file_is_named(tmp_path, train, kind, batching, raw):
    assert "text.txt is empty" in train_with(train, file(tmp_path, raw), kind, batching)
    parts = folder(tmp_path, train=GOOD, valid=raw, test=GOOD)
    assert "valid.txt" in train_with(train, parts, kind, batching)


@both
@pytest.mark.parametrize("raw", [b"x", b"word", b"word\n", b"a b"], ids=["byte", "token", "line", "two"])
def test_a_file_too_short_to_be_split_says_so(tmp_path, train, kind, batching, raw):
    assert "too few to be split" in train_with(train, file(tmp_path, raw), kind, batching)


TINY = {
    "one byte": b"x",
    "one token": b"word\n",
    "one line": b"one short line, no more.\n",
    "no line end": b"one short line, no more",
    "shorter than a segment": b"a b c\nd e f\n",
    "all tokens equal": b"a " * 200,
    "all lines equal": b"a\n" * 200,
    "all characters equal": b"a" * 200,
    "one token in each example": b"\n\n".join([b"w"] * 20),
    "no-break spaces": "\u00a0\u2003\n".encode() * 20,
}


@both
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_text_works_or_is_refused_in_one_line(tmp_path, train, kind, batching, name):
    parts = folder(tmp_path, **dict.fromkeys(("train", "valid", "test"), TINY[name]))
    found = train_with(train, parts, kind, batching)
    if isinstance(found, str):
        assert any(words in found for words in ("too short for 4 rows", "holds no"))
    else:
        assert works(found)


FOREIGN = {
    "invalid": (GOOD + b"\xff\n" + GOOD, "byte 0xff at byte offset 1400"),
    "cut": (b"caf\xc3\n" + GOOD, "byte 0xc3 at byte offset 3"),
    "latin-1": ("caf\u00e9\n".encode("latin-1") + GOOD, "byte 0xe9 at byte offset 3"),
    "utf-16": (GOOD.decode().encode("utf-16"), "is UTF-16"),
    "utf-16 without a mark": (GOOD.decode().encode("utf-16-le"), "NUL byte at byte offset 1,"),
    "nul": (GOOD + b"\0" + GOOD, "NUL byte at byte offset 1400"),
    "binary": (bytes(range(1, 256)) * 20, "byte 0x80 at byte offset 127"),
    "compressed": (gzip.compress(GOOD * 20, mtime=0), "byte offset"),
}


@both
@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_utf8_is_named_with_its_offset_or_read_byte_by_byte(tmp_path, train, kind, batching, name):
    raw, words = FOREIGN[name]
    found = train_with(train, file(tmp_path, raw), kind, batching)
    if kind == "byte":
        assert works(found)
    else:
        assert words in found
        assert "text.txt" in found
        assert "byte tokenizer" in found


@both
def test_a_mark_and_foreign_line_ends_make_no_difference(tmp_path, train, kind, batching):
    plain = train_with(train, file(tmp_path, GOOD), kind, batching)
    assert works(plain)
    if kind == "byte":  # it reads what is stored
        return
    for raw in (b"\xef\xbb\xbf" + GOOD, GOOD.replace(b"\n", b"\r\n")):
        found = train_with(train, file(tmp_path, raw), kind, batching)
        assert found["parameters"] == plain["parameters"]
        assert works(found)


def test_what_is_broken_in_valid_is_found_before_the_first_step(tmp_path, train):
    assert "valid.txt is not UTF-8: byte 0xff at byte offset 0" in train(
        folder(tmp_path, train=GOOD, valid=b"\xff", test=GOOD)
    )


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"train": GOOD}, "has no valid split"),
        ({"train": GOOD, "valid": GOOD}, "has no test split"),
        ({"train": GOOD, "valid": GOOD, "test": b""}, "test.txt is empty; use --no-test"),
    ],
)
def test_a_missing_split_is_found_before_the_first_step(tmp_path, train, texts, words):
    assert words in train(folder(tmp_path, **texts))


def test_without_a_test_split_it_runs_if_none_is_wanted(tmp_path, train):
    assert train(folder(tmp_path, train=GOOD, valid=GOOD), "--no-test")["test"] is None


def test_the_overlap_of_test_and_train_in_lines_is_reported_wherever_test_is_read(tmp_path, train, capsys, answer_of):
    parts = folder(
        tmp_path, train=GOOD, valid=b"nine ten\n", test=b"one two three .\nseven eight\n\nfour five , six .\n"
    )
    expected = {"unit": "lines", "test": 3, "in_train": 2}
    result = train(parts)
    assert result["test"]["overlap"] == expected
    assert "overlap" not in result["valid"]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"]["overlap"] == expected
    found = answer_of(["evaluate", str(tmp_path / "run"), "--split", "test", "--bptt", "2", "3", "--json"])
    assert [row["overlap"] for row in found] == [expected] * 2
    assert main(["evaluate", str(tmp_path / "run"), "--split", "test"]) == 0
    assert "test/train overlap: 2 of 3 lines" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "overlap" not in capsys.readouterr().out


def test_the_overlap_of_test_and_train_in_examples_is_reported(tmp_path, train):
    parts = folder(tmp_path, train=b"a b\nc\n\nd\n", valid=b"x\n", test=b"d\n\na b\n\nc\n\na b\nc\n")
    result = train(parts, "--tokenizer", "treebank", "--batching", "padded")
    assert result["test"]["overlap"] == {"unit": "examples", "test": 4, "in_train": 2}


@pytest.mark.parametrize("split", ["train", "valid"])
def test_edited_text_is_noticed_on_resume(tmp_path, train, error_of, split):
    parts = folder(tmp_path, train=GOOD, valid=GOOD, test=GOOD)
    assert works(train(parts))
    (parts / f"{split}.txt").write_bytes(GOOD + b"one more line\n")
    words = ["--data", str(parts), *SETTINGS, "--out", str(tmp_path / "run"), "--resume"]
    assert f"{split} has changed" in error_of(["train", "lm", *words])
