"""The table of tokenizers, and how one comes back from its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anaphor.config import look_up
from anaphor.data.bpe import BPE
from anaphor.data.byte import Byte
from anaphor.data.character import Character
from anaphor.data.tokenizer import Ids, Tokenizer
from anaphor.data.treebank import Treebank
from anaphor.data.word import Word
from anaphor.errors import DataError

__all__ = ["BPE", "TOKENIZERS", "Byte", "Character", "Ids", "Tokenizer", "Treebank", "Word", "tokenizer_from_plain"]

TOKENIZERS: dict[str, type[Tokenizer]] = {
    "word": Word,
    "treebank": Treebank,
    "character": Character,
    "byte": Byte,
    "bpe": BPE,
}


def tokenizer_from_plain(plain: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `to_plain` described. Only names of the table are looked up, whatever the description says."""
    if not isinstance(plain, Mapping):
        raise DataError(f"a tokenizer is described by a mapping, not by a {type(plain).__name__}")
    kind = plain.get("kind")
    if not isinstance(kind, str):
        raise DataError("the description of a tokenizer does not say its 'kind'")
    return look_up(TOKENIZERS, kind, "tokenizer").from_plain(plain)
