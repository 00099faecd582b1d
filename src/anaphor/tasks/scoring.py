"""Score sentences by themselves: the loss of each token, whatever else is scored in the same call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from anaphor.data.text import Batch
from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import ConfigError, DataError
from anaphor.metrics.perplexity import LossTotal
from anaphor.models import LanguageModel
from anaphor.tasks.language_modelling import losses_in_order

SHOWN = 40  # letters of a text that an error repeats


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
    """Each sentence begins after the tokenizer's boundary, and its end is not scored, be it written or not.

    One after the other rather than in a batch: the kernels of a padded batch need not give the same bits as those of a
    single row, and a sentence's score must not depend on its neighbours.
    """
    for text in sentences:
        yield replace(score_text(model, tokenizer, text.rstrip("\n")), text=text)


def score_text(model: LanguageModel, tokenizer: Tokenizer, text: str) -> Scored:
    """Every token of a text, the ends of its lines included, after the tokenizer's boundary."""
    ids = tokenizer.encode_sentence(text).tolist()
    if not ids:
        raise DataError(f"{text!r} has no tokens to score")
    check_room(model, len(ids), _beginning(text))
    row = torch.tensor([[tokenizer.boundary, *ids]], device=model.embed.weight.device)
    ((_, (losses,)),) = losses_in_order(model, [Batch(row[:, :-1], row[:, 1:])], carry=False)
    return Scored(
        text,
        tuple(tokenizer.tokens[token] for token in ids),
        tuple(losses.double().tolist()),
        tuple(token == tokenizer.unknown for token in ids),
        model.causal,
    )


def check_room(model: LanguageModel, tokens: int, what: str) -> None:
    """Refuse a text with more tokens than a trained model has positions for: only a shorter text helps now."""
    if model.limit is not None and tokens > model.limit:
        raise ConfigError(
            f"{what} is too long: {tokens:,} tokens are more than the {model.limit:,} learned positions of the model; "
            f"cut it"
        )


def _beginning(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")
