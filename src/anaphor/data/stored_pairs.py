"""Sentence pairs that are larger than memory: read line by line, tokenized once into shards, and read from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.data.buckets import Indices
from anaphor.data.dataset import TRAIN, Dataset, check_row, line_count_error
from anaphor.data.files import in_memory_bytes
from anaphor.data.parallel_parts import map_parts
from anaphor.data.part_worker import Answer, token_type
from anaphor.data.shards import ShardedArray
from anaphor.data.streamed_text import PART, make_shards
from anaphor.data.text import ADVICE_FOR_TEXT, Part, cut_after_line, split_lines, split_parts
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import DataError
from anaphor.progress_listener import report_progress
from anaphor.registry import TOKENIZERS

ROWS = 4096
"""Pairs that one process tokenizes at a time."""


def is_large_split(dataset: Dataset, split: str, kind: str) -> bool:
    """Whether the pairs of a split are larger than what is read into memory, and its tokenizer is one of ours."""
    return dataset.split_size(split) > in_memory_bytes() and TOKENIZERS.is_builtin(kind)


def stream_lines(dataset: Dataset, split: str, column: str) -> Iterator[str]:
    """The lines of a column, a part of its text at a time."""
    where = dataset.where(split, column)
    for part in split_parts(dataset.pieces(split, column), cut_after_line, PART):
        yield from split_lines(part.decode(where, advice=ADVICE_FOR_TEXT))


def stream_rows(dataset: Dataset, split: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each row that is not empty with its line number, as `Dataset.rows` has them."""
    split = dataset.check_split(split)
    where = tuple(dataset.where(split, column) for column in dataset.columns)
    columns = [stream_lines(dataset, split, column) for column in dataset.columns]
    for number, row in enumerate(zip_longest(*columns), 1):
        if None in row:
            counts = [number - (cell is None) + sum(1 for _ in rest) for cell, rest in zip(row, columns, strict=True)]
            other = next(index for index, count in enumerate(counts) if count != counts[0])
            raise line_count_error(where[0], counts[0], where[other], counts[other])
        if cells := check_row(row, number, where):
            yield number, cells


class ColumnText(Dataset):
    """The sentences of some columns of train as one text, with a blank line after each, to train a tokenizer on."""

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
            rows = stream_rows(self._dataset, TRAIN)
            while some := list(islice(rows, ROWS)):
                yield "".join(f"{cells[place]}\n\n" for _, cells in some).encode()

    @property
    def size(self) -> int:
        return self._dataset.split_size(TRAIN)

    def digest(self, split: str) -> str:
        digests = [self._dataset.column_digest(TRAIN, column) for column in self._columns]
        return hashlib.sha256(json.dumps(["sentences", *digests]).encode()).hexdigest()

    def where(self, split: str, column: str | None = None) -> str:
        return self.name


@dataclass(frozen=True)
class StoredSentences:
    """Sentences of one language on the disk. Those of the targets have a boundary before and after each."""

    tokens: ShardedArray
    starts: Indices
    """[P]: where each begins, with its boundary."""
    sizes: Indices
    """[P]: number of tokens of each, without boundaries."""
    unknowns: Indices
    """[P]: how many of them are unknown."""
    tokenizer: Tokenizer
    where: str

    def __getitem__(self, index: int) -> NDArray[Any]:
        """One sentence, with its boundaries."""
        end = int(self.starts[index + 1]) if index + 1 < len(self.starts) else len(self.tokens)
        return self.tokens.read(int(self.starts[index]), end)

    def count_tokens(self) -> tuple[int, int]:
        """All tokens, and how many of them are unknown."""
        return int(self.sizes.sum()), int(self.unknowns.sum())

    def select(self, keep: NDArray[np.bool_]) -> StoredSentences:
        """The sentences where `keep` is true."""
        return replace(self, starts=self.starts[keep], sizes=self.sizes[keep], unknowns=self.unknowns[keep])


@dataclass(frozen=True)
class StoredPairArrays:
    """What `EncodedPairs` are made of."""

    source: StoredSentences
    target: StoredSentences
    lines: Indices
    target_bytes: Indices
    digest: str
    blank: int


def encode_stored_pairs(dataset: Dataset, split: str, source: Tokenizer, target: Tokenizer) -> StoredPairArrays:
    """One split of sentence pairs as token ids in shards, made now where they are not there."""
    split = dataset.check_split(split)
    where = [dataset.where(split, column) for column in dataset.columns]
    key = {"text": dataset.digest(split), "pairs": [source.digest(), target.digest()]}
    setup = {"work": "pairs", "tokenizers": [source.to_plain(), target.to_plain()], "where": where}

    def make(start: int) -> Iterator[tuple[Part, Answer]]:
        return map_parts(setup, (part for part in _pair_parts(dataset, split) if part.offset >= start))

    counts = ("source-sizes", "source-unknowns", "target-sizes", "target-unknowns", "bytes", "lines")
    kinds = {"source": token_type(source), "target": token_type(target), **dict.fromkeys(counts, "<i8")}
    manifests = make_shards(dataset, split, key, kinds, make)
    arrays = {name: ShardedArray(manifest) for name, manifest in zip(kinds, manifests, strict=True)}
    numbers = {name: np.asarray(arrays[name]) for name in counts}
    if not len(numbers["lines"]):
        raise DataError(f"{' and '.join(where)} hold no sentences")
    sides = []
    for name, tokenizer, file, boundaries in (("source", source, where[0], 0), ("target", target, where[1], 2)):
        sizes = numbers[f"{name}-sizes"]
        held = sizes + boundaries
        starts = np.cumsum(held) - held
        sides.append(StoredSentences(arrays[name], starts, sizes, numbers[f"{name}-unknowns"], tokenizer, file))
    blank, digest = manifests[0].fact("blank"), dataset.digest(split)
    return StoredPairArrays(sides[0], sides[1], numbers["lines"], numbers["bytes"], digest, blank)


def _pair_parts(dataset: Dataset, split: str) -> Iterator[Part]:
    """Some pairs each, with their line numbers and the number of blank lines before them, as JSON."""
    rows = stream_rows(dataset, split)
    some, offset, last, total = list(islice(rows, ROWS)), 0, 0, dataset.split_size(split)
    while some:
        following = list(islice(rows, ROWS))
        lines = [number for number, _ in some]
        blank = lines[-1] - last - len(lines)
        if not following:
            blank += sum(1 for _ in stream_lines(dataset, split, dataset.columns[0])) - lines[-1]
        raw = json.dumps([lines, [list(cells) for _, cells in some], blank], ensure_ascii=False).encode()
        yield Part(raw, offset, is_last=not following)
        offset, last, some = offset + len(raw), lines[-1], following
        report_progress(f"tokenizing {split}", min(offset, total), total)


class StreamedPairs(Sequence[tuple[str, str]]):
    """The texts of pairs, read from the files whenever they are asked for."""

    def __init__(self, dataset: Dataset, split: str, count: int) -> None:
        self._dataset, self._split, self._count = dataset, split, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((cells[0], cells[1]) for _, cells in stream_rows(self._dataset, self._split))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            wanted = range(self._count)[place]
            if not wanted:
                return []
            found = dict(zip(range(max(wanted) + 1), self, strict=False))
            return [found[index] for index in wanted]
        return next(islice(self, range(self._count)[place], None))
