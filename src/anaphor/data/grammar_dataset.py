"""The data set `grammar`: lines of an English grammar, whose exact loss is the lower bound for any model."""

from __future__ import annotations

import random
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anaphor.config import check_at_least
from anaphor.data.dataset import SPLITS, Dataset, encode_lines
from anaphor.data.grammar import Grammar, Rule

START = "LINE"

# The first word of a noun phrase has the number, which must be remembered until the verb, across relative clauses with
# subjects and verbs of their own. Each alternative is a weight and a right-hand side; symbols are in capitals.
SENTENCES: dict[str, list[tuple[float, str]]] = {
    "LINE": [(8, "STATEMENT MORE"), (1, "if STATEMENT , then STATEMENT ."), (1, "QUESTION ?")],
    "MORE": [(4, "."), (1, ", and STATEMENT ."), (1, "because STATEMENT .")],
    "STATEMENT": [(1, "ONE DOES"), (1, "MANY DO")],
    "QUESTION": [(1, "does ONE ACT"), (1, "do MANY ACT")],
    "ONE": [(3, "DETERMINER_ONE DESCRIBED_ONE MORE_OF_ONE"), (1, "NAME")],
    "MANY": [(1, "DETERMINER_MANY DESCRIBED_MANY MORE_OF_MANY")],
    "NOUN_PHRASE": [(1, "ONE"), (1, "MANY")],
    "DESCRIBED_ONE": [(3, "NOUN_ONE"), (1, "ADJECTIVE DESCRIBED_ONE")],
    "DESCRIBED_MANY": [(3, "NOUN_MANY"), (1, "ADJECTIVE DESCRIBED_MANY")],
    "MORE_OF_ONE": [(7, ""), (1, "PREPOSITION NOUN_PHRASE"), (1, "that RELATIVE_ONE")],
    "MORE_OF_MANY": [(7, ""), (1, "PREPOSITION NOUN_PHRASE"), (1, "that RELATIVE_MANY")],
    "RELATIVE_ONE": [(1, "DOES"), (1, "OBJECT_RELATIVE")],
    "RELATIVE_MANY": [(1, "DO"), (1, "OBJECT_RELATIVE")],
    "OBJECT_RELATIVE": [(1, "ONE TRANSITIVE_ONE"), (1, "MANY TRANSITIVE_MANY")],
    "DOES": [(4, "TRANSITIVE_ONE NOUN_PHRASE"), (3, "INTRANSITIVE_ONE HOW"), (2, "is QUALITY"),
             (1, "SAYING_ONE that STATEMENT")],
    "DO": [(4, "TRANSITIVE_MANY NOUN_PHRASE"), (3, "INTRANSITIVE_MANY HOW"), (2, "are QUALITY"),
           (1, "SAYING_MANY that STATEMENT")],
    "ACT": [(1, "TRANSITIVE_MANY NOUN_PHRASE"), (1, "INTRANSITIVE_MANY HOW")],
    "HOW": [(3, ""), (1, "ADVERB")],
    "QUALITY": [(3, "ADJECTIVE"), (1, "very QUALITY")],
}  # fmt: skip

# The two forms of nouns and verbs share a stem, so that a character model can learn one from the other.
NOUNS = "dog cat bird horse teacher student farmer sailor doctor child king queen poet baker painter robot"
TRANSITIVE = "see hear like follow help know paint find call trust"
INTRANSITIVE = "sleep sing walk laugh wait dream swim work"
SAYING = "say think claim believe"
IRREGULAR = {"child": "children"}
WORDS: dict[str, str] = {
    "DETERMINER_ONE": "each every this one",
    "DETERMINER_MANY": "some many these two",
    "NAME": "Ada Bertrand Chloe David Emmy Felix",
    "NOUN_ONE": NOUNS,
    "NOUN_MANY": " ".join(IRREGULAR.get(noun, f"{noun}s") for noun in NOUNS.split()),
    "ADJECTIVE": "old young small tall happy tired quiet clever brave green",
    "PREPOSITION": "near behind with without",
    "TRANSITIVE_ONE": " ".join(f"{verb}s" for verb in TRANSITIVE.split()),
    "TRANSITIVE_MANY": TRANSITIVE,
    "INTRANSITIVE_ONE": " ".join(f"{verb}s" for verb in INTRANSITIVE.split()),
    "INTRANSITIVE_MANY": INTRANSITIVE,
    "SAYING_ONE": " ".join(f"{verb}s" for verb in SAYING.split()),
    "SAYING_MANY": SAYING,
    "ADVERB": "slowly often here today again quietly",
}


def english() -> Grammar:
    """The grammar of the data set `grammar`: words of a kind become rarer along their list, as in a language."""
    rules: dict[str, list[Rule]] = {}
    for symbol, choices in SENTENCES.items():
        rules[symbol] = _normalize([(weight, text.split()) for weight, text in choices])
    for kind, words in WORDS.items():
        rules[kind] = _normalize([(1 / (rank + 2), [word]) for rank, word in enumerate(words.split())])
    return Grammar(rules, START)


def _normalize(choices: list[tuple[float, list[str]]]) -> list[Rule]:
    total = sum(weight for weight, _ in choices)
    return [Rule(tuple(symbols), weight / total) for weight, symbols in choices]


class GrammarDataset(Dataset):
    """Lines drawn from a grammar, and the exact loss of the grammar on them: the lower bound for any model."""

    name = "grammar"

    def __init__(self, tokens: int = 200_000, seed: int = 0) -> None:
        check_at_least(1, tokens=tokens)
        self.grammar = english()
        self.seed = seed
        # Large enough that the standard error of a mean loss on held-out text is below 0.01 nats.
        self.tokens = dict(zip(SPLITS, (tokens, tokens // 5 or 1, tokens // 5 or 1), strict=True))

    def read(self, split: str, column: str | None = None) -> bytes:
        self.column_index(column)
        split = self.check_split(split)
        return _draw(f"{self.name}/{split}/{self.seed}", self.tokens[split])

    def losses(self, text: str) -> NDArray[np.float64]:
        """Loss of the grammar in nats at every token of the word tokenizer, including `<eos>`."""
        lines = (text[:-1] if text.endswith("\n") else text).split("\n")
        return np.array([loss for line in lines for loss in self.grammar.losses(line.split())])

    def loss(self, text: str) -> tuple[float, int]:
        """(total nats, tokens) of the grammar on a text."""
        losses = self.losses(text)
        return float(losses.sum()), len(losses)


@lru_cache(maxsize=6)  # two data sets of three splits: every use of a run reads the text again, and drawing it is slow
def _draw(seed: str, tokens: int) -> bytes:
    # Seeding by a string and drawing doubles is guaranteed to stay the same in every version of Python.
    generator, grammar = random.Random(seed), english()
    lines: list[str] = []
    count = 0
    while count < tokens:
        words = grammar.sample(generator)
        lines.append(" ".join(words))
        count += len(words) + 1
    return encode_lines(lines)
