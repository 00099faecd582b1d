"""Data sets: splits with named columns, read one split and column at a time, each split with a digest of its content.

Columns say what a data set is: ("text",) is a running text, ("source", "target") are sentence pairs, ("text", "label")
are labeled texts. Several columns are aligned line by line.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, Self

from anaphor.config import look_up
from anaphor.data.files import PIECE, File, StoredFile, digest_of, in_memory_bytes, note_of_file
from anaphor.data.text import ADVICE_FOR_TEXT, decode_lines, decode_text, split_lines
from anaphor.errors import ConfigError, DataError, count_noun

TRAIN, VALID, TEST = SPLITS = ("train", "valid", "test")
ALL = "all"
"""All rows of data that have no splits of their own, as a split of them."""
SPLIT_NAMES = {"train": TRAIN, **dict.fromkeys((VALID, "val", "validation", "dev"), VALID), "test": TEST}
SOURCE, TARGET = PAIR_COLUMNS = ("source", "target")
TEXT_COLUMNS = ("text",)
LABELED_COLUMNS = ("text", "label")


@dataclass(frozen=True)
class Rows:
    """One split, row by row."""

    values: Sequence[tuple[Any, ...]]
    """One value per column, without the white space around it."""
    lines: Sequence[int]
    """Line number of each row in its files, from 1."""
    blank: int
    """Lines that are empty in every column; they are left out."""
    where: tuple[str, ...]
    """Name of each column in error messages."""
    digest: str
    """SHA-256 of the split."""


class Dataset(ABC):
    """Named columns in splits."""

    name: str
    columns: tuple[str, ...] = TEXT_COLUMNS
    splits: tuple[str, ...] = SPLITS
    """Those of train, valid and test that it has."""
    has_own_splits = True
    """Whether they are its own. A file that has none is split by a rule, or read whole as the split `all`."""
    languages: tuple[str, ...] = ()
    """Language of each column of sentence pairs."""
    metadata: Mapping[str, str] = {}
    """Facts for the signature of every score on it, such as `data: fit` where valid and test repeat train."""
    _is_swapped = False

    @abstractmethod
    def read(self, split: str, column: str | None = None) -> bytes:
        """One column of one split as stored, decompressed. No other split's file is opened.

        `column` may be left out where there is only one.
        """

    def pieces(self, split: str, column: str | None = None, start: int = 0) -> Iterator[bytes]:
        """The same from a byte on, a piece at a time: of large files without having all of them in memory."""
        yield self.read(split, column)[start:]

    @property
    def size(self) -> int:
        """Bytes of its files, about; 0 where it has none."""
        return 0

    def split_size(self, split: str) -> int:
        """Bytes of one split, about."""
        return self.size

    def digest(self, split: str) -> str:
        """SHA-256 of one split: of its column, or of the digests of its columns."""
        return combine_digests([self.column_digest(split, column) for column in self.columns])

    def column_digest(self, split: str, column: str) -> str:
        """SHA-256 of `read(split, column)`."""
        return hashlib.sha256(self.read(split, column)).hexdigest()

    def where(self, split: str, column: str | None = None) -> str:
        """Name of this part of the data in error messages."""
        part = f"the {split} split of {self.name}"
        return part if column is None or len(self.columns) == 1 else f"the {column} of {part}"

    def byte_offset(self, split: str) -> int:
        """Bytes of the same file before this split."""
        return 0

    def line_offset(self, split: str) -> int:
        """Lines of the same files before this split."""
        return 0

    def text(self, split: str, column: str | None = None) -> str:
        """One column of one split as text, or an error that names the byte that is not UTF-8."""
        return decode_text(self.read(split, column), self.where(split, column), self.byte_offset(split))

    def rows(self, split: str) -> Rows:
        """Lines of all columns, aligned; an error names the line where one of them is missing."""
        split = self.check_split(split)
        where = tuple(self.where(split, column) for column in self.columns)
        raws = [self.read(split, column) for column in self.columns]
        # Metrics compare texts, so the byte tokenizer is no way out here.
        texts = [decode_text(raw, part, advice=ADVICE_FOR_TEXT) for raw, part in zip(raws, where, strict=True)]
        columns = [split_lines(text) for text in texts]
        check_line_counts(where, columns)
        values: list[tuple[Any, ...]] = []
        lines: list[int] = []
        for number, row in enumerate(zip(*columns, strict=True), 1 + self.line_offset(split)):
            if cells := check_row(row, number, where):
                values.append(cells)
                lines.append(number)
        if not values:
            raise DataError(f"{' and '.join(where)} hold no sentences")
        digest = combine_digests([hashlib.sha256(raw).hexdigest() for raw in raws])
        return Rows(values, lines, len(columns[0]) - len(lines), where, digest)

    def stream_rows(self, split: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Each row with its line number as `rows` has them, and () for a line that is empty in every column. A part of
        the files is read at a time."""
        split = self.check_split(split)
        where = tuple(self.where(split, column) for column in self.columns)
        pieces = (self.pieces(split, column) for column in self.columns)
        columns = [decode_lines(some, name) for some, name in zip(pieces, where, strict=True)]
        offset = self.line_offset(split)
        for number, row in enumerate(zip_longest(*columns), 1):
            if None in row:
                rest = [sum(1 for _ in lines) for lines in columns]
                counts = [number - (cell is None) + more for cell, more in zip(row, rest, strict=True)]
                other = next(index for index, count in enumerate(counts) if count != counts[0])
                raise line_count_error(where[0], counts[0], where[other], counts[other])
            yield number + offset, check_row(row, number + offset, where)

    def swap(self) -> Self:
        """The same rows with the two columns exchanged: sentence pairs in the other direction."""
        other = copy(self)
        other.languages, other._is_swapped = self.languages[::-1], not self._is_swapped
        return other

    def check_split(self, split: str) -> str:
        """The standard name of a split, or an error that lists the splits."""
        if split == ALL and not self.has_own_splits:
            return ALL
        name = look_up(SPLIT_NAMES, split, "split")
        if name not in self.splits:
            raise DataError(f"{self.name} has no {name} split (it has: {', '.join(self.splits)})")
        return name

    def column_index(self, column: str | None) -> int:
        """Where a column is stored, or an error that lists the columns."""
        if column is None and len(self.columns) > 1:
            raise ConfigError(f"{self.name} has the columns {', '.join(self.columns)}: name one of them")
        stored = self.columns[::-1] if self._is_swapped else self.columns
        return 0 if column is None else look_up({name: index for index, name in enumerate(stored)}, column, "column")


def default_split(dataset: Dataset) -> str:
    """The part of other data than those of training that is scored where none is named."""
    return VALID if dataset.has_own_splits else ALL


class SplitFiles(Dataset):
    """A file for each split and column."""

    def __init__(
        self,
        name: str,
        files: Mapping[str, File | tuple[File, ...]],
        columns: tuple[str, ...] = TEXT_COLUMNS,
        languages: tuple[str, ...] = (),
    ) -> None:
        self.name, self.columns, self.languages = name, columns, languages
        self.files = {split: files if isinstance(files, tuple) else (files,) for split, files in files.items()}
        self.splits = tuple(split for split in SPLITS if split in files)

    def check_split(self, split: str) -> str:
        name = super().check_split(split)
        for file in self.files[name]:  # by its size: test is not read before training has ended
            if isinstance(file, StoredFile) and file.is_empty():
                raise DataError(f"{file} is empty")
        return name

    def read(self, split: str, column: str | None = None) -> bytes:
        return self._file(split, column).read()

    def pieces(self, split: str, column: str | None = None, start: int = 0) -> Iterator[bytes]:
        file = self._file(split, column)
        return file.pieces(start) if isinstance(file, StoredFile) else super().pieces(split, column, start)

    @property
    def size(self) -> int:
        return sum(map(self.split_size, self.splits))

    def split_size(self, split: str) -> int:
        return sum(file.size for file in self.files[split] if isinstance(file, StoredFile))

    def column_digest(self, split: str, column: str) -> str:
        return self._file(split, column).digest()

    def where(self, split: str, column: str | None = None) -> str:
        return name_files(self.files[self.check_split(split)] if column is None else [self._file(split, column)])

    def _file(self, split: str, column: str | None) -> File:
        return self.files[self.check_split(split)][self.column_index(column)]


class OneFile(Dataset):
    """One text file for all splits: the first 90 % of its bytes are train, 5 % valid, 5 % test."""

    def __init__(self, name: str, file: File, *, has_own_splits: bool = False) -> None:
        self.name, self.file, self.has_own_splits = name, file, has_own_splits

    def read(self, split: str, column: str | None = None) -> bytes:
        return b"".join(self.pieces(split, column))

    def pieces(self, split: str, column: str | None = None, start: int = 0) -> Iterator[bytes]:
        self.column_index(column)
        split = self.check_split(split)
        if not self._is_large:
            raw = self.file.read()
            first, last = self._bounds(raw, split)
            yield raw[first + start : last]
            return
        first, last = self._large_bounds(split)
        yield from self._stored.pieces(first + start, last)

    def column_digest(self, split: str, column: str) -> str:
        if not self._is_large:
            return super().column_digest(split, column)
        return note_of_file(self._stored.path, split, lambda: digest_of(self.pieces(split, column)))

    @property
    def size(self) -> int:
        return self.file.size if isinstance(self.file, StoredFile) else 0

    def split_size(self, split: str) -> int:
        if not self._is_large:
            return self.size
        start, end = self._large_bounds(self.check_split(split))
        return end - start

    def where(self, split: str, column: str | None = None) -> str:
        return str(self.file)

    def byte_offset(self, split: str) -> int:
        split = self.check_split(split)
        return (self._large_bounds(split) if self._is_large else self._bounds(self.file.read(), split))[0]

    def line_offset(self, split: str) -> int:
        if not self._is_large:
            return self.file.read()[: self.byte_offset(split)].count(b"\n")
        return sum(piece.count(b"\n") for piece in self._stored.pieces(0, self.byte_offset(split)))

    @property
    def _stored(self) -> StoredFile:
        assert isinstance(self.file, StoredFile), "other files are not large"
        return self.file

    @property
    def _is_large(self) -> bool:
        """Whether it is read in pieces; a compressed file can only be cut when all of it was read."""
        file = self.file
        return isinstance(file, StoredFile) and not file.is_compressed and file.size > in_memory_bytes()

    def _large_bounds(self, split: str) -> tuple[int, int]:
        with self._stored.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return self._bounds(raw, split)

    def _bounds(self, raw: bytes | mmap.mmap, split: str) -> tuple[int, int]:
        if is_blank(raw, 0, len(raw)):
            raise DataError(f"{self.file} is empty")
        if split == ALL:
            return 0, len(raw)
        cuts = [0, *cut_points(raw, str(self.file)), len(raw)]
        index = SPLITS.index(split)
        return cuts[index], cuts[index + 1]


class AlignedFiles(Dataset):
    """A file for each column and all splits: the first 90 % of the lines are train, 5 % valid, 5 % test."""

    def __init__(
        self, name: str, files: Sequence[File], columns: tuple[str, ...], languages: tuple[str, ...] = ()
    ) -> None:
        self.name, self.files, self.columns, self.languages = name, tuple(files), columns, languages

    def read(self, split: str, column: str | None = None) -> bytes:
        lines = self._lines()[self.column_index(column)]
        start, end = self._bounds(self.check_split(split), len(lines))
        return encode_lines(lines[start:end])

    def where(self, split: str, column: str | None = None) -> str:
        return name_files(self.files if column is None else [self.files[self.column_index(column)]])

    def line_offset(self, split: str) -> int:
        return self._bounds(self.check_split(split), len(self._lines()[0]))[0]

    def _lines(self) -> list[list[str]]:
        columns = [split_lines(decode_text(file.read(), str(file), advice=ADVICE_FOR_TEXT)) for file in self.files]
        # Before the files are split: otherwise only test would show that lines are missing at the end.
        check_line_counts([str(file) for file in self.files], columns)
        return columns

    def _bounds(self, split: str, lines: int) -> tuple[int, int]:
        cuts = [0, lines * 90 // 100, lines * 95 // 100, lines]
        if not cuts[0] < cuts[1] < cuts[2] < cuts[3]:
            raise DataError(
                f"{self.files[0]} has {count_noun(lines, 'line')}, too few to be split into train, valid and test: "
                "give longer files, or a folder with a file for each split and language"
            )
        index = SPLITS.index(split)
        return cuts[index], cuts[index + 1]


class Generated(Dataset):
    """Rows that are generated in memory; no value contains a newline."""

    @abstractmethod
    def generate(self, split: str) -> Sequence[tuple[str, ...]]:
        """Rows of one split, one value per column."""

    def read(self, split: str, column: str | None = None) -> bytes:
        index = self.column_index(column)
        return encode_lines(row[index] for row in self.generate(self.check_split(split)))


class Drawn(Generated):
    """Rows that are drawn at random, none twice; a seed gives the same rows everywhere."""

    def __init__(self, sizes: tuple[int, int, int], seed: int) -> None:
        """`sizes` are the numbers of rows of train, valid and test."""
        self.seed = seed
        self.sizes = dict(zip(SPLITS, sizes, strict=True))

    def generate(self, split: str) -> Sequence[tuple[str, ...]]:
        return self._rows[split]

    @cached_property
    def _rows(self) -> dict[str, list[tuple[str, ...]]]:
        # Seeding by a string and drawing doubles is guaranteed to stay the same in every version of Python.
        rows = self.draw(random.Random(f"{self.name}/{self.seed}").random)
        return {split: [next(rows) for _ in range(size)] for split, size in self.sizes.items()}

    @abstractmethod
    def draw(self, uniform: Callable[[], float]) -> Iterator[tuple[str, ...]]:
        """Distinct rows without end, as long as there are new ones; `uniform` draws from [0, 1)."""


class InMemory(Generated):
    """Rows given as lists, by split: a tuple with a value for each column, or the text alone where that is all."""

    def __init__(
        self, name: str, rows: Mapping[str, Sequence[tuple[str, ...] | str]], columns: tuple[str, ...] = TEXT_COLUMNS
    ) -> None:
        self.name, self.columns = name, columns
        self._rows = {split: [self._check_row(split, *row) for row in enumerate(rows[split], 1)] for split in rows}
        self.splits = tuple(split for split in SPLITS if split in rows)

    def _check_row(self, split: str, number: int, row: tuple[str, ...] | str) -> tuple[str, ...]:
        if isinstance(row, str) and len(self.columns) == 1:
            return (row,)
        if isinstance(row, str) or len(row) != len(self.columns):
            given = f"is {row[:40]!r}" if isinstance(row, str) else f"has {count_noun(len(row), 'value')}"
            wanted = f"it must be a tuple with {', '.join(self.columns)}"
            raise DataError(f"row {number} of {split} of {self.name!r} {given}: {wanted}")
        return row

    def generate(self, split: str) -> Sequence[tuple[str, ...]]:
        return self._rows[split]


def name_files(files: Iterable[File]) -> str:
    """Files as a message names them: 'a.en and a.de'."""
    return " and ".join(map(str, files))


def combine_digests(digests: Sequence[str]) -> str:
    """One digest for all columns; that of the column where there is one."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(json.dumps(list(digests)).encode()).hexdigest()


def encode_lines(lines: Iterable[str]) -> bytes:
    """Lines as the bytes of a file, which digests are made from."""
    return "".join(f"{line}\n" for line in lines).encode()


def check_line_counts(where: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """Raise where columns cannot be aligned."""
    for name, column in zip(where, columns, strict=True):
        if len(column) != len(columns[0]):
            raise line_count_error(where[0], len(columns[0]), name, len(column))


def line_count_error(first: str, lines: int, second: str, others: int) -> DataError:
    """The error for two files that should have as many lines."""
    return DataError(
        f"{first} has {count_noun(lines, 'line')} and {second} has {others:,}: they must correspond line by line"
    )


def check_row(row: Sequence[str], number: int, where: Sequence[str]) -> tuple[str, ...]:
    """The cells of a line without the white space around them; () where all are empty, an error where some are."""
    cells = tuple(cell.strip() for cell in row)
    if all(cells):
        return cells
    if any(cells):
        empty = where[cells.index("")]
        full = next(part for part, cell in zip(where, cells, strict=True) if cell)
        raise DataError(f"line {number} of {empty} is empty, but line {number} of {full} is not")
    return ()


def cut_points(raw: bytes | mmap.mmap, where: str) -> tuple[int, int]:
    """Where valid and test begin: after the first line end past 90 % and 95 % of the bytes.

    Where a line is so long that a split would be empty, the text is cut at white space, else between two characters.
    """
    size = len(raw)
    valid, test = size * 90 // 100, size * 95 // 100
    for ends in (b"\n", b" \t\n"):
        cuts = _end_of_text(raw, valid, ends), _end_of_text(raw, test, ends)
        if not any(is_blank(raw, *part) for part in ((0, cuts[0]), cuts, (cuts[1], size))):
            return cuts
    cuts = _end_of_character(raw, valid), _end_of_character(raw, test)
    if 0 < cuts[0] < cuts[1] < size and not is_blank(raw, cuts[1], size):
        return cuts
    raise DataError(
        f"{where} has {count_noun(size, 'byte')}, too few to be split into train, valid and test: "
        "give a longer text, or a folder with a file for each split"
    )


def is_blank(raw: bytes | mmap.mmap, start: int, stop: int) -> bool:
    """Whether bytes are nothing but white space."""
    return not any(raw[place : min(place + PIECE, stop)].strip() for place in range(start, stop, PIECE))


def _end_of_text(raw: bytes | mmap.mmap, start: int, ends: bytes) -> int:
    found = [index for index in (raw.find(bytes([end]), start) for end in ends) if index >= 0]
    return min(found) + 1 if found else len(raw)


def _end_of_character(raw: bytes | mmap.mmap, start: int) -> int:
    # A byte 10xxxxxx continues a UTF-8 character, which starts at most three bytes earlier.
    for index in range(start, min(start + 4, len(raw))):
        if raw[index] & 0xC0 != 0x80:
            return index
    return start


@dataclass(frozen=True)
class Overlap:
    """How much of test is also in train, word for word."""

    total: int
    """Lines, examples or rows of test, without blank ones."""
    in_train: int
    """How many of them are also in train."""

    def to_plain(self, unit: str, split: str = TEST) -> dict[str, Any]:
        """As JSON. `unit` is what was counted, in the plural; a split in the place of test is named."""
        other = {} if split == TEST else {"split": split}
        return {"unit": unit, "test": self.total, "in_train": self.in_train, **other}


LINE_SEPARATOR, EXAMPLE_SEPARATOR = rb"\n", rb"\n\s*\n"


def count_overlap(
    dataset: Dataset, separator: bytes = LINE_SEPARATOR, trained_on: Dataset | None = None, split: str = TEST
) -> Overlap:
    """Lines (or examples, by the separator) of test that are also in train, of the same data set or of another one. It
    reads the test split, or the one that is given in its place.

    Bytes are compared, so it also works where they are not UTF-8.
    """
    test = Counter(split_units(dataset.read(split), separator))
    shared = {part for part in split_units((trained_on or dataset).read(TRAIN), separator) if part in test}
    return Overlap(test.total(), sum(test[part] for part in shared))


def count_row_overlap(dataset: Dataset, trained: Iterable[tuple[Any, ...]], split: str = TEST) -> Overlap:
    """Rows of test that are among those trained on. It reads the test split, or the one that is given in its place."""
    test = Counter(dataset.rows(split).values)
    shared = {row for row in trained if row in test}
    return Overlap(test.total(), sum(test[row] for row in shared))


def split_units(raw: bytes, separator: bytes) -> Iterator[bytes]:
    """Lines or examples of a text, without blank ones and without the white space around them."""
    plain = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw
    return filter(None, (part.strip() for part in re.split(separator, plain)))
