"""Batches of labeled texts of similar length, padded to the longest of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anaphor.data.buckets import Buckets, Indices
from anaphor.data.padded_batches import BatchesByLength, TokenSequences
from anaphor.data.stored_texts import StoredTexts
from anaphor.data.stored_tokens import StoredTokens
from anaphor.data.tokenizer import Ids


@dataclass(frozen=True)
class LabeledBatch:
    """Token sequences with a class each."""

    tokens: Tensor
    """[B, T], padded on the right."""
    lengths: Tensor
    """[B]: number of real tokens of each row."""
    labels: Tensor
    """[B]: index of the class; 0 where it is not known."""

    @property
    def count(self) -> int:
        return len(self.labels)

    denominator = count


class LabeledBatches(BatchesByLength[LabeledBatch]):
    """Texts with a class each."""

    def __init__(
        self,
        texts: Sequence[Ids] | StoredTexts,
        labels: Sequence[int] | Indices,
        *,
        pad: int,
        rows: int,
        pad_to: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if isinstance(texts, StoredTexts):
            sizes = texts.sizes
            starts, lengths = (torch.from_numpy(array).to(device) for array in (np.cumsum(sizes) - sizes, sizes))
            tokens = TokenSequences(StoredTokens(texts.tokens, device), starts, lengths, pad)
        else:
            sizes = np.array([len(text) for text in texts])
            tokens = TokenSequences.build(np.concatenate(texts), np.cumsum(sizes) - sizes, sizes, pad, device)
        super().__init__(tokens, Buckets(sizes=sizes[:, None], rows=rows, pad_to=pad_to), seed=seed)
        self.sizes = sizes
        self.labels = torch.tensor(labels, dtype=torch.int64, device=device)
        """[N]: index of the class of each text."""

    def count_token(self, token: int | None) -> int:
        tokens = self._inputs.tokens
        if token is None or not isinstance(tokens, StoredTokens):
            return super().count_token(token)
        return tokens.count(token, self.tokens)  # the texts follow each other from the first token on

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return int(self.sizes.sum())

    @property
    def padding_share(self) -> float:
        """Share of padding of all positions of all batches."""
        held = sum(len(batch) * self._buckets.widths(batch)[0] for batch in self.batches)
        return float(1 - self.sizes.sum() / held)

    def padding_share_at(self, length: int) -> float:
        """What it would be if every text were padded to one length."""
        return float(1 - self.sizes.sum() / (len(self.sizes) * length))

    def batch(self, index: int) -> LabeledBatch:
        rows = self._rows(index)
        tokens, _, lengths = self._inputs.gather(rows, *self._buckets.widths(self.batches[index]))
        return LabeledBatch(tokens, lengths, self.labels[rows])
