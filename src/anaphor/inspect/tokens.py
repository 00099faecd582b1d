"""The loss of every token of a text, two models beside each other, and tokens as people can see them."""

from __future__ import annotations

from collections.abc import Sequence

from anaphor.data.tokenizer import Tokenizer
from anaphor.errors import DataError
from anaphor.evaluation import ScoredText, score_text
from anaphor.models import LanguageModel

VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥"}


def losses_of(model: LanguageModel, tokenizer: Tokenizer, text: str) -> ScoredText:
    """The loss of each token of one text, as `anaphor score` tells it, and that of a newline at its end, too."""
    return score_text(model, tokenizer, text)


def differences(first: ScoredText, second: ScoredText) -> tuple[float, ...]:
    """Second loss less first, token by token: below zero where the second model expected it more.

    Only for equal tokens: a loss of one token cannot be set beside that of two halves of it.
    """
    for place, (one, other) in enumerate(zip(first.tokens, second.tokens, strict=False)):
        if one != other:
            raise DataError(
                f"the two models read the text differently: token {place} is {one!r} for the first and {other!r} for "
                f"the second; only losses of equal tokens can be compared"
            )
    if len(first.tokens) != len(second.tokens):
        raise DataError(
            f"the two models read the text differently: as {len(first.tokens)} and as {len(second.tokens)} tokens; "
            f"only losses of equal tokens can be compared"
        )
    return tuple(other - one for one, other in zip(first.losses, second.losses, strict=True))


def shown(tokens: Sequence[str]) -> tuple[str, ...]:
    """Tokens as labels: white space gets a sign, and what cannot be printed its number."""
    return tuple("".join(_shown(letter) for letter in token) for token in tokens)


def _shown(letter: str) -> str:
    if letter in VISIBLE:
        return VISIBLE[letter]
    return letter if letter.isprintable() else f"\\x{ord(letter):02x}"
