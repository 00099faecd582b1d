"""Labeled texts that are larger than memory: tokenized once into shards, and read from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor.data.buckets import Indices
from anaphor.data.dataset import Dataset
from anaphor.data.labeled_text import LabeledTexts
from anaphor.data.part_worker import token_type
from anaphor.data.shards import ShardedArray
from anaphor.data.streamed_rows import store_rows
from anaphor.data.tokenizer import Tokenizer
from anaphor.registry import TOKENIZERS

PRETRAINED = "pretrained"


def is_stored(dataset: Dataset, split: str, kind: str) -> bool:
    """Whether the texts of a split are larger than what is read into memory. They come from files, and their tokenizer
    is not a user's own, whose code may change."""
    is_known = kind == PRETRAINED or TOKENIZERS.is_builtin(kind)
    return is_known and isinstance(dataset, LabeledTexts) and dataset.is_large(split)


@dataclass(frozen=True)
class StoredTexts:
    """Texts of a split on the disk, as a model reads them."""

    tokens: ShardedArray
    sizes: Indices
    """[P]: number of tokens of each."""
    labels: Indices
    """[P]: index of the class of each."""
    is_truncated: NDArray[np.bool_]
    """[P]: whether it had more tokens."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        ends = np.cumsum(self.sizes)
        return (self.tokens.read(end - size, end) for end, size in zip(ends.tolist(), self.sizes.tolist(), strict=True))

    def first(self, count: int | None) -> StoredTexts:
        """The first texts only."""
        return StoredTexts(self.tokens, self.sizes[:count], self.labels[:count], self.is_truncated[:count])


def encode_stored_texts(
    dataset: Dataset, split: str, tokenizer: Tokenizer, classes: Sequence[str], length: int
) -> StoredTexts:
    """The texts of one split in shards, made now where they are not there; those with more than `length` tokens are
    truncated. A label must be one of the classes."""
    split = dataset.check_split(split)
    made_with: dict[str, Any] = {"classes": list(classes), "length": length}
    setup = {"work": "texts", "tokenizer": tokenizer.to_plain(), "where": dataset.where(split), **made_with}
    kinds = {"tokens": token_type(tokenizer), "sizes": "<u4", "labels": "<u4", "truncated": "<u1"}
    manifests = store_rows(dataset, split, {"texts": tokenizer.digest(), **made_with}, kinds, setup)
    tokens, *others = (ShardedArray(manifest) for manifest in manifests)
    sizes, labels, cut = (np.asarray(numbers) for numbers in others)
    return StoredTexts(tokens, sizes.astype(np.int64), labels.astype(np.int64), cut.astype(bool))
