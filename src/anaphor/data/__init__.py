"""Data sets with named columns, tokenizers, and batches. `DATASETS` and `TOKENIZERS` name what there is."""

from typing import TYPE_CHECKING, Any

from anaphor.data.corpus import (
    Corpus,
    EncodedPairs,
    PairTokenizers,
    build_tokenizer,
    encode_pair_split,
    encode_pairs,
    encode_split,
    joint_tokenizers,
    separate_tokenizers,
)
from anaphor.data.dataset import Dataset, Generated, InMemory, Rows, count_overlap, count_row_overlap
from anaphor.data.datasets import NamedDataset, find_dataset, open_dataset
from anaphor.data.vocab import TOKENIZERS, Tokenizer, tokenizer_from_plain
from anaphor.registry import DATASETS

if TYPE_CHECKING:
    from anaphor.data.batches import (
        Batch,
        EvaluationStream,
        PaddedBatches,
        Stream,
        batch_examples,
        batch_pairs,
        batchify,
    )

__all__ = [
    "DATASETS",
    "TOKENIZERS",
    "Batch",
    "Corpus",
    "Dataset",
    "EncodedPairs",
    "EvaluationStream",
    "Generated",
    "InMemory",
    "NamedDataset",
    "PaddedBatches",
    "PairTokenizers",
    "Rows",
    "Stream",
    "Tokenizer",
    "batch_examples",
    "batch_pairs",
    "batchify",
    "build_tokenizer",
    "count_overlap",
    "count_row_overlap",
    "encode_pair_split",
    "encode_pairs",
    "encode_split",
    "find_dataset",
    "joint_tokenizers",
    "open_dataset",
    "separate_tokenizers",
    "tokenizer_from_plain",
]


def __getattr__(name: str) -> Any:
    # Batches are tensors; `anaphor data` has none and need not import torch.
    if name in __all__:
        from anaphor.data import batches

        return getattr(batches, name)
    raise AttributeError(f"module 'anaphor.data' has no attribute {name!r}")
