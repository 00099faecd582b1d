"""Text and sentence pairs from anywhere, as numbers, in batches.

`SOURCES`, `PAIR_SOURCES` and `TOKENIZERS` name what there is.
"""

from typing import TYPE_CHECKING, Any

from anaphor.data.corpus import Corpus, build_tokenizer, encoded
from anaphor.data.pair_corpus import (
    EncodedPairs,
    PairTokenizers,
    encode_pairs,
    encoded_pairs,
    joint_tokenizers,
    separate_tokenizers,
)
from anaphor.data.pair_source import PairSource, pair_overlap
from anaphor.data.pair_sources import PAIR_SOURCES, open_pairs
from anaphor.data.sources import SOURCES, Source, open_source, overlap
from anaphor.data.vocab import TOKENIZERS, Tokenizer, tokenizer_from_plain

if TYPE_CHECKING:
    from anaphor.data.pair_batches import PairBatch, PairBatches
    from anaphor.data.text import Batch, Complete, Padded, Stream, columns, dialogues, offset_of

__all__ = [
    "PAIR_SOURCES",
    "SOURCES",
    "TOKENIZERS",
    "Batch",
    "Complete",
    "Corpus",
    "EncodedPairs",
    "Padded",
    "PairBatch",
    "PairBatches",
    "PairSource",
    "PairTokenizers",
    "Source",
    "Stream",
    "Tokenizer",
    "build_tokenizer",
    "columns",
    "dialogues",
    "encode_pairs",
    "encoded",
    "encoded_pairs",
    "joint_tokenizers",
    "offset_of",
    "open_pairs",
    "open_source",
    "overlap",
    "pair_overlap",
    "separate_tokenizers",
    "tokenizer_from_plain",
]


def __getattr__(name: str) -> Any:
    # Batches are tensors; `anaphor data` has none and need not wait for torch.
    if name in __all__:
        from anaphor.data import pair_batches, text

        return getattr(pair_batches if name.startswith("Pair") else text, name)
    raise AttributeError(f"module 'anaphor.data' has no attribute {name!r}")
