"""Names, folders and single files; what is opened when."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anaphor.data.dataset import EXAMPLE_SEPARATOR, Overlap, count_overlap, cut_points
from anaphor.data.datasets import find_dataset, open_dataset
from anaphor.errors import ConfigError, DataError
from anaphor.registry import DATASETS


def folder(path, **texts):
    for name, text in texts.items():
        (path / f"{name}.txt").write_text(text, encoding="utf-8")
    return open_dataset(str(path))


@pytest.mark.parametrize("stem", ["valid", "val", "validation", "dev"])
@pytest.mark.parametrize("ending", ["txt", "txt.gz", "gz"])
def test_a_folder_has_a_file_for_each_split(tmp_path, stem, ending):
    for name in ("train", stem, "test"):
        raw = f"{name} text\n".encode()
        (tmp_path / f"{name}.{ending}").write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    source = open_dataset(str(tmp_path))
    assert source.splits == ("train", "valid", "test")
    assert source.read("train") == b"train text\n"
    assert source.read("valid") == source.read("val") == source.read("validation") == f"{stem} text\n".encode()


def test_compression_does_not_change_the_digest(tmp_path):
    for name in ("plain", "packed"):
        (tmp_path / name).mkdir()
    (tmp_path / "plain" / "train.txt").write_bytes(b"a b\n")
    (tmp_path / "packed" / "train.txt.gz").write_bytes(gzip.compress(b"a b\n"))
    plain, packed = (open_dataset(str(tmp_path / name)) for name in ("plain", "packed"))
    for _ in range(2):  # the second time from the note in the cache
        assert plain.digest("train") == packed.digest("train")


def test_an_edited_file_has_another_digest_whatever_its_date_says(tmp_path):
    path = tmp_path / "train.txt.gz"
    digests = set()
    for text in (b"one\n", b"two\n"):
        path.write_bytes(gzip.compress(text, mtime=0))
        os.utime(path, (1, 1))
        digests.add(open_dataset(str(tmp_path)).digest("train"))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.txt", "val.txt", "valid.txt"], "two files for valid"),
        (["train.txt", "train.txt.gz"], "two files for train"),
        (["valid.txt", "test.txt"], "no train.txt"),
        ([], "no train.txt"),
        (["a.txt", "b.txt"], "no train.txt"),
    ],
)
def test_a_folder_that_leaves_a_choice_is_refused(tmp_path, names, message):
    for name in names:
        (tmp_path / name).write_bytes(b"x\n")
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path))


def test_a_split_that_is_not_there_is_named(tmp_path):
    source = folder(tmp_path, train="a\n", valid="b\n")
    with pytest.raises(DataError, match=r"has no test split \(it has: train, valid\)"):
        source.read("test")
    with pytest.raises(ConfigError, match="unknown split 'tset'; did you mean 'test'"):
        source.read("tset")


def test_an_unknown_name_gets_the_nearest_guess():
    with pytest.raises(ConfigError, match=r"unknown data set 'wikitxt-2'; did you mean 'wikitext-2'\? \(known: "):
        open_dataset("wikitxt-2")


def test_nothing_opens_test_on_the_way_to_train_and_valid(tmp_path):
    """With a system-level witness: the file cannot even be read."""
    from anaphor.data.corpus import build_tokenizer, encode_split

    source = folder(tmp_path, train="a b a\n" * 5, valid="b\n")
    (tmp_path / "test.txt").mkdir()  # opening it would fail
    source = open_dataset(str(tmp_path))
    for kind in ("word", "character", "byte", "bpe", "treebank"):
        tokenizer = build_tokenizer(source, kind)
        encode_split(source, "train", tokenizer), encode_split(source, "valid", tokenizer)


@given(st.lists(st.integers(0, 40), min_size=60, max_size=200))
def test_one_file_is_split_by_position_at_line_ends(widths):
    raw = b"".join(b"x" * width + b"y\n" for width in widths)
    assume((max(widths) + 2) * 25 < len(raw))  # else a split may have no line end
    valid, test = cut_points(raw, "file")
    assert raw[valid - 1 : valid] == raw[test - 1 : test] == b"\n"
    longest = max(widths) + 2
    assert 0 <= valid - len(raw) * 90 // 100 <= longest
    assert 0 <= test - len(raw) * 95 // 100 <= longest


def test_the_parts_of_one_file_make_the_whole(tmp_path):
    path = tmp_path / "book.txt.gz"
    raw = "".join(f"line {number}\n" for number in range(200)).encode()
    path.write_bytes(gzip.compress(raw))
    for name in (path, tmp_path):
        source = open_dataset(str(name))
        parts = [source.read(split) for split in source.splits]
        assert b"".join(parts) == raw
        assert [len(part) / len(raw) for part in parts] == pytest.approx([0.9, 0.05, 0.05], abs=0.01)
        assert [source.byte_offset(split) for split in source.splits] == [0, len(parts[0]), len(parts[0] + parts[1])]


def test_one_long_line_is_split_between_words():
    raw = b"word " * 100
    valid, test = cut_points(raw, "file")
    assert raw[valid - 1] == raw[test - 1] == ord(" ")
    raw = "é".encode() * 101
    for cut in cut_points(raw, "file"):
        raw[:cut].decode(), raw[cut:].decode()


def test_the_python_reference_is_prose_in_three_parts():
    source = open_dataset("python-reference")
    texts = {split: source.text(split) for split in source.splits}
    size = sum(map(len, texts.values()))
    assert size > 200_000
    for split, share in (("train", 0.9), ("valid", 0.05), ("test", 0.05)):
        assert len(texts[split]) / size == pytest.approx(share, abs=0.02)
    lines = [line for text in texts.values() for line in text.splitlines()]
    assert len(set(lines)) == len(lines), "nothing of train is repeated in test"
    assert not [line for line in lines if "::=" in line or ">>>" in line or "|" * 3 in line]
    assert sum(word in {"the", "a", "is", "of", "to"} for line in lines for word in line.split()) > 5000
    assert all(line == " ".join(line.split()) and line for line in lines)


def test_the_python_reference_is_the_same_in_every_process():
    script = (
        "from anaphor.data import open_dataset; source = open_dataset('python-reference');"
        "print(*map(source.digest, source.splits))"
    )
    digests = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script]
        digests.add(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert len(digests) == 1


def test_embedded_sources_need_neither_network_nor_disk(monkeypatch, tmp_path):
    import socket

    def refuse(*_, **__):
        raise AssertionError("something was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    for name in DATASETS:
        if not find_dataset(name).files:
            source = open_dataset(name)
            assert all(source.read(split, column) for split in source.splits for column in source.columns)


def test_lines_of_test_that_stand_in_train_are_counted(tmp_path):
    source = folder(tmp_path, train="one\ntwo\n\nthree \n", valid="x\n", test="two\nfour\n\ntwo\n three\n")
    assert count_overlap(source) == Overlap(total=4, in_train=3)
    source = folder(tmp_path, train="a\nb\n\nc\r\n\r\nd\n", valid="x\n", test="a\n\nc\n \nb\nd\n\na\nb\n")
    assert count_overlap(source, EXAMPLE_SEPARATOR) == Overlap(total=4, in_train=2)


def test_what_is_no_text_is_compared_too(tmp_path):
    source = folder(tmp_path, train="x\n", valid="x\n", test="x\n")
    (tmp_path / "train.txt").write_bytes(b"\xff\0\n\x80\n")
    (tmp_path / "test.txt").write_bytes(b"\x80\nnew")
    assert count_overlap(source) == Overlap(total=2, in_train=1)
