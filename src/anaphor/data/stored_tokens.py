"""Tokens of a text that is larger than memory: they stay on disk, and batches read what they need."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphor.data.corpus import Corpus
from anaphor.data.shards import ShardedArray

BLOCK = 1 << 20
"""Tokens that are read at once where all are read."""


class Numbers(Protocol):
    """A long sequence of numbers, of which parts can be read."""

    def __len__(self) -> int: ...
    def read(self, start: int, stop: int) -> NDArray[Any]: ...


class StoredTokens:
    """Token ids [N] in place of a tensor where they are too many: what is read comes as int64 on a device."""

    def __init__(self, numbers: Numbers, device: torch.device | str = "cpu", first: tuple[int, ...] = ()) -> None:
        """`first` are tokens before all others."""
        self.numbers, self.device, self.first = numbers, torch.device(device), np.array(first, np.int64)

    def __len__(self) -> int:
        return len(self.first) + len(self.numbers)

    def after(self, token: int) -> StoredTokens:
        """The same tokens after another one."""
        return StoredTokens(self.numbers, self.device, (token, *self.first.tolist()))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The tokens from one place to another."""
        before = len(self.first)
        if start >= before:
            return self.numbers.read(start - before, stop - before)
        return np.concatenate((self.first[start:stop], self.numbers.read(0, max(stop - before, 0))))

    def count(self, token: int, stop: int) -> int:
        """How often a token occurs before a place."""
        starts = range(0, stop, BLOCK)
        return sum(int(np.count_nonzero(self.read(start, min(start + BLOCK, stop)) == token)) for start in starts)

    def tensor(self, count: int) -> Tensor:
        """The first tokens. [count]"""
        return torch.from_numpy(self.read(0, min(count, len(self))).astype(np.int64)).to(self.device)

    def __getitem__(self, places: Tensor) -> Tensor:
        """The tokens at places [B, T], which are near to each other in every row. [B, T]"""
        wanted = places.cpu().numpy()
        found = np.empty(wanted.shape, np.int64)
        for row, into in zip(wanted, found, strict=True):
            low, high = int(row.min()), int(row.max())
            into[:] = self.read(low, high + 1)[row - low]
        return torch.from_numpy(found).to(self.device)


def load_tokens(corpus: Corpus, device: torch.device | str) -> Tensor | StoredTokens:
    """The tokens of a corpus for batches on a device: all of them, or from the disk where it is larger than memory."""
    return StoredTokens(corpus.tokens, device) if isinstance(corpus.tokens, ShardedArray) else corpus.tensor(device)


class StoredRows:
    """A stored text in equal rows [B, length]; the remainder is left out."""

    def __init__(self, tokens: StoredTokens, rows: int, length: int, offset: int) -> None:
        self.tokens, self.shape, self.device = tokens, torch.Size((rows, length)), tokens.device
        self.begins = offset + np.arange(rows) * length
        self.starts = np.zeros(rows, np.int64)
        """Where each row starts, which is a circle."""

    def rotate(self, starts: NDArray[np.int64]) -> StoredRows:
        """The same rows, each from another place on."""
        rows, length = self.shape
        other = StoredRows(self.tokens, rows, length, int(self.begins[0]))
        other.starts = starts
        return other

    def read(self, start: int, stop: int) -> Tensor:
        """Tokens of all rows from one place to another. [B, stop - start]"""
        length = self.shape[1]
        found = np.empty((len(self.begins), stop - start), np.int64)
        for begin, turn, into in zip(self.begins.tolist(), self.starts.tolist(), found, strict=True):
            place, filled = (turn + start) % length, 0
            while filled < len(into):
                part = self.tokens.read(begin + place, begin + min(place + len(into) - filled, length))
                into[filled : filled + len(part)] = part
                place, filled = 0, filled + len(part)
        return torch.from_numpy(found).to(self.device)
