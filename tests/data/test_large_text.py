"""Texts that are larger than memory: the same tokens, batches and scores as in memory, from shards on the disk."""

import errno
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor import files
from anaphor.data import bpe, shards, streamed_text, text
from anaphor.data.batches import EvaluationStream, Stream
from anaphor.data.bpe import BPE
from anaphor.data.corpus import build_tokenizer, encode_split
from anaphor.data.dataset import EXAMPLE_SEPARATOR, LINE_SEPARATOR, count_overlap
from anaphor.data.datasets import open_dataset
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.data.shards import ShardedArray
from anaphor.data.stored_tokens import StoredTokens, load_tokens
from anaphor.data.stream_order import StreamOrder
from anaphor.data.streamed_text import count_streamed_overlap
from anaphor.data.tokenizer import Byte, Character, Word
from anaphor.data.treebank import Treebank
from anaphor.errors import ConfigError, DataError
from anaphor.tasks.lm import recall_tokens
from anaphor.tasks.lm.recall_tokens import find_repeated, find_repeated_in_blocks

KINDS = ("word", "character", "byte", "bpe", "treebank")
LETTERS = [
    "a",
    "b",
    "the ",
    "it's",
    " ",
    "  ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "é",
    "日本",
    "\u3000",
    "\x1c",
    "½",
    "!",
    "12",
    ".",
]


def draw_text(length, seed=0):
    """Text with every kind of white space and line end."""
    generator = np.random.default_rng(seed)
    words = [*LETTERS * 3, "the cat\n", "\n\n", *(f"{'etaoin'[n % 6]}{n} " for n in range(60))]
    return "".join(words[n] for n in generator.integers(len(words), size=length)).encode()


@pytest.fixture
def in_shards(monkeypatch):
    """Every text is large, and shards are small; all in this process."""
    monkeypatch.setenv(MEMORY_VARIABLE, "100")
    monkeypatch.setattr(streamed_text, "PART", 300)
    monkeypatch.setattr(streamed_text, "SHARD", 2000)
    monkeypatch.setattr("anaphor.data.parallel_parts.count_cores", lambda: 1)
    monkeypatch.setattr(bpe, "MIN_SEGMENT", 20)


@pytest.fixture
def one_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(draw_text(4000))
    return path


def encode_both(path, kind, split, monkeypatch, size=None):
    """The corpus from shards, and the one in memory."""
    dataset = open_dataset(str(path))
    sharded = encode_split(dataset, split, build_tokenizer(dataset, kind, size))
    assert isinstance(sharded.tokens, ShardedArray)
    with monkeypatch.context() as patch:
        patch.setenv(MEMORY_VARIABLE, "1000000")
        plain = encode_split(dataset, split, build_tokenizer(dataset, kind, size))
    assert not isinstance(plain.tokens, ShardedArray)
    return sharded, plain


@pytest.mark.parametrize("split", ["train", "valid", "test", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_shards_hold_the_tokens_of_the_text_in_memory(kind, split, one_file, in_shards, monkeypatch):
    sharded, plain = encode_both(one_file, kind, split, monkeypatch, size=300 if kind == "bpe" else None)
    np.testing.assert_array_equal(sharded.tokens, plain.tokens)
    assert (sharded.bytes, sharded.digest, sharded.unknowns) == (plain.bytes, plain.digest, plain.unknowns)
    np.testing.assert_array_equal(sharded.counts(1000), plain.counts(1000))


@pytest.mark.parametrize("kind", ["word", "character", "bpe"])
def test_a_tokenizer_is_the_same_from_a_text_in_parts(kind, one_file, in_shards, monkeypatch):
    size = 300 if kind == "bpe" else 40
    dataset = open_dataset(str(one_file))
    streamed = build_tokenizer(dataset, kind, size)
    monkeypatch.setenv(MEMORY_VARIABLE, "1000000")
    monkeypatch.setenv("ANAPHOR_CACHE", str(one_file.parent / "other"))
    assert streamed == build_tokenizer(dataset, kind, size)


@pytest.mark.parametrize("size", [8, 20, 64, 1000])
@pytest.mark.parametrize("kind", [Word, Character, Byte, Treebank])
@settings(max_examples=20, deadline=None)
@given(words=st.lists(st.sampled_from(LETTERS), max_size=60))
def test_parts_give_the_tokens_of_the_whole(kind, size, words):
    raw = ("\ufeff" + "".join(words)).encode()
    tokenizer = kind.train("the it's a b 12 é\n")
    parts = list(text.split_parts([raw], kind.find_cut, size))
    assert b"".join(part.raw for part in parts) == raw
    assert [part.offset for part in parts] == [sum(len(one.raw) for one in parts[:n]) for n in range(len(parts))]
    found = [tokenizer.encode_part(part) for part in parts]
    np.testing.assert_array_equal(np.concatenate(found), tokenizer.encode_bytes(raw))


@pytest.fixture(scope="module")
def subwords():
    return BPE.train(draw_text(3000, seed=1).decode().replace("\r", ""), 400)


@settings(max_examples=300, deadline=None)
@given(words=st.lists(st.sampled_from(LETTERS), max_size=40))
def test_looking_words_up_against_the_library(subwords, words):
    line = "".join(words)
    np.testing.assert_array_equal(subwords._encode_segment(line), subwords.encode_by_library(line))


@pytest.mark.parametrize("spaces", ["", " ", "\r"])
def test_a_long_line_is_cut_where_it_is_cut_in_memory(spaces, subwords, monkeypatch):
    monkeypatch.setattr(bpe, "CHUNK", 50)
    monkeypatch.setattr(bpe, "MIN_SEGMENT", 0)
    raw = ("\ufeff" + f"abcé{spaces}日12!".join("etaoin" * 40) + "\nthe end").encode()
    parts = list(text.split_parts([raw], BPE.find_cut, 300))
    assert len(parts) > 3
    found = np.concatenate([subwords.encode_part(part) for part in parts])
    np.testing.assert_array_equal(found, subwords.encode_bytes(raw))
    np.testing.assert_array_equal(found, subwords.encode_by_library(text.decode_text(raw, "the text")))


def test_processes_give_the_same_tokens_in_order(one_file, in_shards, monkeypatch):
    dataset = open_dataset(str(one_file))
    tokenizer = build_tokenizer(dataset, "word")
    expected = np.asarray(encode_split(dataset, "train", tokenizer).tokens)
    monkeypatch.setattr("anaphor.data.parallel_parts.count_cores", lambda: 2)
    monkeypatch.setenv("ANAPHOR_CACHE", str(one_file.parent / "other"))
    assert build_tokenizer(dataset, "word") == tokenizer
    np.testing.assert_array_equal(encode_split(dataset, "train", tokenizer).tokens, expected)


def test_workers_import_no_torch():
    code = "import sys, anaphor.data.part_worker; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize("cores", [1, 2])
def test_a_byte_that_is_no_text_is_named_by_its_offset(cores, tmp_path, in_shards, monkeypatch):
    path = tmp_path / "text.txt"
    raw = b"some words in lines\n" * 400
    place = 5003
    path.write_bytes(raw[:place] + b"\xff" + raw[place + 1 :])
    dataset = open_dataset(str(path))
    monkeypatch.setattr("anaphor.data.parallel_parts.count_cores", lambda: cores)
    with pytest.raises(DataError, match=f"is not UTF-8: byte 0xff at byte offset {place}"):
        build_tokenizer(dataset, "word")
    assert len(encode_split(dataset, "train", Byte()).tokens) == 7220


def folder_of(tmp_path):
    (manifest,) = (tmp_path / "cache" / "shards").glob("*/tokens/manifest.json")
    return manifest.parent


@pytest.fixture
def made(one_file, in_shards, monkeypatch, tmp_path, capsys):
    """Data whose train split was tokenized, the tokenizer, the tokens and the folder of the shards."""
    monkeypatch.setenv("ANAPHOR_CACHE", str(tmp_path / "cache"))
    dataset = open_dataset(str(one_file))
    tokenizer = build_tokenizer(dataset, "word")
    tokens = np.asarray(encode_split(dataset, "train", tokenizer).tokens)
    line = capsys.readouterr().err.splitlines()[-1]
    folder = folder_of(tmp_path)
    assert line.startswith(f"anaphor: {one_file}: train is prepared once: ")
    assert str(folder.parent) in line
    assert len(list(folder.glob("*.bin"))) >= 5
    return dataset, tokenizer, tokens, folder


def test_the_second_call_reads_no_text(made, monkeypatch, capsys):
    dataset, tokenizer, tokens, _ = made
    monkeypatch.setattr(type(dataset), "pieces", None)
    np.testing.assert_array_equal(encode_split(dataset, "train", tokenizer).tokens, tokens)
    assert capsys.readouterr().err == ""


def damage(folder, kind):
    path = folder / "00002.bin"
    raw = path.read_bytes()
    if kind == "gone":
        path.unlink()
    elif kind == "short":
        path.write_bytes(raw[:-2])
    elif kind == "bit":
        path.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    elif kind == "manifest":
        (folder / "manifest.json").write_text("{", encoding="utf-8")
    elif kind == "other type":
        plain = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**plain, "type": "<u4"}), encoding="utf-8")
    elif kind == "no shards":
        plain = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**plain, "shards": None}), encoding="utf-8")


@pytest.mark.parametrize("kind", ["gone", "short", "bit", "manifest", "other type", "no shards"])
def test_a_damaged_shard_is_made_again(kind, made, capsys):
    dataset, tokenizer, tokens, folder = made
    kept = (folder / "00000.bin").stat().st_mtime_ns
    damage(folder, kind)
    np.testing.assert_array_equal(encode_split(dataset, "train", tokenizer).tokens, tokens)
    assert ("from byte" in capsys.readouterr().err) == (kind in ("gone", "short", "bit"))
    assert ((folder / "00000.bin").stat().st_mtime_ns == kept) == (kind in ("gone", "short", "bit"))


def test_a_shard_with_another_date_is_read_and_kept(made, capsys):
    dataset, tokenizer, tokens, folder = made
    os.utime(folder / "00001.bin")
    np.testing.assert_array_equal(encode_split(dataset, "train", tokenizer).tokens, tokens)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("written", [0, 1, 3])
def test_tokenizing_that_was_killed_goes_on_at_the_last_shard(written, made, monkeypatch):
    dataset, tokenizer, tokens, folder = made
    for path in folder.iterdir():
        path.unlink()
    add, count = shards.Manifest.add, []

    def add_some(self, *arguments):
        if len(count) == written:
            raise KeyboardInterrupt
        count.append(1)
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shards.Manifest, "add", add_some)
        with pytest.raises(KeyboardInterrupt):
            encode_split(dataset, "train", tokenizer)
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.bin")}
    assert len(before) == written
    np.testing.assert_array_equal(encode_split(dataset, "train", tokenizer).tokens, tokens)
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    assert sorted(path.suffix for path in folder.parent.parent.rglob("*") if path.suffix in (".tmp", ".lock")) == []


def test_a_full_disk_is_told_in_one_line_and_costs_no_shard(made, monkeypatch):
    dataset, tokenizer, tokens, folder = made
    for path in folder.iterdir():
        path.unlink()
    write = files._write_all

    def fill(handle, content):
        if len(list(folder.glob("*.bin"))) == 2 and len(content) > 400:  # and no manifest
            os.write(handle, content[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(handle, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_write_all", fill)
        with pytest.raises(
            DataError, match=r"cannot write .*: No space left on device; it needs [\d,]+ bytes"
        ) as caught:
            encode_split(dataset, "train", tokenizer)
    assert "Point $ANAPHOR_CACHE at a folder with room; what was finished is kept" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {path.suffix for path in folder.iterdir()} == {".bin", ".json"}
    np.testing.assert_array_equal(encode_split(dataset, "train", tokenizer).tokens, tokens)


def test_without_a_cache_a_large_text_cannot_be_read(one_file, in_shards, monkeypatch, tmp_path):
    dataset, tokenizer = open_dataset(str(one_file)), Byte()
    (tmp_path / "file").touch()
    monkeypatch.delenv("ANAPHOR_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "file" / name))
    with pytest.raises(DataError, match=r"cannot write .*file.*: Not a directory.*Point \$ANAPHOR_CACHE at a folder"):
        encode_split(dataset, "train", tokenizer)


def test_two_processes_make_the_shards_once(made, monkeypatch):
    dataset, tokenizer, tokens, folder = made
    for path in folder.iterdir():
        path.unlink()
    made_by, write = [], streamed_text._write_shards
    lines, another_waits = [], threading.Event()
    monkeypatch.setattr("anaphor.data.cache.print_warning", lambda line: lines.append(line) or another_waits.set())

    def count_writes(*arguments):
        made_by.append(threading.get_ident())
        assert another_waits.wait(60)
        write(*arguments)

    monkeypatch.setattr(streamed_text, "_write_shards", count_writes)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(np.asarray(encode_split(dataset, "train", tokenizer).tokens)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made_by) == 1
    assert set(lines) == {f"another process makes {folder.parent}: waiting for it"}
    for tokens_of_one in found:
        np.testing.assert_array_equal(tokens_of_one, tokens)


def test_a_text_that_is_edited_while_it_is_read_is_refused(made, one_file, monkeypatch):
    dataset, tokenizer, _, folder = made
    for path in folder.iterdir():
        path.unlink()
    write = streamed_text._write_shards

    def edit(*arguments):
        write(*arguments)
        one_file.write_bytes(b"more words\n" + one_file.read_bytes())

    monkeypatch.setattr(streamed_text, "_write_shards", edit)
    with pytest.raises(DataError, match="was edited while it was read: start again"):
        encode_split(dataset, "train", tokenizer)
    assert not folder.exists()


def test_an_edited_text_is_tokenized_anew(made, one_file):
    dataset, tokenizer, tokens, _ = made
    one_file.write_bytes(one_file.read_bytes() + b"more words\n" * 100)
    assert len(encode_split(dataset, "train", tokenizer).tokens) > len(tokens)


def test_batches_are_those_of_the_tokens_in_memory(one_file, in_shards, monkeypatch):
    sharded, plain = encode_both(one_file, "word", "train", monkeypatch)
    stored, whole = load_tokens(sharded, "cpu"), load_tokens(plain, "cpu")
    assert isinstance(stored, StoredTokens)
    for orders in ([], [Circles()], [Later(), Circles()]):
        for epoch in range(2):
            pairs = (Stream(tokens, 3, 7, orders=orders, epoch=epoch) for tokens in (stored, whole))
            assert_same_batches(*pairs)
    for rows, bptt in ((1, 10), (4, 9), (10, 1000), (7, 3)):
        assert_same_batches(*(EvaluationStream(tokens, 5, rows, bptt) for tokens in (stored, whole)))


class Circles(StreamOrder):
    """Each row from another place on."""

    def starts(self, rows, length, epoch):
        return np.random.default_rng((3, epoch)).integers(length, size=rows)


class Later(StreamOrder):
    max_offset = 4

    def offset(self, epoch):
        return 4


class Backwards(StreamOrder):
    def arrange(self, rows, epoch):
        return rows.flip(1)


def test_an_order_of_all_tokens_needs_them_in_memory(one_file, in_shards, monkeypatch):
    sharded, plain = encode_both(one_file, "word", "train", monkeypatch)
    assert len(Stream(load_tokens(plain, "cpu"), 3, 7, orders=[Backwards()])) > 1
    with pytest.raises(ConfigError, match=r"Backwards .* ANAPHOR_IN_MEMORY_BYTES"):
        Stream(load_tokens(sharded, "cpu"), 3, 7, orders=[Backwards()])


def assert_same_batches(stored, whole):
    assert len(stored) == len(whole)
    for one, other in zip(stored, whole, strict=True):
        for name, value in vars(other).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(getattr(one, name), value, rtol=0, atol=0)
            else:
                assert getattr(one, name) == value


def test_what_was_read_is_unmapped(one_file, in_shards, monkeypatch):
    sharded, plain = encode_both(one_file, "word", "train", monkeypatch)
    monkeypatch.setattr(shards, "MAX_MAPPED", 20_000)
    mapped, memmap = [], np.memmap
    monkeypatch.setattr(shards.np, "memmap", lambda *arguments: mapped.append(1) or memmap(*arguments))
    for place in range(0, len(plain.tokens) - 10, 10):
        np.testing.assert_array_equal(sharded.tokens.read(place, place + 10), plain.tokens[place : place + 10])
    assert len(mapped) > 10


@pytest.mark.parametrize("bigrams", [8, 64, 100_000])
def test_recall_tokens_in_blocks_against_those_in_memory(bigrams, one_file, in_shards, monkeypatch):
    monkeypatch.setattr(recall_tokens, "BLOCK", 256)
    monkeypatch.setattr(recall_tokens, "BIGRAMS", bigrams * 8)
    sharded, plain = encode_both(one_file, "word", "valid", monkeypatch)
    found = find_repeated_in_blocks(load_tokens(sharded, "cpu"), 3)
    expected = find_repeated(plain.tokens, 3)
    np.testing.assert_array_equal(found.read(0, len(found)), expected)
    np.testing.assert_array_equal(found.read(13, 30), expected[13:30])


@pytest.mark.parametrize("separator", [LINE_SEPARATOR, EXAMPLE_SEPARATOR])
def test_overlap_by_digests_against_the_lines_themselves(separator, one_file, in_shards):
    dataset = open_dataset(str(one_file))
    found = count_streamed_overlap(dataset, separator, dataset, "test")
    assert found == count_overlap(dataset, separator)
    assert found.total > 5
    assert found.in_train > 0 or separator != LINE_SEPARATOR
