"""Data sets of a user: registered objects and functions, columns that are checked, files opened by their columns."""

import gzip
import subprocess
import sys

import pytest

import anaphor
from anaphor.data.dataset import Dataset, InMemory
from anaphor.data.datasets import NamedDataset, find_dataset, open_dataset
from anaphor.errors import ConfigError, DataError
from anaphor.registry import DATASETS

ROWS = {"train": [("3 4", "7"), ("1 1", "2")], "valid": [("2 2", "4")]}


@pytest.fixture
def register(monkeypatch):
    """Registers for one test."""
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    return anaphor.register_dataset


def sums():
    return InMemory("sums", ROWS, ("text", "label"))


def test_rows_of_one_column_may_be_plain_texts():
    """A text is a sequence as well: its first character is not its first column."""
    dataset = InMemory("lines", {"train": ["a dog", ("a cat",)], "valid": ["a cow"]})
    assert dataset.read("train") == b"a dog\na cat\n"
    assert dataset.rows("valid").values == [("a cow",)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("ab", "row 2 of valid of 'sums' is 'ab': it must be a tuple with text, label"),
        (("3 4",), "row 2 of valid of 'sums' has 1 value: it must be a tuple with text, label"),
        (("3 4", "7", "8"), "row 2 of valid of 'sums' has 3 values: it must be a tuple with text, label"),
    ],
)
def test_a_row_without_a_value_for_each_column_is_refused(row, message):
    with pytest.raises(DataError) as caught:
        InMemory("sums", {**ROWS, "valid": [("2 2", "4"), row]}, ("text", "label"))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "entry", [sums, sums(), NamedDataset(about="sums", license="none", columns=("text", "label"), open=sums)]
)
def test_a_registered_data_set_is_opened_by_its_name(register, entry):
    register("sums", entry)
    dataset = open_dataset("sums", ("text", "label"))
    assert (dataset.name, dataset.columns, dataset.splits) == ("sums", ("text", "label"), ("train", "valid"))
    assert dataset.rows("train").values == ROWS["train"]
    assert dataset.read("valid", "label") == b"4\n"
    assert dataset.digest("train") != dataset.digest("valid")
    assert dataset.where("train", "label") == "the label of the train split of sums"
    assert find_dataset("sums").columns == dataset.columns
    with pytest.raises(DataError, match=r"sums has no test split \(it has: train, valid\)"):
        dataset.rows("test")
    with pytest.raises(ConfigError, match="sums has the columns text, label: name one of them"):
        dataset.read("train")
    with pytest.raises(ConfigError, match="unknown column 'lable'; did you mean 'label'"):
        dataset.read("train", "lable")


def test_other_columns_than_wanted_are_named(register):
    register("sums", sums)
    with pytest.raises(
        ConfigError, match=r"'sums' has the columns \(text, label\); needed: \(text\); data sets with"
    ) as caught:
        open_dataset("sums", ("text",))
    assert "grammar" in str(caught.value)
    assert "echo" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"unknown data set 'smus'; did you mean 'sums'\? \(known: .*sums"):
        open_dataset("smus", ("text", "label"))


def test_a_taken_name_and_what_is_no_data_set_are_refused(register):
    with pytest.raises(ConfigError, match="data set name 'grammar' is already registered"):
        register("grammar", sums)
    register("broken", lambda: 1 / 0)
    with pytest.raises(ConfigError, match="data set 'broken' cannot be opened: ZeroDivisionError: division by zero"):
        open_dataset("broken")
    register("number", 5)
    with pytest.raises(ConfigError, match="data set 'number' is a int: register a Dataset or a function"):
        open_dataset("number")


def test_without_wanted_columns_files_are_told_apart(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("one\n")
    (tmp_path / "pairs").mkdir()
    for language in ("en", "de"):
        (tmp_path / "pairs" / f"train.{language}.gz").write_bytes(gzip.compress(language.encode()))
        (tmp_path / f"all.{language}").write_text("a\n" * 100)
    assert open_dataset(str(tmp_path / "text")).columns == ("text",)
    assert open_dataset(str(tmp_path / "all.en")).columns == ("text",)
    assert open_dataset(str(tmp_path / "pairs"), source="en").columns == ("source", "target")
    both = open_dataset(f"{tmp_path}/all.en,{tmp_path}/all.de", target="en")
    assert (both.columns, both.languages) == (("source", "target"), ("de", "en"))


def test_one_text_file_has_lines_as_rows_numbered_in_the_whole_file(tmp_path):
    (tmp_path / "book.txt").write_text("".join(f"line {number}\n" for number in range(1, 101)))
    dataset = open_dataset(str(tmp_path / "book.txt"), ("text",))
    lines = [line for split in dataset.splits for line in dataset.rows(split).lines]
    assert lines == list(range(1, 101))
    assert [value for (value,) in dataset.rows("test").values] == [f"line {n}" for n in dataset.rows("test").lines]
    assert dataset.rows("train").digest == dataset.digest("train")


def test_listing_and_opening_data_sets_needs_no_torch():
    script = (
        "import sys; from anaphor.data import DATASETS, find_dataset, open_dataset\n"
        "names = [name for name in DATASETS if not find_dataset(name).files]\n"
        "assert all(open_dataset(name).rows('valid').values for name in names)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_subclass_needs_nothing_but_read():
    class Numbers(Dataset):
        name = "numbers"

        def read(self, split, column=None):
            self.column_index(column)
            return f"{self.check_split(split)} 1 2 3\n".encode()

    assert Numbers().text("val") == "valid 1 2 3\n"
    assert Numbers().rows("test").values == [("test 1 2 3",)]
