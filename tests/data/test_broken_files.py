"""Files that are empty, short, in another encoding or no text at all: one clear line, or it works."""

import gzip
import time

import numpy as np
import pytest

from anaphor.data.batches import Stream
from anaphor.data.corpus import build_tokenizer, encode_split
from anaphor.data.datasets import open_dataset
from anaphor.errors import DataError
from anaphor.registry import TOKENIZERS

TEXT_KINDS = [kind for kind in TOKENIZERS if kind != "byte"]
GOOD = b"a fine line of text .\n" * 20


def put(path, train, valid=GOOD):
    (path / "train.txt").write_bytes(train)
    (path / "valid.txt").write_bytes(valid)
    return open_dataset(str(path))


def refusal(action):
    with pytest.raises(DataError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", TEXT_KINDS)
@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"good start \xff rest\n", "byte 0xff at byte offset 11"),
        (b"cut off \xe6\x88", "byte 0xe6 at byte offset 8"),
        ("Grüße\n".encode("latin-1") * 9, "byte 0xfc at byte offset 2"),
        ("text\n".encode("utf-16"), "is UTF-16"),
        ("text\n".encode("utf-16-be").join([b"\xfe\xff", b""]), "is UTF-16"),
        ("text\n".encode("utf-32"), "is UTF-32"),
        ("text\n".encode("utf-16-le"), "NUL byte at byte offset 1"),
        (b"a b\0c\n", "NUL byte at byte offset 3"),
        (b"\x80\x04\x95\x0e\0\0\0\0\0\0\0\x8c\x02os\x94\x8c\x06system\x93.", "NUL byte at byte offset 4"),
        (bytes(range(1, 256)), "byte 0x80 at byte offset 127"),
    ],
    ids=["invalid", "cut", "latin-1", "utf-16-le", "utf-16-be", "utf-32", "no mark", "nul", "serialised", "binary"],
)
def test_what_is_no_utf8_is_named_with_its_offset(tmp_path, kind, raw, told):
    source = put(tmp_path, raw)
    message = refusal(lambda: build_tokenizer(source, kind))
    assert told in message
    assert "train.txt" in message
    assert "byte tokenizer" in message
    tokenizer = TOKENIZERS[kind].train(GOOD.decode())
    assert told in refusal(lambda: encode_split(source, "train", tokenizer))


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xfea\0", b"a\0b", bytes(range(256)), b"\xef\xbb\xbfmark", b"one\r\ntwo\rthree\n", b"x"],
    ids=["utf-16", "nul", "every byte", "mark", "line ends", "one byte"],
)
def test_the_byte_tokenizer_keeps_every_byte(tmp_path, raw):
    source = put(tmp_path, raw)
    tokenizer = build_tokenizer(source, "byte")
    for _ in range(2):
        assert tokenizer.decode_bytes(encode_split(source, "train", tokenizer).tokens) == raw


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_a_mark_and_foreign_line_ends_leave_no_trace(tmp_path, kind):
    text = "one two .\nthree four .\n"
    for place, raw in enumerate((text, f"\ufeff{text}", text.replace("\n", "\r\n"), text.replace("\n", "\r"))):
        folder = tmp_path / str(place)
        folder.mkdir()
        source = put(folder, raw.encode())
        tokenizer = build_tokenizer(source, kind)
        assert tokenizer == TOKENIZERS[kind].train(text)
        np.testing.assert_array_equal(encode_split(source, "train", tokenizer).tokens, tokenizer.encode(text))


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("raw", [b"", b"\n", b" \r\n\t "], ids=["empty", "newline", "blank"])
def test_an_empty_file_is_named(tmp_path, kind, raw):
    source = put(tmp_path, raw)
    assert "train.txt is empty" in refusal(lambda: build_tokenizer(source, kind))
    whole = put(tmp_path, GOOD, raw)
    tokenizer = build_tokenizer(whole, kind)
    assert "valid.txt is empty" in refusal(lambda: encode_split(whole, "valid", tokenizer))
    (tmp_path / "alone.txt").write_bytes(raw)
    alone = open_dataset(str(tmp_path / "alone.txt"))
    assert "alone.txt is empty" in refusal(lambda: build_tokenizer(alone, kind))


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("raw", [b"x", b"x\n", b"word", b"one line of words", b"a a a a a a a a\n"])
def test_a_tiny_file_works_or_says_that_it_is_too_short(tmp_path, kind, raw):
    source = put(tmp_path, raw)
    tokenizer = build_tokenizer(source, kind)
    corpus = encode_split(source, "train", tokenizer)
    assert len(corpus.tokens) >= 1
    if len(corpus.tokens) < 4:
        assert "too short for 2 rows" in refusal(lambda: Stream(corpus.tensor(), rows=2, bptt=3))
    else:
        assert sum(batch.count for batch in Stream(corpus.tensor(), rows=2, bptt=3)) >= 2


@pytest.mark.parametrize("raw", [b"x", b"x\n", b"one two", b"a\nb\nc"])
def test_one_file_too_short_to_be_split_says_so(tmp_path, raw):
    path = tmp_path / "tiny.txt"
    path.write_bytes(raw)
    source = open_dataset(str(path))
    assert f"has {len(raw)} byte{'s' * (len(raw) != 1)}, too few to be split" in refusal(lambda: source.read("train"))


def test_an_offset_counts_from_the_start_of_the_file_not_of_the_split(tmp_path):
    path = tmp_path / "book.txt"
    raw = bytearray(b"a line of text\n" * 100)
    place = len(raw) - 3
    raw[place] = 0xFF
    path.write_bytes(raw)
    source = open_dataset(str(path))
    tokenizer = build_tokenizer(source, "word")
    assert f"book.txt is not UTF-8: byte 0xff at byte offset {place}" in refusal(
        lambda: encode_split(source, "test", tokenizer)
    )


PACKED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    "raw", [b"not gzip", PACKED[:-9], PACKED[:20] + b"xxxxxxxxxxx", b""], ids=["text", "cut", "damaged", "empty"]
)
def test_a_damaged_gzip_file_is_named(tmp_path, raw):
    (tmp_path / "train.txt.gz").write_bytes(raw)
    source = open_dataset(str(tmp_path))
    message = refusal(lambda: build_tokenizer(source, "word"))
    assert "train.txt.gz is " in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    source = put(tmp_path, GOOD)
    (tmp_path / "train.txt").unlink()
    assert "cannot read" in refusal(lambda: source.read("train"))


def seconds(tokenizer, text):
    start = time.process_time()
    tokenizer.encode(text)
    return time.process_time() - start


def cost_of_one_line(kind, size, repeats):
    """How much longer a text takes as one line than as many."""
    line = "the old farmer of the village went home early that day , and nobody knew why"
    text = f"{line}\n" * (size // len(line))
    tokenizer = TOKENIZERS[kind].train(text[:100_000])
    in_lines = min(seconds(tokenizer, text) for _ in range(repeats))
    in_one = min(seconds(tokenizer, text.replace("\n", " ")) for _ in range(repeats))
    return in_one / in_lines


@pytest.fixture
def _one_core_for_the_library(monkeypatch):
    """Lines are encoded on all cores and one line on one: what is compared is the work, not the machine."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.mark.usefixtures("_one_core_for_the_library")
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_one_long_line_costs_at_most_three_times_the_same_text_in_lines(kind):
    sizes = {"treebank": 300_000, "bpe": 1_000_000}
    assert cost_of_one_line(kind, sizes.get(kind, 3_000_000), 3) < 3


@pytest.mark.slow
@pytest.mark.usefixtures("_one_core_for_the_library")
@pytest.mark.parametrize(("kind", "size"), [(kind, 10**7 if kind == "treebank" else 10**8) for kind in TOKENIZERS])
def test_one_line_of_a_hundred_megabytes_costs_at_most_three_times_the_same_text_in_lines(kind, size):
    assert cost_of_one_line(kind, size, 1) < 3
