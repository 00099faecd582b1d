"""Texts that are larger than memory: tokenized once, in parallel, into shards of the cache, and read from there.

Nothing here holds a text: its bytes come in pieces, are cut where its tokenizer says that nothing changes, and each
part is tokenized in one of several processes. `corpus` does the same in memory, for texts that fit into it.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.config import look_up
from anaphor.data.bpe import BPE
from anaphor.data.dataset import LINE_SEPARATOR, TRAIN, Dataset, Overlap
from anaphor.data.files import in_memory_bytes
from anaphor.data.parallel_parts import map_parts
from anaphor.data.part_worker import Answer, token_type
from anaphor.data.shards import Manifest, ShardedArray, locked_folder, shards_folder
from anaphor.data.text import PART, Part, cut_after_blank_line, cut_after_line, split_parts
from anaphor.data.tokenizer import ListedTokenizer, Tokenizer
from anaphor.errors import DataError, print_warning
from anaphor.progress_listener import report_progress
from anaphor.registry import TOKENIZERS

SHARD = 1 << 25
"""Bytes of text in one shard: what a process that is killed has to do again."""


def is_large(dataset: Dataset) -> bool:
    """Whether data have more bytes than are read into memory."""
    return dataset.size > in_memory_bytes()


def is_streamed(dataset: Dataset, kind: type[Tokenizer]) -> bool:
    """Whether a text is read in pieces: it is large, and the tokenizer can be given parts of it."""
    return is_large(dataset) and kind.can_encode_parts


def can_stream(dataset: Dataset, kind: str) -> bool:
    """The same by the name of a tokenizer. One of a user's own is given whole texts."""
    return TOKENIZERS.is_builtin(kind) and is_streamed(dataset, look_up(TOKENIZERS, kind, "tokenizer"))


def read_parts(
    dataset: Dataset, split: str, find_cut: Callable[[bytes], int], what: str, start: int = 0
) -> Iterator[Part]:
    """The parts of a split from a byte on, while progress is reported."""
    total = dataset.split_size(split)
    for part in split_parts(dataset.pieces(split, start=start), find_cut, PART, start):
        yield part
        report_progress(f"{what} {split}", min(part.offset + len(part.raw), total), total)


def train_streamed(dataset: Dataset, kind: str, size: int | None = None) -> Tokenizer:
    """A tokenizer of the train split, as `Tokenizer.train_bytes` trains it on the whole text."""
    tokenizer_class: type[Tokenizer] = look_up(TOKENIZERS, kind, "tokenizer")
    parts = read_parts(dataset, TRAIN, tokenizer_class.find_cut, "reading")
    where, offset = dataset.where(TRAIN), dataset.byte_offset(TRAIN)
    if issubclass(tokenizer_class, BPE):
        return tokenizer_class.train_parts((part.decode(where, offset) for part in parts), size)
    if issubclass(tokenizer_class, ListedTokenizer):
        setup = {"work": "count", "kind": kind, "where": where, "offset": offset}
        counts: Counter[str] = Counter()
        for _, answer in map_parts(setup, parts):
            names, numbers = answer.arrays
            counts.update(dict(zip(json.loads(names.tobytes()), numbers.tolist(), strict=True)))
        return tokenizer_class.from_counts(counts, size)
    return tokenizer_class.train("", size)  # bytes


def encode_streamed(dataset: Dataset, split: str, tokenizer: Tokenizer) -> Manifest:
    """The tokens of a split in shards, made now where they are not there."""
    key = {"text": dataset.digest(split), "tokenizer": tokenizer.digest()}
    setup = _setup(dataset, split, tokenizer)

    def make(start: int) -> Iterator[tuple[Part, Answer]]:
        return map_parts(setup, read_parts(dataset, split, tokenizer.find_cut, "tokenizing", start))

    (manifest,) = make_shards(dataset, split, key, {"tokens": token_type(tokenizer)}, make)
    if not manifest.count:
        raise DataError(f"{dataset.where(split)} holds no {tokenizer.kind} tokens")
    return manifest


@dataclass(frozen=True)
class StoredExamples:
    """Examples of a split, each after a boundary. Their tokens are on the disk."""

    tokens: ShardedArray
    starts: NDArray[np.int64]
    """Where each begins."""
    lengths: NDArray[np.int64]
    """Tokens of each, with the boundary."""
    bytes: NDArray[np.int64]
    """Size of each as UTF-8."""

    def select(self, chosen: Any) -> StoredExamples:
        """Some of them, by a mask or a slice."""
        return StoredExamples(self.tokens, self.starts[chosen], self.lengths[chosen], self.bytes[chosen])


def encode_streamed_examples(dataset: Dataset, split: str, tokenizer: Tokenizer) -> StoredExamples:
    """The examples of a split, which blank lines separate."""
    key = {"text": dataset.digest(split), "tokenizer": tokenizer.digest(), "units": "examples"}
    setup = {**_setup(dataset, split, tokenizer), "work": "examples"}

    def make(start: int) -> Iterator[tuple[Part, Answer]]:
        return map_parts(setup, read_parts(dataset, split, cut_after_blank_line, "tokenizing", start))

    kinds = {"tokens": token_type(tokenizer), "lengths": "<i8", "bytes": "<i8"}
    tokens, lengths, sizes = (ShardedArray(found) for found in make_shards(dataset, split, key, kinds, make))
    counts = np.asarray(lengths)
    return StoredExamples(tokens, np.cumsum(counts) - counts, counts, np.asarray(sizes))


def _setup(dataset: Dataset, split: str, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "work": "encode",
        "tokenizer": tokenizer.to_plain(),
        "where": dataset.where(split),
        "offset": dataset.byte_offset(split),
    }


def make_shards(
    dataset: Dataset,
    split: str,
    key: Mapping[str, Any],
    kinds: Mapping[str, str],
    make: Callable[[int], Iterable[tuple[Part, Answer]]],
) -> list[Manifest]:
    """The manifests of arrays that are made from a split together.

    Args:
        dataset: The data.
        split: The split that is read.
        key: What the arrays depend on, in plain JSON.
        kinds: The name and the type of each array that an answer has.
        make: Answers for the parts of the split from a byte on.
    """
    folder = shards_folder(key)

    def read() -> list[Manifest]:
        return [Manifest(folder / name, kind, dict(key)) for name, kind in kinds.items()]

    manifests = read()
    if all(manifest.is_complete for manifest in manifests):
        return manifests
    with locked_folder(folder):
        manifests = read()  # another process may have made them
        if not all(manifest.is_complete for manifest in manifests):
            _write_shards(dataset, split, folder, manifests, make)
            if dataset.digest(split) != key["text"]:
                shutil.rmtree(folder)
                raise DataError(f"{dataset.where(split)} was edited while it was read: start again")
    return manifests


def _write_shards(
    dataset: Dataset,
    split: str,
    folder: Path,
    manifests: list[Manifest],
    make: Callable[[int], Iterable[tuple[Part, Answer]]],
) -> None:
    done = min(len(manifest.shards) for manifest in manifests)
    for manifest in manifests:  # a process that was killed may have written one more of the first ones
        manifest.keep(done)
    start = manifests[0].end
    resumed = f", from byte {start:,} on" if start else ""
    size = dataset.split_size(split)
    print_warning(f"{dataset.where(split)}: {split} is prepared once{resumed}: {size:,} bytes, into {folder}")
    held: list[Answer] = []
    for part, answer in make(start):
        held.append(answer)
        end = part.offset + len(part.raw)
        if end - start >= SHARD or part.is_last:
            _add_shard(manifests, held, end)
            held, start = [], end
    for manifest in manifests:
        manifest.complete()


def _add_shard(manifests: list[Manifest], answers: list[Answer], end: int) -> None:
    facts = sum((Counter(answer.facts) for answer in answers), Counter[str]())
    for number, manifest in enumerate(manifests):
        arrays: list[NDArray[Any]] = [answer.arrays[number] for answer in answers]
        manifest.add(np.concatenate(arrays), end, dict(facts))


def count_streamed_overlap(dataset: Dataset, separator: bytes, trained_on: Dataset, split: str) -> Overlap:
    """The same as `count_overlap` for texts that are larger than memory: lines, or examples, are compared by digests of
    64 bits."""
    setup = {"work": "digests", "separator": separator.decode()}
    find_cut = cut_after_line if separator == LINE_SEPARATOR else cut_after_blank_line

    def digests(text: Dataset, name: str) -> Iterator[NDArray[np.int64]]:
        parts = read_parts(text, name, find_cut, "comparing")
        return (answer.arrays[0] for _, answer in map_parts(setup, parts))

    return compare_digests(digests(dataset, split), digests(trained_on, TRAIN))


def compare_digests(test: Iterable[NDArray[np.int64]], train: Iterable[NDArray[np.int64]]) -> Overlap:
    """How many of the digests of test are also among those of train. Both come in parts; those of test are kept."""
    digests, counts = np.unique(np.concatenate([*test]), return_counts=True)
    is_shared = np.zeros(len(digests), bool)
    for found in train:
        is_shared |= np.isin(digests, found)
    return Overlap(int(counts.sum()), int(counts[is_shared].sum()))
