"""Text from anywhere, as numbers, in batches. `SOURCES` and `TOKENIZERS` name what there is."""

from typing import TYPE_CHECKING, Any

from anaphor.data.corpus import Corpus, build_tokenizer, encoded
from anaphor.data.sources import SOURCES, Source, open_source, overlap
from anaphor.data.vocab import TOKENIZERS, Tokenizer, tokenizer_from_plain

if TYPE_CHECKING:
    from anaphor.data.text import Batch, Complete, Padded, Stream, columns, dialogues, offset_of

__all__ = [
    "SOURCES",
    "TOKENIZERS",
    "Batch",
    "Complete",
    "Corpus",
    "Padded",
    "Source",
    "Stream",
    "Tokenizer",
    "build_tokenizer",
    "columns",
    "dialogues",
    "encoded",
    "offset_of",
    "open_source",
    "overlap",
    "tokenizer_from_plain",
]


def __getattr__(name: str) -> Any:
    # Batches are tensors; `anaphor data` has none and need not wait for torch.
    if name in __all__:
        from anaphor.data import text

        return getattr(text, name)
    raise AttributeError(f"module 'anaphor.data' has no attribute {name!r}")
