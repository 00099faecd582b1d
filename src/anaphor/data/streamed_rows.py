"""Rows of several columns that are larger than memory: read again wherever they are needed, tokenized once in parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.data.dataset import TEST, TRAIN, Dataset, Overlap
from anaphor.data.parallel_parts import map_parts
from anaphor.data.part_worker import Answer
from anaphor.data.shards import Manifest
from anaphor.data.streamed_text import compare_digests, make_shards
from anaphor.data.text import PART, Part
from anaphor.progress_listener import report_progress

ROWS = 4096
"""Rows that one process tokenizes at a time; fewer where they are long."""
TEXTS = 64
"""Texts that are one piece of the text that a tokenizer is trained on."""


def read_rows(dataset: Dataset, split: str) -> Iterator[tuple[str, ...]]:
    """The rows of a split that are not empty, read from the files now."""
    return (cells for _, cells in dataset.stream_rows(split) if cells)


class StreamedRows(Sequence[tuple[Any, ...]]):
    """The first rows of a split, read from the files whenever they are asked for."""

    def __init__(self, dataset: Dataset, split: str, count: int) -> None:
        self._dataset, self._split, self._count = dataset, split, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return islice(read_rows(self._dataset, self._split), self._count)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            wanted = range(self._count)[place]
            if not wanted:
                return []
            found = dict(zip(range(max(wanted) + 1), self, strict=False))
            return [found[index] for index in wanted]
        return next(islice(self, range(self._count)[place], None))


class ColumnText(Dataset):
    """The texts of some columns of train as one text, with a blank line after each, to train a tokenizer on."""

    splits = (TRAIN,)

    def __init__(self, dataset: Dataset, columns: Sequence[str]) -> None:
        self._dataset, self._columns = dataset, tuple(columns)
        self.name = " and ".join(dataset.where(TRAIN, column) for column in columns)

    def read(self, split: str, column: str | None = None) -> bytes:
        return b"".join(self.pieces(split))

    def pieces(self, split: str, column: str | None = None, start: int = 0) -> Iterator[bytes]:
        assert not start, "a tokenizer reads all of it"
        for name in self._columns:
            place = self._dataset.columns.index(name)
            texts = (cells[place].replace("\n", " ") for cells in read_rows(self._dataset, TRAIN))
            while some := "".join(f"{text}\n\n" for text in islice(texts, TEXTS)):
                yield some.encode()

    @property
    def size(self) -> int:
        return self._dataset.split_size(TRAIN)

    def digest(self, split: str) -> str:
        digests = [self._dataset.column_digest(TRAIN, column) for column in self._columns]
        return hashlib.sha256(json.dumps(["sentences", *digests]).encode()).hexdigest()

    def where(self, split: str, column: str | None = None) -> str:
        return self.name


def store_rows(
    dataset: Dataset, split: str, key: Mapping[str, Any], kinds: Mapping[str, str], setup: Mapping[str, Any]
) -> list[Manifest]:
    """The arrays that processes make of the rows of a split, in shards; made now where they are not there.

    Args:
        dataset: The data.
        split: The split that is read.
        key: What the arrays depend on beside the rows.
        kinds: The name and the type of each array.
        setup: What the processes do.
    """

    def make(start: int) -> Iterator[tuple[Part, Answer]]:
        return map_parts(setup, (part for part in row_parts(dataset, split, "tokenizing") if part.offset >= start))

    return make_shards(dataset, split, {"text": dataset.digest(split), **key}, kinds, make)


def row_parts(dataset: Dataset, split: str, what: str, most: int | None = None) -> Iterator[Part]:
    """Some rows each, with their line numbers and the number of empty lines before them, as JSON. `what` is done with
    them, for the report of progress; at most the first `most` rows."""
    total, last = dataset.split_size(split), dataset.line_offset(split)
    held: list[tuple[int, tuple[str, ...]]] = []
    offset = size = number = count = 0

    def cut(end: int, *, is_last: bool) -> Part:
        lines = [line for line, _ in held]
        blank = end - last - len(lines)
        plain = json.dumps([lines, [list(cells) for _, cells in held], blank], ensure_ascii=False)
        return Part(plain.encode(), offset, is_last=is_last)

    for number, cells in dataset.stream_rows(split):
        if not cells:
            continue
        if most is not None and count == most:
            break
        if len(held) == ROWS or size >= PART:
            part = cut(held[-1][0], is_last=False)
            yield part
            offset, last, held, size = offset + len(part.raw), held[-1][0], [], 0
            report_progress(f"{what} {split}", min(offset, total), total)
        held.append((number, cells))
        count, size = count + 1, size + sum(map(len, cells))
    if held:
        yield cut(number, is_last=True)
        report_progress(f"{what} {split}", total, total)


def count_streamed_row_overlap(
    dataset: Dataset, trained_on: Dataset, split: str = TEST, most: int | None = None
) -> Overlap:
    """The same as `count_row_overlap` for rows that are larger than memory: they are compared by digests of 64 bits. At
    most the first `most` rows of train were trained on."""

    def digests(rows: Dataset, name: str, most: int | None = None) -> Iterator[NDArray[np.int64]]:
        answers = map_parts({"work": "row digests"}, row_parts(rows, name, "comparing", most))
        return (answer.arrays[0] for _, answer in answers)

    return compare_digests(digests(dataset, split), digests(trained_on, TRAIN, most))
