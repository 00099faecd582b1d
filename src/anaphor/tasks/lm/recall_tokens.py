"""Recall tokens: those whose bigram occurred before in the text. The context says what comes next, for a model that can
look it up: on these tokens attention and recurrences differ most (Arora et al., 2023).

A bigram is a token and the one before it. Of a stream the text is the whole split, of separate examples each example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphor.data.batches import Batch
from anaphor.data.stored_tokens import StoredTokens
from anaphor.data.tokenizer import Ids
from anaphor.metrics.losses import LossMeter, LossResult, LossTotal
from anaphor.precision import to_double
from anaphor.progress_listener import report_progress
from anaphor.tasks.lm.protocol import Protocol

BLOCK, BIGRAMS = 1 << 20, 1 << 23
"""Tokens of a long text that are read at once, and about how many different bigrams are kept; multiples of 8."""
Losses = Iterable[tuple[Batch, Tensor]]


def find_repeated(ids: Ids, boundary: int) -> NDArray[np.bool_]:
    """Which tokens of a text end a bigram that occurred before. The first one comes after a boundary. [N] -> [N]"""
    wide = np.asarray(ids).astype(np.int64)
    previous = np.concatenate(([boundary], wide[:-1]))
    bigrams = previous * (int(wide.max(initial=boundary)) + 1) + wide
    repeated = np.ones(len(wide), bool)
    repeated[np.unique(bigrams, return_index=True)[1]] = False
    return repeated


def find_repeated_in_rows(batch: Batch) -> Tensor:
    """Which targets of separate examples end a bigram that occurred before in their row. [B, T]"""
    same = (batch.input_ids[:, :, None] == batch.input_ids[:, None]) & (
        batch.targets[:, :, None] == batch.targets[:, None]
    )
    return same.tril(-1).any(-1) & batch.has_target


class RecallMeter:
    """Adds up the losses of recall tokens while those of all tokens are computed."""

    def __init__(self, *, causal: bool = True) -> None:
        self._meter = LossMeter(causal=causal)

    def listen(self, losses: Losses, repeated: Iterable[Tensor] | None = None) -> Iterator[tuple[Batch, Tensor]]:
        """The same batches. `repeated` [B, T] of each; None: they are separate examples."""
        counts: list[Tensor] = []
        masks = None if repeated is None else iter(repeated)
        for batch, values in losses:
            mask = find_repeated_in_rows(batch) if masks is None else next(masks)
            self._meter.add(to_double(values.masked_fill(~mask, 0)).sum(), 0)
            counts.append(mask.sum())
            yield batch, values
        self._meter.tokens += int(torch.stack(counts).sum()) if counts else 0

    def read(self) -> LossTotal | None:
        """The total; None where no bigram occurs twice."""
        return self._meter.read() if self._meter.tokens else None

    def add_to(self, result: LossResult) -> LossResult:
        """The result with the perplexity of recall tokens, and how many there are."""
        total = self.read()
        values = {**result.values, "recall_perplexity": None if total is None else total.perplexity}
        return replace(
            result, values=values, details={**result.details, "recall_tokens": 0 if total is None else total.tokens}
        )


def repeated_by_segment(protocol: Protocol, tokens: Tensor | StoredTokens, boundary: int) -> Iterator[Tensor]:
    """Which targets of each segment of a stream are recall tokens, cut as the protocol cuts the text. [B, T] each"""
    if isinstance(tokens, StoredTokens):
        marks: Tensor | StoredTokens = StoredTokens(find_repeated_in_blocks(tokens, boundary), tokens.device)
    else:
        marks = torch.from_numpy(find_repeated(tokens.cpu().numpy(), boundary)).to(tokens.device).long()
    return (batch.targets == 1 for batch in protocol.batches(marks, 0))


class Marks:
    """A bit for each of many tokens."""

    def __init__(self, count: int) -> None:
        self._bits, self._count = np.zeros(-(-count // 8), np.uint8), count

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bits from one place to another."""
        first = start // 8
        return np.unpackbits(self._bits[first : -(-stop // 8)])[start - 8 * first : stop - 8 * first]

    def add(self, start: int, marked: NDArray[np.bool_]) -> None:
        """Set the bits from a place on, a multiple of 8, where they are true."""
        packed = np.packbits(marked)
        self._bits[start // 8 : start // 8 + len(packed)] |= packed


def find_repeated_in_blocks(tokens: StoredTokens, boundary: int) -> Marks:
    """The same as `find_repeated` for a text that is larger than memory. It is read several times, each time for a part
    of all bigrams, so that those that were seen fit into memory."""
    count = len(tokens)
    marks, parts = Marks(count), -(-count // BIGRAMS)
    for part in range(parts):
        seen = np.empty(0, np.int64)
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            ids = tokens.read(start, stop).astype(np.int64)
            before = tokens.read(start - 1, start).astype(np.int64) if start else np.array([boundary])
            # 32 bits for the second: more tokens than any vocabulary has.
            bigrams = (np.concatenate((before, ids[:-1])) << 32) + ids
            here = np.flatnonzero(bigrams % parts == part)
            found, first = np.unique(bigrams[here], return_index=True)
            is_known = np.isin(found, seen, assume_unique=True)
            marked = np.zeros(len(ids), bool)
            marked[here] = True
            marked[here[first[~is_known]]] = False
            marks.add(start, marked)
            seen = np.concatenate((seen, found[~is_known]))
            report_progress("finding recall tokens", part * count + stop, parts * count)
    return marks
