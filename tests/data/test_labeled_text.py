"""Labeled texts: files of every format, folders, splits, and what is refused with its row; the data set negation."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from anaphor.data.dataset import LABELED_COLUMNS, SPLITS
from anaphor.data.datasets import load_labeled, open_dataset
from anaphor.data.negation import LABELS, Negation
from anaphor.errors import ConfigError, DataError

ROWS = [("fine, I say", "good"), ('he said "no"', "bad"), ("two\nlines", "good"), ("über alles", "bad")]


def quoted(cell):
    return '"' + cell.replace('"', '""') + '"'


def write(path, rows, header=("text", "label")):
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(header, row, strict=True))) for row in rows]
    elif path.suffix == ".csv":
        lines = [",".join(header), *(",".join(map(quoted, row)) for row in rows)]
    else:
        lines = ["\t".join(cell.replace("\n", " ") for cell in row) for row in (header, *rows)]
    path.write_text("".join(f"{line}\n" for line in lines))


def folder_of(path, ending, header=("text", "label")):
    path.mkdir(exist_ok=True)
    for split in SPLITS:
        write(path / f"{split}{ending}", ROWS, header)
    return load_labeled(str(path))


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".tsv"])
def test_every_format_gives_the_same_rows(tmp_path, ending):
    data = folder_of(tmp_path / "data", ending, ("sentence", "label"))
    expected = [(text.replace("\n", " "), label) for text, label in ROWS] if ending == ".tsv" else ROWS
    assert data.columns == LABELED_COLUMNS
    assert data.rows("valid").values == expected
    first = 1 if ending == ".jsonl" else 2
    assert data.rows("valid").lines == list(range(first, first + 4))


def test_columns_of_any_name_are_read_by_flags(tmp_path):
    write(
        tmp_path / "reviews.csv",
        [(f"{text} {n}", label) for n in range(10) for text, label in ROWS],
        ("review", "stars"),
    )
    data = load_labeled(str(tmp_path / "reviews.csv"), "review", "stars")
    assert Counter(label for _, label in data.rows("train").values) == {"good": 16, "bad": 16}
    with pytest.raises(DataError, match=r"reviews.csv has no column 'reviews'; did you mean 'review'.*--text-column"):
        load_labeled(str(tmp_path / "reviews.csv"), "reviews", "stars").rows("train")


def test_without_header_the_first_column_is_the_text(tmp_path):
    (tmp_path / "a.tsv").write_text('so "good"\t1\nbad\t0\n' * 20)
    assert load_labeled(str(tmp_path / "a.tsv")).rows("train").values[0] in [('so "good"', "1"), ("bad", "0")]
    (tmp_path / "b.csv").write_text("review,sentiment\n" + "fine,good\nawful,bad\n" * 20)
    with pytest.raises(DataError, match=r"row 1 of .*b.csv may be a header.*'sentiment'.*--text-column"):
        load_labeled(str(tmp_path / "b.csv")).rows("train")
    (tmp_path / "c.csv").write_text("0,fine,good\n")
    with pytest.raises(DataError, match=r"row 1 of .*c.csv has 3 fields and is no header"):
        load_labeled(str(tmp_path / "c.csv")).rows("train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            'text;label\n"fine; really";good\nawful;bad\n',
            "a.csv has semicolons between its fields, not commas: save it with commas",
        ),
        ("b.csv", "text\tlabel\nfine, really\tgood\n", "b.csv has tabs between its fields, not commas"),
        ("c.tsv", "text,label\nfine,good\nawful,bad\n", "c.tsv has commas between its fields, not tabs: name it .csv"),
    ],
)
def test_fields_between_other_signs_are_called_so(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    for columns in ((), ("text", "label")):
        with pytest.raises(DataError, match=message):
            load_labeled(str(tmp_path / name), *columns).rows("train")


def test_signs_inside_of_fields_are_text(tmp_path):
    (tmp_path / "a.csv").write_text('"fine;\nreally fine",good\nawful;,bad\n' * 10)
    assert set(load_labeled(str(tmp_path / "a.csv")).rows("train").values) == {
        ("fine;\nreally fine", "good"),
        ("awful;", "bad"),
    }


def test_one_file_is_split_by_seed_with_equal_shares_of_labels(tmp_path):
    rows = [(f"text {n}", "rare" if n % 5 == 0 else "common") for n in range(200)]
    write(tmp_path / "all.tsv", rows)
    data = load_labeled(str(tmp_path / "all.tsv"))
    counts = {split: Counter(label for _, label in data.rows(split).values) for split in SPLITS}
    assert counts == {
        "train": {"common": 128, "rare": 32},
        "valid": {"common": 16, "rare": 4},
        "test": {"common": 16, "rare": 4},
    }
    assert sorted(row for split in SPLITS for row in data.rows(split).values) == sorted(rows)
    again = load_labeled(str(tmp_path / "all.tsv"))
    assert all(again.digest(split) == data.digest(split) for split in SPLITS)
    assert load_labeled(str(tmp_path / "all.tsv"), split_seed=1).digest("valid") != data.digest("valid")


def test_valid_is_held_out_of_train_where_it_is_missing(tmp_path):
    write(tmp_path / "train.tsv", [(f"text {n}", "ab"[n % 2]) for n in range(40)])
    data = load_labeled(str(tmp_path))
    assert data.splits == ("train", "valid")
    assert len(data.rows("valid").values) == 4


@pytest.mark.parametrize("stem", ["valid", "val", "validation", "dev"])
def test_valid_may_be_called_as_elsewhere(tmp_path, stem):
    """GLUE has dev.tsv."""
    write(tmp_path / "train.tsv", [(f"text {n}", "ab"[n % 2]) for n in range(40)])
    write(tmp_path / f"{stem}.tsv", ROWS)
    data = load_labeled(str(tmp_path))
    assert len(data.rows("train").values) == 40
    assert len(data.rows("valid").values) == len(ROWS)


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_class_folders_of_text_files(tmp_path, prefix):
    for label in ("neg", "pos"):
        (tmp_path / prefix / label).mkdir(parents=True)
        for number in range(10):
            (tmp_path / prefix / label / f"{number}.txt").write_text(f"{label} text {number}\n")
    data = load_labeled(str(tmp_path))
    assert data.splits == (("train", "valid") if prefix else SPLITS)
    assert all(text.startswith(label) for text, label in data.rows("train").values)
    (tmp_path / prefix / "pos" / "3.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"3\.txt has an empty text"):
        load_labeled(str(tmp_path)).rows("train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\tlabel\ngood\t1\nbad\n", r"row 3 of .*a.tsv has 1 field, not 2"),
        ("a.tsv", "text\tlabel\n \t1\n", r"row 2 of .*a.tsv has an empty text"),
        ("a.csv", 'text,label\n"a\nb",1\n"no end,0\n', r"row 3 of .*a.csv is not CSV"),
        ("a.csv", "text,label\n" + "fine,\n", r"row 2 of .*a.csv has an empty label"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', r"row 2 of .*a.jsonl is not JSON"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', r"row 1 of .*a.jsonl has 3 as text"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', r"row 2 of .*a.jsonl has no column 'label'"),
        ("a.jsonl", "[]\n", r"row 1 of .*a.jsonl is not a JSON object"),
        ("a.txt", "good\n", r"a.txt: labeled texts are in files that end in \.tsv, \.csv, \.jsonl, \.parquet"),
        ("a.tsv", "text\tlabel\n", r"a.tsv holds no texts"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message) as error:
        load_labeled(str(tmp_path / name)).rows("train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["ids.tsv", "ids"])
def test_a_column_of_ids_is_no_column_of_classes(tmp_path, name):
    (tmp_path / "ids").mkdir()
    write(tmp_path / "ids.tsv", [("a text", f"id{number}") for number in range(200)])
    for split in SPLITS:
        write(tmp_path / "ids" / f"{split}.tsv", [("a text", f"id{max(number, 99)}") for number in range(200)])
    with pytest.raises(
        DataError, match=r"different labels for 200 texts: the column looks like an id; .* --label-column"
    ):
        load_labeled(str(tmp_path / name)).rows("train")


def test_a_text_of_100_000_words_in_csv(tmp_path):
    long = "word " * 99_999 + "end"
    write(tmp_path / "train.csv", [(long, "a"), ("short", "b")] * 10)
    assert len(load_labeled(str(tmp_path)).rows("train").values[0][0].split()) in (1, 100_000)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"need pyarrow: pip install 'anaphor\[parquet\]'"):
        load_labeled(str(tmp_path / "a.parquet")).rows("train")


def test_named_data_sets_have_no_columns_to_choose():
    with pytest.raises(ConfigError, match=r"--text-column and --label-column are for files"):
        load_labeled("negation", text_column="text")
    with pytest.raises(ConfigError, match=r"unknown data set 'negatoin'; did you mean 'negation'"):
        load_labeled("negatoin")


@pytest.fixture(scope="module")
def negation():
    data = open_dataset("negation", LABELED_COLUMNS)
    return {split: data.rows(split).values for split in SPLITS}


def test_labels_of_negation_are_balanced_and_no_sentence_occurs_twice(negation):
    assert {split: len(rows) for split, rows in negation.items()} == {"train": 8000, "valid": 1000, "test": 1000}
    for rows in negation.values():
        assert set(Counter(label for _, label in rows).values()) == {len(rows) // 2}
    texts = [text for rows in negation.values() for text, _ in rows]
    assert len(set(texts)) == len(texts)


def interpret(text):
    """The label of a sentence by a parser of its own: claims are nested by 'that'."""
    *outer, claim = [part.split() for part in text.split(" that ")]
    positive = claim[-1] in ("good", "great", "lovely", "clever", "moving", "fresh")
    positive ^= "not" in claim
    for words in outer:
        rest = words[2:]
        if rest[0] == "who":
            rest = rest[4:] if rest[1] == "does" else rest[2:]
        positive ^= "not" in rest
        positive ^= rest[-1].startswith(("den", "doubt", "disput", "reject"))
    return LABELS[positive]


def test_labels_of_negation_are_what_the_sentences_say(negation):
    assert all(interpret(text) == label for rows in negation.values() for text, label in rows)


def test_words_and_bigrams_of_negation_are_as_frequent_with_either_label(negation):
    counts = {label: Counter() for label in LABELS}
    for text, label in negation["train"]:
        words = text.split()
        counts[label].update({*words, *pairwise(words)})
    features = {feature for feature, count in (counts[LABELS[0]] + counts[LABELS[1]]).items() if count >= 20}
    assert len(features) > 150
    # The difference of two binomial counts, in standard deviations: normal, so that of hundreds hardly one is above 4.
    scores = [
        (counts[LABELS[0]][feature] - counts[LABELS[1]][feature])
        / (counts[LABELS[0]][feature] + counts[LABELS[1]][feature]) ** 0.5
        for feature in features
    ]
    assert max(map(abs, scores)) < 4.5
    assert sum(score**2 for score in scores) / len(scores) < 1.3


def test_another_seed_of_negation_draws_other_sentences():
    assert Negation(80, seed=1).digest("train") != Negation(80).digest("train")
    assert Negation(80).digest("valid") == Negation(80).digest("valid")
