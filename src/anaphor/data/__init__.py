"""Data sets with named columns, tokenizers, and batches. Only batches and `augment` import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anaphor.data.dataset import Dataset, Generated, InMemory
    from anaphor.data.datasets import NamedDataset, find_dataset, load_images, open_dataset
    from anaphor.data.images import ImageDataset, InMemoryImages
    from anaphor.data.stream_order import StreamOrder
    from anaphor.data.tokenizer import Tokenizer, tokenizer_from_plain
    from anaphor.registry import DATASETS, TOKENIZERS

__all__ = [
    "DATASETS",
    "TOKENIZERS",
    "Dataset",
    "Generated",
    "ImageDataset",
    "InMemory",
    "InMemoryImages",
    "NamedDataset",
    "StreamOrder",
    "Tokenizer",
    "find_dataset",
    "load_images",
    "open_dataset",
    "tokenizer_from_plain",
]
# Imported on first use, so that settings of data are there without NumPy.
_HOME = {
    **dict.fromkeys(("Dataset", "Generated", "InMemory"), "data.dataset"),
    **dict.fromkeys(("NamedDataset", "find_dataset", "load_images", "open_dataset"), "data.datasets"),
    **dict.fromkeys(("ImageDataset", "InMemoryImages"), "data.images"),
    **dict.fromkeys(("Tokenizer", "tokenizer_from_plain"), "data.tokenizer"),
    "StreamOrder": "data.stream_order",
    **dict.fromkeys(("DATASETS", "TOKENIZERS"), "registry"),
}


if not TYPE_CHECKING:  # which would take every name for known

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'anaphor.data' has no attribute {name!r}")
        return getattr(import_module(f"anaphor.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
