"""Data sets with named columns, tokenizers, and batches. Only `batches` and `augment` import torch."""

from anaphor.data.dataset import Dataset, Generated, InMemory
from anaphor.data.datasets import NamedDataset, find_dataset, load_images, open_dataset
from anaphor.data.images import ImageDataset, InMemoryImages
from anaphor.data.tokenizer import TOKENIZERS, Tokenizer, tokenizer_from_plain
from anaphor.registry import DATASETS

__all__ = [
    "DATASETS",
    "TOKENIZERS",
    "Dataset",
    "Generated",
    "ImageDataset",
    "InMemory",
    "InMemoryImages",
    "NamedDataset",
    "Tokenizer",
    "find_dataset",
    "load_images",
    "open_dataset",
    "tokenizer_from_plain",
]
