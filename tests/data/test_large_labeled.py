"""Labeled texts that are larger than memory: the same rows, labels, tokens and batches from shards on the disk."""

import csv
import gzip
import json

import numpy as np
import pytest
import torch

from anaphor.data import labeled_text, shards, streamed_rows, streamed_text, text
from anaphor.data.arrow_files import STATE
from anaphor.data.corpus import build_sentence_tokenizer, build_tokenizer
from anaphor.data.dataset import ALL, SPLITS, count_row_overlap
from anaphor.data.datasets import load_labeled
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.data.labeled_batches import LabeledBatches
from anaphor.data.labels import number_labels
from anaphor.data.part_worker import make_work
from anaphor.data.pretrained_tokenizer import PretrainedTokenizer
from anaphor.data.stored_texts import encode_stored_texts, is_stored
from anaphor.data.streamed_rows import ColumnText, StreamedRows, count_streamed_row_overlap
from anaphor.data.text import Part
from anaphor.data.tokenizer import Word
from anaphor.errors import DataError
from anaphor.registry import TOKENIZERS

WORDS = ["the", "film", "is", "not", "so", "bad", "it's", "über", "日本"]
LABELS = ["2", "10", "-1"]


def draw_rows(count, seed=0, odd="\n"):
    """Texts of all lengths, some of them twice, with labels that are frequent and rare. A few have an odd sign."""
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(WORDS, size=generator.integers(1, 9))) for _ in range(count)]
    texts = [f"{one}{odd}{one}" if number % 7 == 0 else one for number, one in enumerate(texts)]
    return list(zip(texts, generator.choice(LABELS, size=count, p=[0.6, 0.3, 0.1]).tolist(), strict=True))


def write_tsv(path, rows, header=True):
    lines = [("text", "label"), *rows] if header else rows
    path.write_text("".join(f"{one}\t{label}\r\n\n" for one, label in lines), encoding="utf-8")


def write_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("label", "extra", "text"), *((label, 'a "b"', one) for one, label in rows)])


def write_jsonl(path, rows):
    records = [json.dumps({"text": one, "label": int(label)}) for one, label in rows]
    path.write_text("".join(f"{record}\n" for record in records), encoding="utf-8")


def write_table(path, rows, stream=False):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts, labels = (list(column) for column in zip(*rows, strict=True))
    if not stream:
        parquet.write_table(pyarrow.table({"text": texts, "label": labels}), path, row_group_size=30)
        return
    table = pyarrow.table({"text": texts, "label": [LABELS.index(label) for label in labels]})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as sink:
        sink.write_table(table, max_chunksize=30)


def write_saved(folder, rows):
    folder.mkdir()
    write_table(folder / "data.arrow", rows, stream=True)
    (folder / STATE).write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}), encoding="utf-8")
    features = {"label": {"names": LABELS, "_type": "ClassLabel"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}), encoding="utf-8")


def write_classes(folder, rows):
    for number, (one, label) in enumerate(rows):
        (folder / label).mkdir(exist_ok=True, parents=True)
        (folder / label / f"{number:03}.txt").write_text(one, encoding="utf-8")


def write_compressed(path, rows):
    write_tsv(path.with_suffix(""), rows)
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    path.with_suffix("").unlink()


WRITERS = {
    "a.tsv": lambda path, rows: write_tsv(path, [(one.replace("\n", " "), label) for one, label in rows]),
    "a.tsv.gz": lambda path, rows: write_compressed(path, [(one.replace("\n", " "), label) for one, label in rows]),
    "a.csv": write_csv,
    "a.jsonl": write_jsonl,
    "a.parquet": write_table,
    "saved": write_saved,
    "classes": write_classes,
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Many parts and shards, all in this process."""
    monkeypatch.setattr(text, "PART", 300)
    monkeypatch.setattr(streamed_text, "PART", 300)
    monkeypatch.setattr(streamed_text, "SHARD", 2000)
    monkeypatch.setattr(streamed_rows, "ROWS", 9)
    monkeypatch.setattr(labeled_text, "CSV_ROWS", 5)
    monkeypatch.setattr(labeled_text, "REPORTED", 3)
    monkeypatch.setattr("anaphor.data.parallel_parts.count_cores", lambda: 1)


def make_large(monkeypatch):
    monkeypatch.setenv(MEMORY_VARIABLE, "100")


def make_splits(folder):
    folder.mkdir()
    for number, split in enumerate(SPLITS):
        write_csv(folder / f"{split}.csv", draw_rows(150 - 40 * number, seed=number // 2))
    return folder


@pytest.mark.parametrize("name", [*WRITERS, "splits", "train only"])
def test_rows_labels_and_digests_are_those_in_memory(name, tmp_path, monkeypatch):
    path = tmp_path / name
    if name == "splits":
        make_splits(path)
    elif name == "train only":
        path.mkdir()
        write_jsonl(path / "train.jsonl", draw_rows(150))
    else:
        WRITERS[name](path, draw_rows(150))
    plain = load_labeled(str(path), split_seed=3)
    splits = plain.splits if plain.has_own_splits else (*plain.splits, ALL)
    expected = {split: plain.rows(split) for split in splits}
    make_large(monkeypatch)
    large = load_labeled(str(path), split_seed=3)
    for _ in range(2):  # the second time from the cache
        assert large.class_names() == plain.class_names() == ("-1", "2", "10")
        for split, rows in expected.items():
            assert large.is_large(split)
            found = list(large.stream_rows(split))
            assert [number for number, _ in found] == rows.lines
            assert [cells for _, cells in found] == rows.values
            assert large.digest(split) == rows.digest
        assert large._rows == {}  # nothing is kept
        large = load_labeled(str(path), split_seed=3)


def test_a_file_without_a_header(tmp_path, monkeypatch):
    rows = [(one.replace("\n", " "), label) for one, label in draw_rows(100)]
    write_tsv(tmp_path / "a.tsv", rows, header=False)
    make_large(monkeypatch)
    found = load_labeled(str(tmp_path / "a.tsv"))
    assert [cells for _, cells in found.stream_rows(ALL)] == rows


def add(content, line):
    """Lines that nothing is wrong with, before and after one."""
    filled = "".join(f"text number {number},{number % 2}\n" for number in range(100))
    return f"text,label\n{filled}{line}\n{filled}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", add("a.csv", " ,1").encode(), "row 102 of .* has an empty text"),
        ("a.csv", add("a.csv", "fine,").encode(), "row 102 of .* has an empty label"),
        ("a.csv", add("a.csv", "fine,1,2").encode(), "row 102 of .* has 3 fields, not 2"),
        ("a.csv", add("a.csv", 'fi"ne",1').encode() + b'"', "row .* is not CSV"),
        ("a.csv", add("a.csv", "fine?,1").encode().replace(b"?", b"\xff"), "is not UTF-8: byte 0xff at byte offset 1"),
        ("a.csv", add("a.csv", "fine?,1").encode().replace(b"?", b"\0"), "has a NUL byte at byte offset 1"),
        ("a.csv", add("a.csv", "fine,1").replace(",", ";").encode(), "has semicolons between its fields"),
        ("a.tsv", add("a.tsv", "fine,").replace(",", "\t").encode(), "row 102 of .* has an empty label"),
        ("a.tsv", add("a.tsv", "fine").replace(",", "\t").encode(), "row 102 of .* has 1 field, not 2"),
        ("a.tsv", add("a.tsv", "b,1").replace(",", "\t").replace("text", "review").encode(), "may be a header"),
        ("a.jsonl", b'{"text": "fine", "label": 1}\n' * 50 + b'{"text"\n', "row 51 of .* is not JSON"),
        ("a.jsonl", b'{"text": "fine", "label": 1}\n' * 50 + b'{"text": "b"}\n', "row 51 of .* has no column 'label'"),
    ],
)
def test_what_cannot_be_read_is_told_as_in_memory(name, content, message, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(content)

    def told():
        with pytest.raises(DataError, match=message) as error:
            list(load_labeled(str(tmp_path / name)).stream_rows("train"))
        assert "\n" not in str(error.value)
        return str(error.value)

    in_memory = told()
    make_large(monkeypatch)
    assert told() == in_memory


def test_a_column_of_ids_is_refused_as_in_memory(tmp_path, monkeypatch):
    write_tsv(tmp_path / "a.tsv", [("a text", f"id{number}") for number in range(300)])
    make_large(monkeypatch)
    with pytest.raises(DataError, match=r"a\.tsv has 300 different labels for 300 texts: the column looks like an id"):
        load_labeled(str(tmp_path / "a.tsv")).class_names()


def pretrained():
    """With a special token before and after each text."""
    import tokenizers

    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(["<s>", "</s>", "?", *WORDS])}, "?")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.post_processor = tokenizers.processors.BertProcessing(("</s>", 1), ("<s>", 0))
    return PretrainedTokenizer.from_text(library.to_str(), where="tokenizer.json", boundary=None, pad=1)


KINDS = ["word", "character", "byte", "bpe", "treebank", "pretrained"]


def encode_both(path, kind, monkeypatch, length):
    """Ids, labels and what was truncated of train, in memory and from shards."""
    plain = load_labeled(str(path))
    rows, classes = plain.rows("train"), plain.class_names()
    texts, labels = zip(*rows.values, strict=True)
    size = 280 if kind == "bpe" else None
    tokenizer = pretrained() if kind == "pretrained" else build_sentence_tokenizer(str(path), texts, kind, size)
    encoded, cut = zip(*(tokenizer.encode_truncated(one, length) for one in texts), strict=True)
    make_large(monkeypatch)
    large = load_labeled(str(path))
    assert is_stored(large, "train", kind)
    if kind != "pretrained":
        (path.parent / "cache").mkdir()
        monkeypatch.setenv("ANAPHOR_CACHE", str(path.parent / "cache"))
        assert build_tokenizer(ColumnText(large, ["text"]), kind, size) == tokenizer
    stored = encode_stored_texts(large, "train", tokenizer, classes, length)
    return (encoded, number_labels(labels, rows.lines, classes, ""), cut), stored, tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_batches_from_shards_are_those_from_memory(kind, tmp_path, monkeypatch):
    write_csv(tmp_path / "a.csv", draw_rows(200))
    (encoded, labels, cut), stored, tokenizer = encode_both(tmp_path / "a.csv", kind, monkeypatch, 7)
    assert list(map(list, stored)) == list(map(list, encoded))
    assert stored.labels.tolist() == labels
    assert stored.is_truncated.tolist() == list(cut)
    assert 0 < sum(cut) < len(cut)
    for most in (None, 50):
        options = {"pad": tokenizer.pad, "rows": 8, "pad_to": 2, "seed": 5}
        one = LabeledBatches(stored.first(most), stored.labels[:most], **options)
        other = LabeledBatches(encoded[:most], labels[:most], **options)
        assert one.tokens == other.tokens
        assert one.padding_share == other.padding_share
        for token in (0, 2, 9, tokenizer.unknown):
            assert one.count_token(token) == other.count_token(token)
        for arrange in (lambda batches: batches.at_epoch(1), lambda batches: batches.by_length()):
            assert len(arrange(one)) > 3
            for batch, twin in zip(arrange(one), arrange(other), strict=True):
                for name in ("tokens", "lengths", "labels"):
                    assert torch.equal(getattr(batch, name), getattr(twin, name))


def test_texts_are_read_again_where_they_are_asked_for(tmp_path, monkeypatch):
    write_csv(tmp_path / "a.csv", draw_rows(200))
    expected = load_labeled(str(tmp_path / "a.csv")).rows("valid").values
    make_large(monkeypatch)
    texts = StreamedRows(load_labeled(str(tmp_path / "a.csv")), "valid", 12)
    assert list(texts) == expected[:12]
    assert (texts[3], texts[-1], texts[2:9:3]) == (expected[3], expected[11], expected[2:9:3])


def test_a_label_that_train_does_not_have_is_named_with_its_row(tmp_path, monkeypatch):
    rows = draw_rows(100)
    rows[77] = ("fine", "unknown")
    write_csv(tmp_path / "a.csv", rows)
    plain = load_labeled(str(tmp_path / "a.csv")).rows(ALL)
    with pytest.raises(DataError, match=r"row 79 of .*a\.csv has the label 'unknown', which is not in train") as told:
        number_labels([label for _, label in plain.values], plain.lines, LABELS, plain.where[1])
    make_large(monkeypatch)
    with pytest.raises(DataError) as error:
        encode_stored_texts(load_labeled(str(tmp_path / "a.csv")), ALL, Word(["<eos>", "<unk>"]), LABELS, 9)
    assert str(error.value) == str(told.value)


@pytest.mark.parametrize("written", [0, 1, 5, 9])
def test_tokenizing_that_was_killed_goes_on_at_the_last_shard(written, tmp_path, monkeypatch, capsys):
    write_csv(tmp_path / "a.csv", draw_rows(300))
    make_large(monkeypatch)
    tokenizer = Word(["<eos>", "<unk>", *WORDS])
    dataset = load_labeled(str(tmp_path / "a.csv"))
    classes = dataset.class_names()
    add, count = shards.Manifest.add, []

    def add_some(self, *arguments):
        if len(count) == written:
            raise KeyboardInterrupt
        count.append(self.path(len(self.shards)))
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shards.Manifest, "add", add_some)
        with pytest.raises(KeyboardInterrupt):
            encode_stored_texts(dataset, "train", tokenizer, classes, 50)
    whole = count[: written // 4 * 4]
    before = [path.stat().st_mtime_ns for path in whole]
    capsys.readouterr()
    stored = encode_stored_texts(dataset, "train", tokenizer, classes, 50)
    assert ("from byte" in capsys.readouterr().err) == bool(whole)
    assert [path.stat().st_mtime_ns for path in whole] == before
    expected = [tokenizer.encode_text(one) for one, _ in dataset.rows("train").values]
    assert list(map(list, stored)) == expected


def test_a_file_that_is_edited_is_other_data(tmp_path, monkeypatch):
    path = tmp_path / "a.tsv"
    write_tsv(path, [("a text", "x"), ("another one", "y")] * 40)
    make_large(monkeypatch)
    before = load_labeled(str(path))
    digest = before.digest("train")
    write_tsv(path, [("a text", "x"), ("another one", "z")] * 41)
    after = load_labeled(str(path))
    assert after.digest("train") != digest
    assert after.class_names() == ("x", "z")


@pytest.mark.parametrize("limit", ["100000", "10"])
def test_a_file_without_texts_has_no_labels(limit, tmp_path, monkeypatch):
    (tmp_path / "a.tsv").write_text("text\tlabel\n\n\n")
    monkeypatch.setenv(MEMORY_VARIABLE, limit)
    data = load_labeled(str(tmp_path / "a.tsv"))
    for ask in (data.class_names, lambda: data.digest("train"), lambda: list(data.stream_rows(ALL))):
        with pytest.raises(DataError, match=r"a\.tsv holds no texts"):
            ask()


def test_a_tokenizer_of_ones_own_gets_texts_in_memory(tmp_path, monkeypatch):
    write_csv(tmp_path / "a.csv", draw_rows(50))
    make_large(monkeypatch)
    data = load_labeled(str(tmp_path / "a.csv"))
    assert is_stored(data, "train", "word")
    TOKENIZERS.add("own", Word)
    assert not is_stored(data, "train", "own")


@pytest.mark.parametrize("most", [None, 30])
def test_overlap_counts_what_it_counts_in_memory(most, tmp_path, monkeypatch):
    plain = load_labeled(str(make_splits(tmp_path / "data")))
    expected = count_row_overlap(plain, plain.rows("train").values[:most])
    assert 0 < expected.in_train < expected.total
    make_large(monkeypatch)
    large = load_labeled(str(tmp_path / "data"))
    assert count_streamed_row_overlap(large, large, most=most) == expected


def test_long_texts_come_in_small_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(streamed_rows, "PART", 1000)
    monkeypatch.setattr(streamed_rows, "ROWS", 100)
    write_tsv(tmp_path / "a.tsv", [("a long text " * 50, "x"), ("short", "y")] * 40)
    make_large(monkeypatch)
    parts = [*streamed_rows.row_parts(load_labeled(str(tmp_path / "a.tsv")), ALL, "reading")]
    assert max(len(json.loads(part.raw)[0]) for part in parts) == 4
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_process_answers_with_tokens_sizes_classes_and_what_was_cut():
    work = make_work({"work": "texts", "tokenizer": Word(["<eos>", "<unk>", "a"]).to_plain(), "where": "the file"}
                     | {"classes": ["x", "y"], "length": 2})  # fmt: skip
    answer = work(Part(json.dumps([[4, 7], [["a b", "y"], ["a", "x"]], 0]).encode(), 0, is_last=True))
    assert [array.tolist() for array in answer.arrays] == [[0, 2, 0, 2], [2, 2], [1, 0], [1, 0]]
