"""What BLEU counts, for many sentences at once: the quick twin of `ngram_counts`.

An n-gram gets a whole number that holds its sentence too, made from those of its first n - 1 tokens and of the last.
Equal numbers are then equal n-grams of one sentence, and sorting them is all the counting there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from anaphor.errors import DataError

ORDERS = 4
Tokens = Sequence[str]
Pair = tuple[Sequence[Tokens], Tokens]
Counts = NDArray[np.int64]


def sentence_counts(pairs: Iterable[Pair]) -> Counts:
    """One row for each (references, hypothesis), [N, 10].

    First the n-grams that match, for n from 1 to 4, then how many the hypothesis has, then its length and that of the
    reference closest to it, the shorter one on a tie. Rows of a corpus add up to the counts of the corpus.
    """
    groups = [(hypothesis, *references) for references, hypothesis in pairs]
    for number, group in enumerate(groups, start=1):
        if len(group) < 2:
            raise DataError(f"sentence {number} has no reference")
    if not groups:
        return np.zeros((0, 2 * ORDERS + 2), np.int64)
    sizes = np.fromiter(map(len, groups), np.int64, len(groups))
    starts = np.cumsum(sizes) - sizes
    texts = list(chain.from_iterable(groups))
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    sentence = np.repeat(np.arange(len(groups)), sizes)
    role = np.arange(len(texts)) - np.repeat(starts, sizes)  # 0 is the hypothesis, the others are its references
    tokens = numbered(texts)

    matches = _matches(tokens, lengths, sentence, role)
    hypothesis = lengths[starts]
    possible = np.maximum(hypothesis[:, None] - np.arange(ORDERS), 0)
    closest = _closest(lengths, hypothesis[sentence], role, starts)
    return np.column_stack((matches, possible, hypothesis, closest))


def numbered(texts: Sequence[Tokens]) -> Counts:
    """All tokens in a row, equal ones with equal numbers from 0 on."""
    tokens = list(chain.from_iterable(texts))
    numbers = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return np.fromiter(map(numbers.__getitem__, tokens), np.int64, len(tokens))


def _matches(tokens: Counts, lengths: Counts, sentence: Counts, role: Counts) -> Counts:
    """Clipped matches of every sentence, [N, 4]."""
    rows, roles = int(sentence[-1]) + 1, int(role.max()) + 1
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(tokens))  # tokens from here to the end of the text
    role = np.repeat(role, lengths)
    place = np.arange(len(tokens))  # where an n-gram begins
    kinds = int(tokens.max(initial=0)) + 1
    keys, word = np.unique(np.repeat(sentence, lengths) * kinds + tokens, return_inverse=True)
    gram, home = word, keys // kinds  # the sentence that each of the n-grams belongs to
    matches = np.zeros((rows, ORDERS), np.int64)
    for order in range(ORDERS):
        if order:
            longer = left[place] > order
            place = place[longer]
            keys, gram = np.unique(gram[longer] * len(word) + word[place + order], return_inverse=True)
            home = home[keys // len(word)]
        times = np.bincount(gram * roles + role[place], minlength=len(keys) * roles).reshape(-1, roles)
        matched = np.minimum(times[:, 0], times[:, 1:].max(axis=1))
        matches[:, order] = np.bincount(home, matched, rows)
        # Where n tokens do not match, no more tokens will.
        alive = (matched > 0)[gram]
        place, gram = place[alive], gram[alive]
    return matches


def _closest(lengths: Counts, wanted: Counts, role: Counts, starts: Counts) -> Counts:
    """The length of the reference closest to each hypothesis."""
    base = int(lengths.max()) + 1
    rank = np.abs(lengths - wanted) * base + lengths  # by distance, then by length
    rank[role == 0] = np.iinfo(np.int64).max
    return np.asarray(np.minimum.reduceat(rank, starts) % base)
