"""Warnings of words that are not in the vocabulary. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anaphor.data.tokenizer import Tokenizer

LISTED = 5  # unknown words and sentences that a warning lists


def describe_unknown_words(texts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """A warning that names the words of texts that are not in the vocabulary, where there are any."""
    words = list(dict.fromkeys(word for text in texts for word in tokenizer.find_unknown(text)))
    if not words or tokenizer.unknown is None:
        return []
    return [f"not in the vocabulary, replaced by {tokenizer.tokens[tokenizer.unknown]}: {list_some(words)}"]


def list_some(words: Sequence[str]) -> str:
    """The first words of a list, and how many more there are."""
    more = len(words) - LISTED
    return ", ".join(words[:LISTED]) + (f" and {more:,} more" if more > 0 else "")


def describe_mostly_unknown(
    counts: Mapping[str, tuple[int, int]], vocabulary: int | None, init: str | None = None
) -> list[str]:
    """A warning where more than half of a split is not in the vocabulary. `counts`: its tokens and the unknown ones;
    `vocabulary` and `init`: the settings of the run."""
    shares = {split: unknown / tokens for split, (tokens, unknown) in counts.items() if 2 * unknown > tokens}
    if not shares:
        return []
    if init is not None:
        advice = f"the vocabulary comes with init={init}: use text of the same language, or train without --init"
    else:
        larger = "" if vocabulary is None else "a larger --vocabulary, or "
        advice = f"use {larger}--tokenizer bpe, which has no unknown words"
    which = ", ".join(f"{share:.1%} of {split}" for split, share in shares.items())
    return [f"tokens that are not in the vocabulary: {which}; {advice}"]
