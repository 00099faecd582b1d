"""Labeled texts: columns "text" and "label", from TSV, CSV, JSON Lines and Parquet files and from class folders.

CSV is read by Python's `csv`: pyarrow takes 2 ms in place of 9 for the 6,920 sentences of SST-2, after 27 ms for its
import, but knows no number of a row for an error, and reads `"a"b` and text that is not UTF-8 without one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from anaphor.config import nearest
from anaphor.data.arrow_files import ArrowTable, find_saved_tables
from anaphor.data.dataset import (
    LABELED_COLUMNS,
    SPLIT_NAMES,
    SPLITS,
    TEST,
    TRAIN,
    VALID,
    Dataset,
    Rows,
    encode_lines,
)
from anaphor.data.files import File, StoredFile
from anaphor.data.images import hold_out
from anaphor.data.text import ADVICE_FOR_TEXT, check_characters, decode_text, split_lines
from anaphor.errors import ConfigError, DataError, count_noun
from anaphor.user_paths import user_path

TEXT_NAMES, LABEL_NAMES = ("text", "sentence"), ("label",)
DELIMITERS = {"\t": "tabs", ";": "semicolons", ",": "commas"}
"""Signs between the fields of a row; files of this program have tabs or commas."""
PERCENT = 10
"""Share of valid, and of test, of data that come without them."""
TABLE_ENDINGS = (".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".csv.gz", ".jsonl.gz")
MAX_RARE = 100
"""Most labels that may be as many as half of the texts: a few examples may have a class each."""
LAYOUT = "a file of labeled texts, a folder with train, valid and test files, or a folder of class folders"


class Example(NamedTuple):
    """A text with its label."""

    text: str
    label: str
    row: int
    """Row of its file, from 1, the header included."""


class Source(Protocol):
    """Examples of one file or folder."""

    def read(self) -> list[Example]: ...
    def __str__(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns of a file; None: the usual ones."""

    text: str | None = None
    label: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether a column was named."""
        return self.text is not None or self.label is not None

    def find(self, names: Sequence[str], where: str) -> tuple[str, str]:
        """The names of both columns among those of a file, or an error that lists them."""
        return (
            _find_column(names, self.text, TEXT_NAMES, "text", where),
            _find_column(names, self.label, LABEL_NAMES, "label", where),
        )


def _find_column(names: Sequence[str], given: str | None, usual: Sequence[str], flag: str, where: str) -> str:
    for name in (given,) if given is not None else usual:
        if name in names:
            return name
    hint = nearest(given, names) if given is not None else ""
    wanted = given if given is not None else " or ".join(usual)
    raise DataError(
        f"{where} has no column {wanted!r}{hint} (it has: {', '.join(names)}); name the column with --{flag}-column"
    )


USUAL = Columns()


@dataclass(frozen=True)
class TableFile:
    """A TSV, CSV, JSON Lines or Parquet file."""

    file: File
    columns: Columns = USUAL

    def __str__(self) -> str:
        return str(self.file)

    def read(self) -> list[Example]:
        where, kind = str(self), Path(str(self).removesuffix(".gz")).suffix
        if kind == ".parquet":
            return list(_from_records(enumerate(_read_parquet(Path(where)), 1), self.columns, where))
        text = decode_text(self.file.read(), where, advice=ADVICE_FOR_TEXT)
        if kind == ".jsonl":
            return list(_from_records(_json_lines(text, where), self.columns, where))
        _check_delimiter(text, "," if kind == ".csv" else "\t", where)
        return list(self._from_cells(list(_csv_rows(text, where) if kind == ".csv" else _tsv_rows(text))))

    def _from_cells(self, rows: list[tuple[int, list[str]]]) -> Iterator[Example]:
        if not rows:
            return
        where, (_, first) = str(self), rows[0]
        has_header = self.columns.is_given or any(name in first for name in TEXT_NAMES)
        if has_header:
            names = self.columns.find(first, where)
            text, label, width = first.index(names[0]), first.index(names[1]), len(first)
        else:
            text, label, width = 0, 1, 2
            _check_first_row(rows, where)
        for number, cells in rows[has_header:]:
            if len(cells) != width:
                raise DataError(f"row {number} of {where} has {count_noun(len(cells), 'field')}, not {width}")
            yield make_example(cells[text], cells[label], number, where)


@dataclass(frozen=True)
class SavedTable:
    """A table that `datasets` of Hugging Face saved, or Parquet files; labels have the names that the table gives."""

    table: ArrowTable
    columns: Columns = USUAL

    def __str__(self) -> str:
        return str(self.table)

    def read(self) -> list[Example]:
        names = self.columns.find(list(self.table.columns()), str(self))
        labels = dict(enumerate(self.table.label_names(names[1])))
        rows = enumerate(self.table.read(names), 1)
        records = ((number, {names[0]: text, names[1]: labels.get(label, label)}) for number, (text, label) in rows)
        return list(_from_records(records, self.columns, str(self)))


def _from_records(records: Iterable[tuple[int, Mapping[str, Any]]], columns: Columns, where: str) -> Iterator[Example]:
    names = None
    for number, record in records:
        if names is None or not set(names) <= set(record):
            names = columns.find(list(record), where if names is None else f"row {number} of {where}")
        text, label = record[names[0]], record[names[1]]
        if not isinstance(text, str):
            raise DataError(f"row {number} of {where} has {json.dumps(text)[:40]} as text: it must be a string")
        if label is None or isinstance(label, list | dict):
            raise DataError(f"row {number} of {where} has {json.dumps(label)[:40]} as label")
        label = label if isinstance(label, str) else json.dumps(label)
        for name, value in (("text", text), ("label", label)):
            check_characters(value, f"the {name} in row {number} of {where}")
        yield make_example(text, label, number, where)


def make_example(text: str, label: str, row: int, where: str) -> Example:
    """An example without white space around text and label, neither of them empty."""
    text, label = text.strip(), label.strip()
    for name, value in (("text", text), ("label", label)):
        if not value:
            raise DataError(f"row {row} of {where} has an empty {name}")
    return Example(text, label, row)


def _check_first_row(rows: list[tuple[int, list[str]]], where: str) -> None:
    """Refuse what cannot be text and label without a header."""
    number, first = rows[0]
    if len(first) != 2:
        raise DataError(
            f"row {number} of {where} has {count_noun(len(first), 'field')} and is no header with "
            f"text (or sentence) and label: name the columns with --text-column and --label-column"
        )
    if len(rows) > 2 and Counter(cells[-1] for _, cells in rows)[first[1]] == 1:
        raise DataError(
            f"row {number} of {where} may be a header, because no other row has the label {first[1]!r}: name the "
            f"columns with --text-column and --label-column, or rename them to text and label"
        )


def _check_delimiter(text: str, delimiter: str, where: str) -> None:
    """Refuse a file whose first row is one field, with another sign where fields may end: spreadsheets write semicolons
    to CSV files in countries where numbers have commas."""
    first = text.lstrip("\r\n").partition("\n")[0]
    if delimiter in first or first.count('"') % 2:  # a field in quotes may end in another line
        return
    for sign, name in DELIMITERS.items():
        if sign in first:
            wanted = DELIMITERS[delimiter]
            advice = {",": "name it .csv", "\t": "name it .tsv"}.get(sign, f"save it with {wanted}")
            raise DataError(f"{where} has {name} between its fields, not {wanted}: {advice}")


def _tsv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Lines with tabs between the fields; quotes are part of the text, as in GLUE."""
    for number, line in enumerate(split_lines(text), 1):
        if line.strip():
            yield number, line.split("\t")


@contextmanager
def _unlimited_fields() -> Iterator[None]:
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _csv_rows(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file; a field in quotes may contain commas, quotes and newlines."""
    number = 0
    with _unlimited_fields():
        try:
            for number, cells in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True), 1):
                if any(cells):
                    yield number, cells
        except csv.Error as error:
            raise DataError(f"row {number + 1} of {where} is not CSV: {error}") from None


def _json_lines(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"row {number} of {where} is not JSON: {str(error)[:80]}") from None
        if not isinstance(record, dict):
            raise DataError(f"row {number} of {where} is not a JSON object with a text and a label")
        yield number, record


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"{path}: Parquet files need pyarrow: pip install 'anaphor[parquet]'") from None
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except Exception as error:  # noqa: BLE001 (a broken file may raise anything)
        raise DataError(f"{path} is not a Parquet file that pyarrow can read: {str(error)[:80]}") from None
    return rows


@dataclass(frozen=True)
class ClassFolder:
    """A folder `CLASS/*.txt`: the label of a text is the name of its folder. Files are in the order of their paths."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> list[Example]:
        files = [(file, folder.name) for folder in subfolders(self.path) for file in sorted(folder.glob("*.txt"))]
        if not files:
            raise DataError(f"{self.path} has no CLASS/*.txt files: labeled texts are {LAYOUT}")
        return [
            make_example(decode_text(StoredFile(file).read(), str(file), advice=ADVICE_FOR_TEXT), label, row, str(file))
            for row, (file, label) in enumerate(files, 1)
        ]


def subfolders(path: Path) -> list[Path]:
    """Folders in a folder, hidden ones left out, in order of their names."""
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


class LabeledTexts(Dataset):
    """Texts with one label each. Without valid, a tenth of train is held out for it; one file or folder alone is split
    80/10/10. Labels have equal shares in all parts of what was split."""

    columns = LABELED_COLUMNS

    def __init__(self, name: str, sources: Mapping[str, Source], *, alone: bool = False, split_seed: int = 0) -> None:
        """`alone`: train is everything there is, and test is held out as well."""
        self.name, self.sources, self.split_seed, self.has_own_splits = name, dict(sources), split_seed, not alone
        self.held_out = {split: PERCENT for split in ((VALID, TEST) if alone else (VALID,)) if split not in sources}
        self.splits = tuple(split for split in SPLITS if split in (*self.sources, *self.held_out))
        self._rows: dict[str, Rows] = {}

    @cached_property
    def _parts(self) -> dict[str, list[Example]]:
        """The examples of train, divided where parts of it are held out."""
        examples = self.sources[TRAIN].read()
        classes = sorted({example.label for example in examples})
        reject_ids(len(classes), len(examples), self.where(TRAIN))
        if not self.held_out or not examples:
            return {TRAIN: examples}
        numbers = {label: number for number, label in enumerate(classes)}
        labels = np.array([numbers[example.label] for example in examples], np.int64)
        indices = hold_out(labels, classes, self.held_out, self.where(TRAIN), seed=self.split_seed, unit="texts")
        return {split: [examples[index] for index in part] for split, part in indices.items()}

    def rows(self, split: str) -> Rows:
        split = self.check_split(split)
        if split not in self._rows:
            is_part = split == TRAIN or split in self.held_out
            examples = self._parts[split] if is_part else self.sources.get(split, self.sources[TRAIN]).read()
            where = self.where(split)
            if not examples:
                raise DataError(f"{where} holds no texts")
            values = [(example.text, example.label) for example in examples]
            digest = hashlib.sha256("".join(f"{json.dumps(row)}\n" for row in values).encode()).hexdigest()
            self._rows[split] = Rows(values, [example.row for example in examples], 0, (where, where), digest)
        return self._rows[split]

    def digest(self, split: str) -> str:
        return self.rows(split).digest

    def read(self, split: str, column: str | None = None) -> bytes:
        """One column, a JSON string per line, because texts may contain newlines."""
        index = self.column_index(column)
        return encode_lines(json.dumps(row[index]) for row in self.rows(split).values)

    def where(self, split: str, column: str | None = None) -> str:
        split = self.check_split(split)
        return str(self.sources.get(split, self.sources[TRAIN]))


def reject_ids(labels: int, texts: int, where: str) -> None:
    """Raise for labels of which most texts have one of their own: a table of pairs of classes would fill the memory."""
    if labels > MAX_RARE and labels > texts / 2:
        raise DataError(
            f"{where} has {labels:,} different labels for {texts:,} texts: the column looks like an id; "
            f"name that of the classes with --label-column"
        )


def open_files(name: str, files: Mapping[str, File]) -> LabeledTexts:
    """A named data set whose files are called as a split is."""
    return LabeledTexts(name, {SPLIT_NAMES[file.partition(".")[0]]: TableFile(files[file]) for file in files})


def open_labeled_path(name: str, columns: Columns = USUAL, split_seed: int = 0) -> LabeledTexts | None:
    """A file, or a folder of files or of class folders; None where nothing of that name exists."""
    path = user_path(name)
    if path.is_file():
        if not path.name.endswith(TABLE_ENDINGS):
            raise DataError(f"{path}: labeled texts are in files that end in {', '.join(TABLE_ENDINGS[:4])}")
        return LabeledTexts(name, {TRAIN: TableFile(StoredFile(path), columns)}, alone=True, split_seed=split_seed)
    if not path.is_dir():
        return None
    if saved := find_saved_tables(path):
        sources = {split: SavedTable(table, columns) for split, table in saved.items()}
        return LabeledTexts(name, sources, alone=len(saved) == 1, split_seed=split_seed)
    files = {entry.name: entry for entry in sorted(path.iterdir()) if entry.is_file()}
    tables = {
        entry: split
        for stem, split in SPLIT_NAMES.items()
        for ending in TABLE_ENDINGS
        if (entry := files.get(f"{stem}{ending}")) is not None
    }
    folders = {folder: split for folder in subfolders(path) if (split := SPLIT_NAMES.get(folder.name.lower()))}
    found: dict[str, Source] = {}
    for entry, split in (tables or folders).items():
        if split in found:
            raise DataError(f"{path} has two parts for {split}, {Path(str(found[split])).name} and {entry.name}")
        found[split] = TableFile(StoredFile(entry), columns) if tables else ClassFolder(entry)
    if found and TRAIN not in found:
        raise DataError(f"{path} has no train, but {', '.join(entry.name for entry in tables or folders)}")
    if found:
        return LabeledTexts(name, found, split_seed=split_seed)
    single = [file for file in files.values() if file.name.endswith(TABLE_ENDINGS)]
    if len(single) == 1:
        source: Source = TableFile(StoredFile(single[0]), columns)
    elif any(any(folder.glob("*.txt")) for folder in subfolders(path)):
        source = ClassFolder(path)
    else:
        raise DataError(f"{path} has no train.tsv, .csv, .jsonl or .parquet and no CLASS/*.txt: give {LAYOUT}")
    return LabeledTexts(name, {TRAIN: source}, alone=True, split_seed=split_seed)
