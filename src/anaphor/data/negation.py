"""The data set `negation`: sentences of a grammar with nested negation; the label is what a sentence says of its topic.

Every choice that changes the label is a fair coin of its own: the adjective, a "not" before it, and in every clause
around it a verb of denial and a "not" before that verb. The label is their parity. No word and no pair of neighboring
words shows all coins of a sentence, so that each of them is as frequent with one label as with the other: a linear
model over counts of words and bigrams has nothing to learn. "not" in a relative clause belongs to no claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anaphor.config import check_at_least
from anaphor.data.dataset import LABELED_COLUMNS, Drawn

LABELS = ("negative", "positive")
TOPICS = ("film", "book", "song", "play", "story", "ending", "music", "cast")
KINDS = ("new", "old", "first", "second", "short", "long", "famous", "foreign")
PEOPLE = ("critic", "author", "actor", "neighbor", "teacher", "child", "pilot", "baker")
GOOD = ("good", "great", "lovely", "clever", "moving", "fresh")
BAD = ("bad", "awful", "dull", "stupid", "boring", "stale")
ADVERBS = ("really", "very", "quite", "rather", "truly", "so")
AFFIRM = (("says", "say"), ("thinks", "think"), ("knows", "know"), ("hopes", "hope"))
DENY = (("denies", "deny"), ("doubts", "doubt"), ("disputes", "dispute"), ("rejects", "reject"))
HABITS = (("smokes", "smoke"), ("sings", "sing"), ("travels", "travel"), ("sleeps", "sleep"))
CLAUSES = (0, 1, 1, 2)
"""Clauses around the claim, each number as likely as its share."""
RELATIVE = 0.2
"""Probability that a person has a relative clause."""


class Negation(Drawn):
    """Sentences with nested negation; the label is what they say. No sentence occurs twice, in no two splits."""

    name = "negation"
    columns = LABELED_COLUMNS

    def __init__(self, texts: int = 8000, seed: int = 0) -> None:
        """`texts` for train, and an eighth as many for valid and for test. Labels are balanced in every split."""
        check_at_least(1, texts=texts)
        super().__init__((texts, texts // 8 or 1, texts // 8 or 1), seed)

    def draw(self, uniform: Callable[[], float]) -> Iterator[tuple[str, str]]:
        """Distinct sentences with their labels in turn."""
        seen: set[str] = set()
        label = 0
        while True:
            sentence = draw_sentence(uniform, label)
            if sentence not in seen:
                seen.add(sentence)
                yield sentence, LABELS[label]
                label = 1 - label


def draw_sentence(uniform: Callable[[], float], label: int) -> str:
    """One sentence with this label: all coins are tossed, and the adjective makes the parity right."""

    def choose(options: Sequence[Any]) -> Any:
        return options[int(uniform() * len(options))]

    words: list[str] = []
    flips = 0
    for _ in range(choose(CLAUSES)):
        words += ["the", choose(PEOPLE)]
        if uniform() < RELATIVE:
            finite, infinitive = choose(HABITS)
            words += ["who", *(["does", "not", infinitive] if uniform() < 0.5 else [finite])]
        denies, negated = uniform() < 0.5, uniform() < 0.5
        finite, infinitive = choose(DENY if denies else AFFIRM)
        words += [*(["does", "not", infinitive] if negated else [finite]), "that"]
        flips += denies + negated
    negated = uniform() < 0.5
    flips += negated
    is_good = label == 1 - flips % 2
    words += ["the", choose(KINDS), choose(TOPICS), "is", *(["not"] if negated else []), choose(ADVERBS)]
    return " ".join([*words, choose(GOOD if is_good else BAD)])
