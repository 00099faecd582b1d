"""Batches of the sequences of a synthetic task: their targets are the answers, and nothing else is learned."""

from __future__ import annotations

from copy import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

from anaphor.data.batches import IGNORE_INDEX, Batches
from anaphor.data.buckets import Indices
from anaphor.data.masked_batches import MaskedBatch
from anaphor.data.synthetic.base import NO_ANSWER, Answered
from anaphor.data.tokenizer import Tokenizer


class AnsweredBatches(Batches[MaskedBatch]):
    """Sequences of one length, each once, in an order that depends on (seed, epoch) alone."""

    padding_share = 0.0
    text_bytes: int | None = None
    """Answers have no bits per byte: they are a part of the text."""

    def __init__(self, input_ids: Tensor, targets: Tensor, rows: int, seed: int = 0) -> None:
        """[N, T] both; `rows` is the number of sequences of a batch."""
        self._inputs, self._targets, self.rows, self.seed = input_ids, targets, rows, seed
        self._counts: Indices = (targets != IGNORE_INDEX).sum(1).cpu().numpy()
        self._order: Indices = np.arange(len(input_ids))

    @classmethod
    def build(
        cls, answered: Answered, tokenizer: Tokenizer, words: tuple[str, ...], rows: int, seed: int,
        device: torch.device | str,
    ) -> Self:  # fmt: skip
        """Each sequence starts with the boundary, and ends with the last token after which an answer is asked."""
        numbers = {token: number for number, token in enumerate(tokenizer.tokens)}
        ids = np.array([numbers[word] for word in words])
        has_answer = answered.answers != NO_ANSWER
        end = 1 + int(np.flatnonzero(has_answer.any(0))[-1])
        tokens, answers = ids[answered.tokens[:, :end]], answered.answers[:, :end]
        targets = np.where(has_answer[:, :end], ids[np.maximum(answers, 0)], IGNORE_INDEX)
        begin = np.full((len(tokens), 1), tokenizer.boundary)
        inputs = np.concatenate((begin, tokens), 1)
        targets = np.concatenate((np.full_like(begin, IGNORE_INDEX), targets), 1)
        return cls(torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device), rows, seed)

    def at_epoch(self, epoch: int) -> Self:
        """The same sequences in the order of an epoch."""
        other = copy(self)
        other._order = np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(len(self._order))
        return other

    def in_rows(self, rows: int) -> Self:
        """The same sequences, so many in a batch."""
        other = copy(self)
        other.rows = rows
        return other

    @property
    def examples(self) -> int:
        """Number of sequences."""
        return len(self._inputs)

    @property
    def length(self) -> int:
        """Tokens of a sequence, the boundary included."""
        return self._inputs.shape[1]

    @property
    def tokens(self) -> int:
        """Number of answers."""
        return int(self._counts.sum())

    def count_token(self, token: int | None) -> int:
        """How often a token is an answer."""
        return 0 if token is None else int((self._targets == token).sum())

    def __len__(self) -> int:
        return -(-len(self._order) // self.rows)

    def batch(self, index: int) -> MaskedBatch:
        chosen = self._order[index * self.rows : (index + 1) * self.rows]
        rows = torch.from_numpy(chosen).to(self._inputs.device)
        return MaskedBatch(
            self._inputs[rows],
            self._targets[rows],
            indices=tuple(chosen.tolist()),
            host_count=int(self._counts[chosen].sum()),
        )
