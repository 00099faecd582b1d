"""Folders that `datasets` of Hugging Face saved and Parquet files are texts, read row by row."""

import json
import sys

import numpy as np
import pytest

from anaphor.cli.main import main
from anaphor.data import streamed_text
from anaphor.data.corpus import build_tokenizer, encode_split
from anaphor.data.datasets import load_labeled, open_dataset
from anaphor.data.files import MEMORY_VARIABLE
from anaphor.data.shards import ShardedArray
from anaphor.errors import ConfigError, DataError

LINES = [f"row {number} has the words\nof two lines" if number % 7 == 0 else f"row {number} é" for number in range(200)]
AS_TEXT = "".join(f"{line}\n" for line in LINES).encode()


def write_arrow(path, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(columns)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=30)


def write_parquet(path, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=30)


def save_to_disk(folder, rows, **others):
    """What `datasets` writes: two files, their list, and the features."""
    folder.mkdir(parents=True)
    middle = len(rows) // 3
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (slice(middle), slice(middle, None)), strict=True):
        write_arrow(folder / name, text=rows[part], **{column: values[part] for column, values in others.items()})
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    features = {"text": {"dtype": "string", "_type": "Value"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}), encoding="utf-8")


def save_splits(folder):
    for split, rows in (("train", LINES[:150]), ("validation", LINES[150:180]), ("test", LINES[180:])):
        save_to_disk(folder / split, rows)
    splits = json.dumps({"splits": ["train", "validation", "test"]})
    (folder / "dataset_dict.json").write_text(splits, encoding="utf-8")


@pytest.fixture(params=["arrow", "parquet"])
def table(request, tmp_path):
    if request.param == "parquet":
        write_parquet(tmp_path / "rows.parquet", number=list(range(200)), text=LINES)
        return tmp_path / "rows.parquet"
    save_to_disk(tmp_path / "saved", LINES, number=list(range(200)))
    return tmp_path / "saved"


def test_rows_are_lines_and_are_split_by_their_number(table):
    dataset = open_dataset(str(table))
    assert dataset.read("all") == AS_TEXT
    assert b"".join(dataset.read(split) for split in ("train", "valid", "test")) == AS_TEXT
    assert dataset.read("valid").startswith(b"row 180 ")
    assert dataset.read("test").startswith(b"row 190 ")
    for start in (0, 1, 77, 5000):
        assert b"".join(dataset.pieces("train", start=start)) == dataset.read("train")[start:]


@pytest.mark.parametrize("kind", ["arrow", "parquet", "data"])
def test_splits_of_a_folder(kind, tmp_path):
    folder = tmp_path / "saved"
    if kind == "arrow":
        save_splits(folder)
    else:
        inner = folder / "data" if kind == "data" else folder
        inner.mkdir(parents=True)
        write_parquet(inner / "train-00000-of-00002.parquet", text=LINES[:100])
        write_parquet(inner / "train-00001-of-00002.parquet", text=LINES[100:150])
        write_parquet(inner / "validation-00000-of-00001.parquet", text=LINES[150:180])
        write_parquet(inner / "test.parquet", text=LINES[180:])
    dataset = open_dataset(str(folder))
    assert dataset.splits == ("train", "valid", "test")
    assert b"".join(dataset.read(split) for split in dataset.splits) == AS_TEXT
    assert dataset.read("valid").startswith(b"row 150 ")


def test_shards_of_a_table_hold_the_tokens_in_memory(table, monkeypatch):
    dataset = open_dataset(str(table))
    tokenizer = build_tokenizer(dataset, "word")
    plain = encode_split(dataset, "train", tokenizer)
    monkeypatch.setenv(MEMORY_VARIABLE, "100")
    monkeypatch.setattr(streamed_text, "PART", 300)
    monkeypatch.setattr(streamed_text, "SHARD", 900)
    monkeypatch.setattr("anaphor.data.parallel_parts.count_cores", lambda: 1)
    sharded = encode_split(dataset, "train", tokenizer)
    assert isinstance(sharded.tokens, ShardedArray)
    np.testing.assert_array_equal(sharded.tokens, plain.tokens)
    assert sharded.digest == plain.digest


def test_a_run_on_a_saved_folder(tmp_path, monkeypatch, capsys):
    save_splits(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    words = "train lm --data saved --width 4 --layers 1 --bptt 5 --batch-size 4 --steps 2 --device cpu --out run"
    assert main(words.split()) == 0
    assert main(["evaluate", "run", "--split", "valid"]) == 0
    assert "tokens" in capsys.readouterr().out


def damage(folder, kind):
    state = folder / "state.json"
    plain = json.loads(state.read_text())
    if kind == "json":
        state.write_text("{", encoding="utf-8")
    elif kind == "path":
        state.write_text(json.dumps({"_data_files": [{"filename": "../other.arrow"}]}), encoding="utf-8")
    elif kind == "list":
        state.write_text(json.dumps({"_data_files": 3}), encoding="utf-8")
    elif kind == "missing":
        (folder / plain["_data_files"][1]["filename"]).unlink()
    elif kind == "short":
        path = folder / plain["_data_files"][1]["filename"]
        path.write_bytes(path.read_bytes()[:-3000])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("json", r"state\.json is not JSON"),
        ("path", r"state\.json does not list the files"),
        ("list", r"state\.json does not list the files"),
        ("missing", r"has no data-00001-of-00002\.arrow, which its state\.json lists"),
        ("short", r"data-00001-of-00002\.arrow is not an Arrow file that pyarrow can read"),
    ],
)
def test_a_broken_folder_is_told_in_one_line(kind, message, tmp_path):
    save_to_disk(tmp_path / "saved", LINES)
    damage(tmp_path / "saved", kind)
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path / "saved")).read("train")


def test_a_row_without_text_is_named(tmp_path):
    save_to_disk(tmp_path / "saved", [*LINES[:40], None, *LINES[41:]])
    with pytest.raises(DataError, match=r"row 41 of .*saved has no text in the column 'text'"):
        open_dataset(str(tmp_path / "saved")).read("train")


def test_the_column_of_the_texts(tmp_path):
    write_parquet(tmp_path / "one.parquet", number=[1, 2], content=["a b", "c"])
    assert open_dataset(str(tmp_path / "one.parquet")).read("all") == b"a b\nc\n"
    write_parquet(tmp_path / "two.parquet", title=["a"], body=["b"])
    with pytest.raises(DataError, match=r"has no column 'text' \(it has: title, body\); rename the column"):
        open_dataset(str(tmp_path / "two.parquet")).read("all")
    write_parquet(tmp_path / "few.parquet", text=["a", "b", "c"])
    with pytest.raises(DataError, match="has 3 rows, too few to be split"):
        open_dataset(str(tmp_path / "few.parquet")).read("train")


def test_without_pyarrow_the_line_says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"files need pyarrow: pip install 'anaphor\[parquet\]'"):
        open_dataset(str(table)).read("train")


def test_labels_of_a_saved_folder_have_their_names(tmp_path):
    folder, labels = tmp_path / "saved", [number % 2 for number in range(200)]
    save_to_disk(folder, LINES, label=labels)
    features = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}), encoding="utf-8")
    found = load_labeled(str(folder))
    rows = [row for split in found.splits for row in found.rows(split).values]
    assert found.splits == ("train", "valid", "test")
    assert sorted(rows) == sorted((line, ("bad", "good")[label]) for line, label in zip(LINES, labels, strict=True))


def test_labels_of_saved_splits(tmp_path):
    for split, some in (("train", slice(150)), ("test", slice(150, 200))):
        save_to_disk(tmp_path / "saved" / split, LINES[some], label=["even", "odd"] * (len(LINES[some]) // 2))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}', encoding="utf-8")
    found = load_labeled(str(tmp_path / "saved"))
    assert found.rows("test").values[:2] == [(LINES[150], "even"), (LINES[151], "odd")]
    assert len(found.rows("train").values) + len(found.rows("valid").values) == 150
