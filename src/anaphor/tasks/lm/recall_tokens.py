"""Recall tokens: those whose bigram occurred before in the text. The context says what comes next, for a model that can
look it up: on these tokens attention and recurrences differ most (Arora et al., 2023).

A bigram is a token and the one before it. Of a stream the text is the whole split, of separate examples each example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anaphor.data.batches import Batch
from anaphor.data.tokenizer import Ids
from anaphor.metrics.losses import LossMeter, LossResult, LossTotal
from anaphor.tasks.lm.protocol import Protocol

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
            self._meter.add(values.masked_fill(~mask, 0).double().sum(), 0)
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


def repeated_by_segment(protocol: Protocol, tokens: Tensor, boundary: int) -> Sequence[Tensor]:
    """Which targets of each segment of a stream are recall tokens, cut as the protocol cuts the text. [B, T] each"""
    repeated = torch.from_numpy(find_repeated(tokens.cpu().numpy(), boundary)).to(tokens.device)
    return [batch.targets == 1 for batch in protocol.batches(repeated.long(), 0)]
