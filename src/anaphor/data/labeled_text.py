"""Labeled texts: columns "text" and "label", from TSV, CSV, JSON Lines and Parquet files and from class folders.

CSV is read by Python's `csv`: pyarrow takes 2 ms in place of 9 for the 6,920 sentences of SST-2, after 27 ms for its
import, but knows no number of a row for an error, and reads `"a"b` and text that is not UTF-8 without one.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from anaphor.config import nearest
from anaphor.data.arrow_files import ArrowTable, find_saved_tables
from anaphor.data.dataset import (
    ALL,
    LABELED_COLUMNS,
    SPLIT_NAMES,
    SPLITS,
    TEST,
    TRAIN,
    VALID,
    Dataset,
    Rows,
    combine_digests,
    encode_lines,
)
from anaphor.data.files import File, StoredFile, digest_of, in_memory_bytes, note_of_files
from anaphor.data.images import hold_out
from anaphor.data.labels import collect_labels, order_classes, reject_ids
from anaphor.data.stored_labels import load_labels
from anaphor.data.text import ADVICE_FOR_TEXT, check_characters, decode_lines, decode_text
from anaphor.errors import DataError, count_noun
from anaphor.progress_listener import report_progress
from anaphor.user_paths import user_path

TEXT_NAMES, LABEL_NAMES = ("text", "sentence"), ("label",)
DELIMITERS = {"\t": "tabs", ";": "semicolons", ",": "commas"}
"""Signs between the fields of a row; files of this program have tabs or commas."""
PERCENT = 10
"""Share of valid, and of test, of data that come without them."""
TABLE_ENDINGS = (".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".csv.gz", ".jsonl.gz")
CSV_ROWS = 1000
"""Rows of a CSV file that are read at once."""
REPORTED = 4096
"""Rows between two reports of progress."""
LAYOUT = "a file of labeled texts, a folder with train, valid and test files, or a folder of class folders"


class Example(NamedTuple):
    """A text with its label."""

    text: str
    label: str
    row: int
    """Row of its file, from 1, the header included."""


class Source(Protocol):
    """Examples of one file or folder, which are read each time they are asked for."""

    @property
    def files(self) -> Sequence[Path]: ...  # what they are read from; none of named data sets
    @property
    def size(self) -> int: ...  # bytes of the texts, about
    def __iter__(self) -> Iterator[Example]: ...
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
    """A TSV, CSV or JSON Lines file."""

    file: File
    columns: Columns = USUAL

    def __str__(self) -> str:
        return str(self.file)

    @property
    def files(self) -> Sequence[Path]:
        return (self.file.path,) if isinstance(self.file, StoredFile) else ()

    @property
    def size(self) -> int:
        return self.file.size if isinstance(self.file, StoredFile) else 0

    def __iter__(self) -> Iterator[Example]:
        if self._kind == ".jsonl":
            return _from_records(_json_lines(self._lines(), str(self)), self.columns, str(self))
        _check_delimiter(next(filter(None, self._lines()), ""), "," if self._kind == ".csv" else "\t", str(self))
        return self._from_cells()

    @property
    def _kind(self) -> str:
        return Path(str(self).removesuffix(".gz")).suffix

    def _lines(self) -> Iterator[str]:
        pieces = self.file.pieces() if isinstance(self.file, StoredFile) else (self.file.read(),)
        return decode_lines(pieces, str(self))

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        return _csv_rows(self._lines(), str(self)) if self._kind == ".csv" else _tsv_rows(self._lines())

    def _from_cells(self) -> Iterator[Example]:
        rows, where = self._rows(), str(self)
        head = next(rows, None)
        if head is None:
            return
        number, first = head
        if self.columns.is_given or any(name in first for name in TEXT_NAMES):
            names = self.columns.find(first, where)
            text, label, width = first.index(names[0]), first.index(names[1]), len(first)
        else:
            text, label, width = 0, 1, 2
            _check_first_row(number, first, self._rows(), where)
            rows = self._rows()
        for number, cells in rows:
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

    @property
    def files(self) -> Sequence[Path]:
        return self.table.all_files()

    @property
    def size(self) -> int:
        return self.table.size

    def __iter__(self) -> Iterator[Example]:
        names = self.columns.find(list(self.table.columns()), str(self))
        labels = dict(enumerate(self.table.label_names(names[1])))
        records = (
            {names[0]: text, names[1]: labels.get(label, label) if isinstance(label, int) else label}
            for text, label in self.table.read(names)
        )
        return _from_records(enumerate(records, 1), self.columns, str(self))


def _open_table(path: Path, columns: Columns) -> Source:
    if path.suffix == ".parquet":
        return SavedTable(ArrowTable((path,)), columns)
    return TableFile(StoredFile(path), columns)


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


def _check_first_row(number: int, first: list[str], rows: Iterator[tuple[int, list[str]]], where: str) -> None:
    """Refuse what cannot be text and label without a header. `rows` are all rows, of which most are not needed."""
    if len(first) != 2:
        raise DataError(
            f"row {number} of {where} has {count_noun(len(first), 'field')} and is no header with "
            f"text (or sentence) and label: name the columns with --text-column and --label-column"
        )
    count = 0
    for count, (_, cells) in enumerate(rows, 1):
        if count > 1 and cells[-1] == first[1]:
            return
    if count > 2:
        raise DataError(
            f"row {number} of {where} may be a header, because no other row has the label {first[1]!r}: name the "
            f"columns with --text-column and --label-column, or rename them to text and label"
        )


def _check_delimiter(first: str, delimiter: str, where: str) -> None:
    """Refuse a file whose first row is one field, with another sign where fields may end: spreadsheets write semicolons
    to CSV files in countries where numbers have commas."""
    if delimiter in first or first.count('"') % 2:  # a field in quotes may end in another line
        return
    for sign, name in DELIMITERS.items():
        if sign in first:
            wanted = DELIMITERS[delimiter]
            advice = {",": "name it .csv", "\t": "name it .tsv"}.get(sign, f"save it with {wanted}")
            raise DataError(f"{where} has {name} between its fields, not {wanted}: {advice}")


def _tsv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Lines with tabs between the fields; quotes are part of the text, as in GLUE."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line.split("\t")


@contextmanager
def _unlimited_fields() -> Iterator[None]:
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _csv_rows(lines: Iterable[str], where: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file; a field in quotes may contain commas, quotes and newlines."""
    reader, number = csv.reader((f"{line}\n" for line in lines), strict=True), 1
    while some := _read_csv(reader, number, where):
        yield from ((row, cells) for row, cells in enumerate(some, number) if any(cells))
        number += len(some)


def _read_csv(reader: Iterator[list[str]], number: int, where: str) -> list[list[str]]:
    """Some rows at once, because the limit of their fields is one of the process."""
    rows: list[list[str]] = []
    with _unlimited_fields():
        try:
            rows.extend(islice(reader, CSV_ROWS))
        except csv.Error as error:
            raise DataError(f"row {number + len(rows)} of {where} is not CSV: {error}") from None
    return rows


def _json_lines(lines: Iterable[str], where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"row {number} of {where} is not JSON: {str(error)[:80]}") from None
        if not isinstance(record, dict):
            raise DataError(f"row {number} of {where} is not a JSON object with a text and a label")
        yield number, record


@dataclass(frozen=True)
class ClassFolder:
    """A folder `CLASS/*.txt`: the label of a text is the name of its folder. Files are in the order of their paths."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @cached_property
    def files(self) -> Sequence[Path]:
        return [file for folder in subfolders(self.path) for file in sorted(folder.glob("*.txt"))]

    @cached_property
    def size(self) -> int:
        return sum(StoredFile(file).size for file in self.files)

    def __iter__(self) -> Iterator[Example]:
        if not self.files:
            raise DataError(f"{self.path} has no CLASS/*.txt files: labeled texts are {LAYOUT}")
        for row, file in enumerate(self.files, 1):
            text = decode_text(StoredFile(file).read(), str(file), advice=ADVICE_FOR_TEXT)
            yield make_example(text, file.parent.name, row, str(file))


def subfolders(path: Path) -> list[Path]:
    """Folders in a folder, hidden ones left out, in order of their names."""
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


class LabeledTexts(Dataset):
    """Texts with one label each. Without valid, a tenth of train is held out for it; one file or folder alone is split
    80/10/10. Labels have equal shares in all parts of what was split.

    A split that is larger than memory is read again for everything that is asked of it, unless `rows` is.
    """

    columns = LABELED_COLUMNS

    def __init__(self, name: str, sources: Mapping[str, Source], *, alone: bool = False, split_seed: int = 0) -> None:
        """`alone`: train is everything there is, and test is held out as well."""
        self.name, self.sources, self.split_seed, self.has_own_splits = name, dict(sources), split_seed, not alone
        self.held_out = {split: PERCENT for split in ((VALID, TEST) if alone else (VALID,)) if split not in sources}
        self.splits = tuple(split for split in SPLITS if split in (*self.sources, *self.held_out))
        self._rows: dict[str, Rows] = {}

    def class_names(self) -> tuple[str, ...]:
        """The labels of train in order."""
        names, _ = self._labels
        if not names:
            raise self._empty(TRAIN)
        return order_classes(names)

    def is_large(self, split: str) -> bool:
        """Whether a split has more bytes than are read into memory."""
        return self.split_size(split) > in_memory_bytes()

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources.values())

    def split_size(self, split: str) -> int:
        split = self.check_split(split)
        rest = 100 - (sum(self.held_out.values()) if split == TRAIN else 0)
        return self._source(split).size * self.held_out.get(split, rest) // 100

    def rows(self, split: str) -> Rows:
        split = self.check_split(split)
        if split not in self._rows:
            examples = list(self._examples(split))
            if not examples:
                raise self._empty(split)
            where = self.where(split)
            values = [(example.text, example.label) for example in examples]
            lines = [example.row for example in examples]
            self._rows[split] = Rows(values, lines, 0, (where, where), _digest_rows(values))
        return self._rows[split]

    def stream_rows(self, split: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        split = self.check_split(split)
        if not self.is_large(split):
            rows = self.rows(split)
            yield from zip(rows.lines, rows.values, strict=True)
            return
        example = None
        for example in self._examples(split):
            yield example.row, (example.text, example.label)
        if example is None:
            raise self._empty(split)

    def digest(self, split: str) -> str:
        split = self.check_split(split)
        if not self.is_large(split):
            return self.rows(split).digest
        source = self._source(split)
        about = json.dumps(["rows", split, repr(source), self.split_seed, sorted(self.held_out)])
        rows = _report_rows((cells for _, cells in self.stream_rows(split)), f"reading {split}", self.split_size(split))
        return note_of_files(source.files, about, lambda: _digest_rows(rows), source.size)

    def column_digest(self, split: str, column: str) -> str:
        """One of a large split follows from that of all columns, which is kept."""
        if not self.is_large(split):
            return super().column_digest(split, column)
        return combine_digests([self.digest(split), str(self.column_index(column))])

    def read(self, split: str, column: str | None = None) -> bytes:
        """One column, a JSON string per line, because texts may contain newlines."""
        index = self.column_index(column)
        return encode_lines(json.dumps(row[index]) for row in self.rows(split).values)

    def where(self, split: str, column: str | None = None) -> str:
        return str(self._source(self.check_split(split)))

    def _source(self, split: str) -> Source:
        return self.sources.get(split, self.sources[TRAIN])

    def _examples(self, split: str) -> Iterable[Example]:
        """The examples of a split, read now where they are not in memory."""
        if split in self.sources and split != TRAIN:
            return self.sources[split]
        if split == ALL:
            return self._given
        return compress(self._given, self._masks[split])

    @cached_property
    def _given(self) -> list[Example] | Source:
        """The examples that train and what is held out of it are made of; read each time where they are larger than
        memory."""
        source = self.sources[TRAIN]
        return source if source.size > in_memory_bytes() else list(source)

    @cached_property
    def _labels(self) -> tuple[list[str], NDArray[np.int32]]:
        """The different labels of these examples, and the number of the label of each."""
        if isinstance(self._given, list):
            found = collect_labels(example.label for example in self._given)
        else:
            source = self._given
            rows = _report_rows(((one.text, one.label) for one in source), "reading labels", source.size)
            found = load_labels(source.files, repr(source), (label for _, label in rows))
        reject_ids(len(found[0]), len(found[1]), self.where(TRAIN))
        return found

    @cached_property
    def _masks(self) -> dict[str, bytes]:
        """A byte for each of these examples: 1 where it is in a split."""
        names, labels = self._labels
        chosen = {TRAIN: np.arange(len(labels))}
        if self.held_out and len(labels):
            chosen = hold_out(labels, names, self.held_out, self.where(TRAIN), seed=self.split_seed, unit="texts")
        masks = {split: np.zeros(len(labels), np.uint8) for split in (TRAIN, *self.held_out)}
        for split, indices in chosen.items():
            masks[split][indices] = 1
        return {split: mask.tobytes() for split, mask in masks.items()}

    def _empty(self, split: str) -> DataError:
        return DataError(f"{self.where(split)} holds no texts")


def _digest_rows(rows: Iterable[tuple[str, ...]]) -> str:
    return digest_of(f"{json.dumps(row)}\n".encode() for row in rows)


def _report_rows(rows: Iterable[tuple[str, ...]], what: str, size: int) -> Iterator[tuple[str, ...]]:
    """The same rows, while progress is reported: about so many bytes are read."""
    done = 0
    for number, cells in enumerate(rows, 1):
        done += sum(map(len, cells))
        if not number % REPORTED:
            report_progress(what, min(done, size), size)
        yield cells


def open_files(name: str, files: Mapping[str, File]) -> LabeledTexts:
    """A named data set whose files are called as a split is."""
    return LabeledTexts(name, {SPLIT_NAMES[file.partition(".")[0]]: TableFile(files[file]) for file in files})


def open_labeled_path(name: str, columns: Columns = USUAL, split_seed: int = 0) -> LabeledTexts | None:
    """A file, or a folder of files or of class folders; None where nothing of that name exists."""
    path = user_path(name)
    if path.is_file():
        if not path.name.endswith(TABLE_ENDINGS):
            raise DataError(f"{path}: labeled texts are in files that end in {', '.join(TABLE_ENDINGS[:4])}")
        return LabeledTexts(name, {TRAIN: _open_table(path, columns)}, alone=True, split_seed=split_seed)
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
        found[split] = _open_table(entry, columns) if tables else ClassFolder(entry)
    if found and TRAIN not in found:
        raise DataError(f"{path} has no train, but {', '.join(entry.name for entry in tables or folders)}")
    if found:
        return LabeledTexts(name, found, split_seed=split_seed)
    single = [file for file in files.values() if file.name.endswith(TABLE_ENDINGS)]
    if len(single) == 1:
        source = _open_table(single[0], columns)
    elif any(any(folder.glob("*.txt")) for folder in subfolders(path)):
        source = ClassFolder(path)
    else:
        raise DataError(f"{path} has no train.tsv, .csv, .jsonl or .parquet and no CLASS/*.txt: give {LAYOUT}")
    return LabeledTexts(name, {TRAIN: source}, alone=True, split_seed=split_seed)
