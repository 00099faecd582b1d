"""Sentence pairs that are larger than memory: read line by line, tokenized once into shards, and read from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.data.buckets import Indices
from anaphor.data.dataset import Dataset
from anaphor.data.files import in_memory_bytes
from anaphor.data.part_worker import token_type
from anaphor.data.shards import ShardedArray
from anaphor.data.streamed_rows import store_rows
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import DataError
from anaphor.registry import TOKENIZERS


def is_large_split(dataset: Dataset, split: str, kind: str) -> bool:
    """Whether the pairs of a split are larger than what is read into memory, and its tokenizer is one of ours."""
    return dataset.split_size(split) > in_memory_bytes() and TOKENIZERS.is_builtin(kind)


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
    key = {"pairs": [source.digest(), target.digest()]}
    setup = {"work": "pairs", "tokenizers": [source.to_plain(), target.to_plain()], "where": where}
    counts = ("source-sizes", "source-unknowns", "target-sizes", "target-unknowns", "bytes", "lines")
    kinds = {"source": token_type(source), "target": token_type(target), **dict.fromkeys(counts, "<i8")}
    manifests = store_rows(dataset, split, key, kinds, setup)
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
