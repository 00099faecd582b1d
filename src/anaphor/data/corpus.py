"""Texts as numbers: made once, kept on disk by the hash of what they were made from, mapped into memory."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anaphor.config import look_up
from anaphor.data import cache
from anaphor.data.source import TRAIN, Source
from anaphor.data.tokenizer import Ids, Tokenizer
from anaphor.data.vocab import TOKENIZERS, tokenizer_from_plain
from anaphor.errors import AnaphorError, DataError

if TYPE_CHECKING:
    import torch

# Part of every key: raise it when a tokenizer reads the same text differently, or when what is stored changes.
FORMAT = 1
_STORED = np.dtype("<i4")


@dataclass(frozen=True)
class Corpus:
    """One split as a tokenizer reads it."""

    tokens: Ids
    """[N], int32; often a read-only map of a file."""
    bytes: int
    """How long the split is as it is stored, decompressed: the same for every tokenizer."""
    digest: str
    """SHA-256 of those bytes."""
    unknowns: int
    """Tokens that are `<unk>`, those included that the text itself writes so."""

    def tensor(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The tokens as one tensor of int64 [N] on a device, a copy of its own."""
        import torch

        return torch.tensor(np.asarray(self.tokens), dtype=torch.int64, device=device)


def build_tokenizer(source: Source, kind: str, size: int | None = None) -> Tokenizer:
    """A tokenizer of that kind, trained on the source's train split and on nothing else."""
    tokenizer_class = look_up(TOKENIZERS, kind, "tokenizer")
    kept = _load_tokenizer(_entry("tokenizers", source.digest(TRAIN), kind, size))
    if kept is not None:
        return kept
    raw = _read(source, TRAIN)
    tokenizer = tokenizer_class.train_bytes(raw, size, where=source.where(TRAIN), start=source.start(TRAIN))
    entry = _entry("tokenizers", hashlib.sha256(raw).hexdigest(), kind, size)
    facts = {"digest": tokenizer.digest(), "tokenizer": tokenizer.to_plain()}
    cache.write(entry.with_suffix(".json"), json.dumps(facts).encode())
    return tokenizer


def encoded(source: Source, split: str, tokenizer: Tokenizer) -> Corpus:
    """One split as numbers. The second call for the same text and tokenizer opens the file that the first has left."""
    digest = source.digest(split)
    kept = _load(_entry("corpora", digest, tokenizer.digest()), digest)
    if kept is not None:
        return kept
    raw = _read(source, split)
    # Hashed again: the file may have been edited since, and what is kept must belong to what was read.
    digest = hashlib.sha256(raw).hexdigest()
    tokens = tokenizer.encode_bytes(raw, where=source.where(split), start=source.start(split))
    if not len(tokens):
        raise DataError(f"{source.where(split)} holds no {tokenizer.kind} tokens")
    unknowns = 0 if tokenizer.unknown is None else int(np.count_nonzero(tokens == tokenizer.unknown))
    corpus = Corpus(tokens, len(raw), digest, unknowns)
    entry = _entry("corpora", digest, tokenizer.digest())
    _keep(entry, corpus)
    return _load(entry, digest) or corpus


def _read(source: Source, split: str) -> bytes:
    raw = source.read(split)
    if not raw.strip():
        raise DataError(f"{source.where(split)} is empty")
    return raw


def _entry(folder: str, *made_from: object) -> Path:
    key = hashlib.sha256(json.dumps([FORMAT, *made_from]).encode()).hexdigest()
    return cache.folder() / folder / key


def _load_tokenizer(entry: Path) -> Tokenizer | None:
    """The one that is kept there; None where there is none or where it is damaged."""
    try:
        facts = json.loads(entry.with_suffix(".json").read_text(encoding="utf-8"))
        tokenizer = tokenizer_from_plain(facts["tokenizer"])
        return tokenizer if tokenizer.digest() == facts["digest"] else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, AnaphorError):
        return None


def _keep(entry: Path, corpus: Corpus) -> None:
    """The numbers first, then the facts that vouch for them: an entry without facts is not looked at."""
    stored = np.ascontiguousarray(corpus.tokens, _STORED)
    facts = {
        "tokens": len(stored),
        "checksum": zlib.crc32(stored.data),
        "bytes": corpus.bytes,
        "unknowns": corpus.unknowns,
    }
    if cache.write(entry.with_suffix(".tokens"), stored.data.cast("B")):
        cache.write(entry.with_suffix(".json"), json.dumps(facts).encode())


def _load(entry: Path, digest: str) -> Corpus | None:
    """The entry, mapped; None where there is none or where it is damaged, so that it is made again."""
    try:
        facts = json.loads(entry.with_suffix(".json").read_text(encoding="utf-8"))
        tokens = np.memmap(entry.with_suffix(".tokens"), _STORED, "r")
        # A checksum against accidents: quick enough to be looked at each time.
        if len(tokens) != facts["tokens"] or zlib.crc32(tokens.data) != facts["checksum"]:
            return None
        return Corpus(tokens, int(facts["bytes"]), digest, int(facts["unknowns"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
