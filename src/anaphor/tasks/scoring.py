"""Score sentences by themselves: the loss of each token, whatever else is scored in the same call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from anaphor.data.text import Batch
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import DataError
from anaphor.metrics.perplexity import LossTotal
from anaphor.models import LanguageModel
from anaphor.tasks.language_modelling import losses_in_order


@dataclass(frozen=True)
class Scored:
    """One sentence, token by token."""

    text: str
    tokens: tuple[str, ...]
    losses: tuple[float, ...]
    unknown: tuple[bool, ...]
    """Which tokens the tokenizer does not know."""
    causal: bool = True
    """Whether the model saw no token before it predicted it."""

    @property
    def total(self) -> LossTotal:
        return LossTotal(sum(self.losses), len(self.losses), causal=self.causal)


def score_sentences(model: LanguageModel, tokenizer: Tokenizer, sentences: Sequence[str]) -> Iterator[Scored]:
    """Each sentence begins after the tokenizer's boundary, and its end is not scored.

    One after the other rather than in a batch: the kernels of a padded batch need not give the same bits as those of a
    single row, and a sentence's score must not depend on its neighbours.
    """
    device = model.embed.weight.device
    for text in sentences:
        ids = tokenizer.encode_sentence(text)
        if not len(ids):
            raise DataError(f"{text!r} has no tokens to score")
        row = torch.tensor([[tokenizer.boundary, *ids.tolist()]], device=device)
        ((_, (losses,)),) = losses_in_order(model, [Batch(row[:, :-1], row[:, 1:])], carry=False)
        yield Scored(
            text,
            tuple(tokenizer.tokens[token] for token in ids.tolist()),
            tuple(losses.double().tolist()),
            tuple(token == tokenizer.unknown for token in ids.tolist()),
            model.causal,
        )
