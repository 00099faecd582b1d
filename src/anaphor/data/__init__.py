"""Data sets with named columns, tokenizers, and batches. Nothing here imports torch but `batches`."""

from anaphor.data.dataset import Dataset, Generated, InMemory
from anaphor.data.datasets import NamedDataset, find_dataset, open_dataset
from anaphor.data.tokenizer import TOKENIZERS, Tokenizer, tokenizer_from_plain
from anaphor.registry import DATASETS

__all__ = [
    "DATASETS",
    "TOKENIZERS",
    "Dataset",
    "Generated",
    "InMemory",
    "NamedDataset",
    "Tokenizer",
    "find_dataset",
    "open_dataset",
    "tokenizer_from_plain",
]
