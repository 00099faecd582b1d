"""Made-up text with known answers: sentences of a small English, drawn from a grammar."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from anaphor.data.grammar import Grammar, Rule
from anaphor.data.source import SPLITS, Source
from anaphor.errors import ConfigError

START = "LINE"

# Number is told by the first word of a noun phrase and must be remembered until its verb, across relative clauses
# that have subjects and verbs of their own. Names in capitals are written further.
# Each alternative is a weight and what it writes.
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

# Nouns and verbs have two forms that share a stem, so that a model may learn the one from the other.
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
    """The grammar of the source `grammar`: words of a kind become rarer along their list, like those of a language."""
    rules: dict[str, list[Rule]] = {}
    for symbol, choices in SENTENCES.items():
        rules[symbol] = _shares([(weight, text.split()) for weight, text in choices])
    for kind, words in WORDS.items():
        rules[kind] = _shares([(1 / (rank + 2), [word]) for rank, word in enumerate(words.split())])
    return Grammar(rules, START)


def _shares(choices: list[tuple[float, list[str]]]) -> list[Rule]:
    total = sum(weight for weight, _ in choices)
    return [Rule(tuple(symbols), weight / total) for weight, symbols in choices]


class GrammarSource(Source):
    """Lines drawn from a grammar, and the exact loss of the grammar itself on them: no model can do better."""

    name = "grammar"
    splits = SPLITS

    def __init__(self, tokens: int = 200_000, seed: int = 0) -> None:
        if tokens < 1:
            raise ConfigError(f"tokens={tokens}: a text has at least 1")
        self.grammar = english()
        self.seed = seed
        self._drawn: dict[str, bytes] = {}
        # Held-out text is large enough that the noise of a mean loss stays below a hundredth of a nat.
        self.tokens = dict(zip(SPLITS, (tokens, tokens // 5 or 1, tokens // 5 or 1), strict=True))

    @property
    def entropy_rate(self) -> float:
        """Nats per token that the best possible model needs on an endless text, `<eos>` of each line counted."""
        return self.grammar.entropy_rate

    def read(self, split: str) -> bytes:
        split = self.check(split)
        if split not in self._drawn:
            self._drawn[split] = self._draw(split, self.tokens[split])
        return self._drawn[split]

    def losses(self, text: str) -> NDArray[np.float64]:
        """The source's own loss in nats at every token that the word tokenizer finds, the `<eos>` of lines included."""
        lines = (text[:-1] if text.endswith("\n") else text).split("\n")
        return np.array([loss for line in lines for loss in self.grammar.losses(line.split())])

    def loss(self, text: str) -> tuple[float, int]:
        """(total nats, tokens) of the source itself on a text of the grammar."""
        losses = self.losses(text)
        return float(losses.sum()), len(losses)

    def _draw(self, split: str, tokens: int) -> bytes:
        # Seeding by a string and drawing doubles is promised to stay the same in every version of Python.
        generator = random.Random(f"{self.name}/{split}/{self.seed}")
        lines: list[str] = []
        count = 0
        while count < tokens:
            words = self.grammar.sample(generator)
            lines.append(" ".join(words))
            count += len(words) + 1
        return "".join(f"{line}\n" for line in lines).encode()
