"""Texts as token ids: encoded once, cached by the hash of text and tokenizer, memory-mapped."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anaphor.config import look_up
from anaphor.data.cache import cache_folder, write_cache
from anaphor.data.dataset import TRAIN, Dataset
from anaphor.data.shards import ShardedArray
from anaphor.data.streamed_text import can_stream, encode_streamed, is_streamed, train_streamed
from anaphor.data.tokenizer import Ids, Tokenizer, tokenizer_from_plain
from anaphor.errors import AnaphorError, DataError
from anaphor.registry import TOKENIZERS

if TYPE_CHECKING:
    import torch

# Part of every key: raise it when a tokenizer encodes the same text differently, or when the stored content changes.
FORMAT = 1
_STORED = np.dtype("<i4")


@dataclass(frozen=True)
class Corpus:
    """One split of a text as token ids."""

    tokens: Ids | ShardedArray
    """[N], int32; usually a read-only memory map. Of a text that is larger than memory, in shards."""
    bytes: int
    """Size of the split, decompressed: the same for every tokenizer."""
    digest: str
    """SHA-256 of those bytes."""
    unknowns: int
    """Number of `<unk>` tokens, including those that the text itself contains."""

    def tensor(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The tokens as an int64 tensor [N] on a device, a copy."""
        import torch

        return torch.tensor(np.asarray(self.tokens), dtype=torch.int64, device=device)

    def counts(self, size: int) -> NDArray[np.int64]:
        """How often each token occurs. [size]"""
        if not isinstance(self.tokens, ShardedArray):
            return np.bincount(self.tokens, minlength=size)
        return sum((np.bincount(block, minlength=size) for block in self.tokens.blocks()), np.zeros(size, np.int64))


def build_tokenizer(dataset: Dataset, kind: str, size: int | None = None) -> Tokenizer:
    """Train a tokenizer on the train split of a text, and on nothing else.

    Nothing of a user's own tokenizer is cached, because its code may change.
    """
    tokenizer_class = look_up(TOKENIZERS, kind, "tokenizer")
    is_own = TOKENIZERS.is_registered(kind)
    cached = None if is_own else _load_tokenizer(_entry("tokenizers", dataset.digest(TRAIN), kind, size))
    if cached is not None:
        return cached
    if can_stream(dataset, kind):
        digest = dataset.digest(TRAIN)
        return _store_tokenizer(train_streamed(dataset, kind, size), digest, kind, size)
    raw = _read(dataset, TRAIN)
    tokenizer: Tokenizer = tokenizer_class.train_bytes(
        raw, size, where=dataset.where(TRAIN), offset=dataset.byte_offset(TRAIN)
    )
    return tokenizer if is_own else _store_tokenizer(tokenizer, hashlib.sha256(raw).hexdigest(), kind, size)


def _store_tokenizer(tokenizer: Tokenizer, digest: str, kind: str, size: int | None) -> Tokenizer:
    entry = _entry("tokenizers", digest, kind, size)
    metadata = {"digest": tokenizer.digest(), "tokenizer": tokenizer.to_plain()}
    write_cache(entry.with_suffix(".json"), json.dumps(metadata).encode())
    return tokenizer


def encode_split(dataset: Dataset, split: str, tokenizer: Tokenizer) -> Corpus:
    """One split of a text as token ids. The second call for the same text and tokenizer reads the cache."""
    digest, is_own = dataset.digest(split), TOKENIZERS.is_registered(tokenizer.kind)
    if not is_own and is_streamed(dataset, type(tokenizer)):
        shards = encode_streamed(dataset, split, tokenizer)
        return Corpus(ShardedArray(shards), shards.end, digest, shards.fact("unknowns"))
    cached = None if is_own else _load_corpus(_entry("corpora", digest, tokenizer.digest()), digest)
    if cached is not None:
        return cached
    raw = _read(dataset, split)
    # Hashed again: the file may have been edited in between, and the entry must belong to what was read.
    digest = hashlib.sha256(raw).hexdigest()
    tokens = tokenizer.encode_bytes(raw, where=dataset.where(split), offset=dataset.byte_offset(split))
    if not len(tokens):
        raise DataError(f"{dataset.where(split)} holds no {tokenizer.kind} tokens")
    unknowns = 0 if tokenizer.unknown is None else int(np.count_nonzero(tokens == tokenizer.unknown))
    corpus = Corpus(tokens, len(raw), digest, unknowns)
    if is_own:
        return corpus
    entry = _entry("corpora", digest, tokenizer.digest())
    _store_corpus(entry, corpus)
    return _load_corpus(entry, digest) or corpus


def _read(dataset: Dataset, split: str) -> bytes:
    raw = dataset.read(split)
    if not raw.strip():
        raise DataError(f"{dataset.where(split)} is empty")
    return raw


def _entry(folder: str, *inputs: object) -> Path:
    key = hashlib.sha256(json.dumps([FORMAT, *inputs]).encode()).hexdigest()
    return cache_folder() / folder / key


def _load_tokenizer(entry: Path) -> Tokenizer | None:
    """The cached tokenizer; None where there is none or where it is damaged."""
    try:
        metadata = json.loads(entry.with_suffix(".json").read_text(encoding="utf-8"))
        tokenizer = tokenizer_from_plain(metadata["tokenizer"])
        return tokenizer if tokenizer.digest() == metadata["digest"] else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, AnaphorError):
        return None


def _store_corpus(entry: Path, corpus: Corpus) -> None:
    """Write the tokens first, then the metadata that validate them: an entry without them is ignored."""
    stored = np.ascontiguousarray(corpus.tokens, _STORED)
    metadata = {
        "tokens": len(stored),
        "checksum": zlib.crc32(stored.data),
        "bytes": corpus.bytes,
        "unknowns": corpus.unknowns,
    }
    if write_cache(entry.with_suffix(".tokens"), stored.data.cast("B")):
        write_cache(entry.with_suffix(".json"), json.dumps(metadata).encode())


def _load_corpus(entry: Path, digest: str) -> Corpus | None:
    """The entry, memory-mapped; None where there is none or where it is damaged, so that it is rebuilt."""
    try:
        metadata = json.loads(entry.with_suffix(".json").read_text(encoding="utf-8"))
        tokens = np.memmap(entry.with_suffix(".tokens"), _STORED, "r")
        # A checksum against accidental damage: fast enough to be verified each time.
        if len(tokens) != metadata["tokens"] or zlib.crc32(tokens.data) != metadata["checksum"]:
            return None
        return Corpus(tokens, int(metadata["bytes"]), digest, int(metadata["unknowns"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


class Sentences(Dataset):
    """Sentences as one text, with a blank line after each, so that every tokenizer encodes them separately."""

    splits = (TRAIN,)

    def __init__(self, name: str, sentences: Sequence[str]) -> None:
        self.name, self.sentences = name, sentences

    def read(self, split: str, column: str | None = None) -> bytes:
        return "".join(f"{sentence}\n\n" for sentence in self.sentences).encode()

    def where(self, split: str, column: str | None = None) -> str:
        return self.name


def build_sentence_tokenizer(where: str, sentences: Sequence[str], kind: str, size: int | None = None) -> Tokenizer:
    """Train a tokenizer on separate texts; `where` names them in errors."""
    return build_tokenizer(Sentences(where, [sentence.replace("\n", " ") for sentence in sentences]), kind, size)
