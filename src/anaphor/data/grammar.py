"""Probabilistic grammars with exact entropy, expected length, and loss on their texts; the data set `grammar`.

A grammar must be LL(1): the next word decides which rule applies. So a text has one derivation, its probability is the
product of the rules used, and the rules used between two words give the probability of the second.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from anaphor.data.dataset import SPLITS, Dataset, encode_lines
from anaphor.errors import ConfigError, DataError

END = "\n"


@dataclass(frozen=True)
class Rule:
    """One production of a symbol."""

    symbols: tuple[str, ...]
    """Right-hand side; symbols with rules are expanded further."""
    probability: float
    """Among the rules of the same symbol."""

    @cached_property
    def nats(self) -> float:
        """Its loss."""
        return -math.log(self.probability)

    @cached_property
    def reversed(self) -> tuple[str, ...]:
        """Its symbols as a stack has them."""
        return self.symbols[::-1]


class Grammar:
    """Rules for each symbol; a symbol without rules is a word."""

    def __init__(self, rules: Mapping[str, Sequence[Rule]], start: str) -> None:
        self.rules = {symbol: tuple(choices) for symbol, choices in rules.items()}
        self.start = start
        for symbol, choices in self.rules.items():
            total = math.fsum(rule.probability for rule in choices)
            if not math.isclose(total, 1, abs_tol=1e-9) or any(rule.probability <= 0 for rule in choices):
                raise ConfigError(f"the probabilities of {symbol!r} must be positive and sum to 1, not to {total}")
        if start not in self.rules:
            raise ConfigError(f"the grammar has no rule for its start {start!r}")
        # For each symbol upper bounds of a number in [0, 1) and what it becomes, as a stack has it. The last bound,
        # which may be below one by a rounding error, is left out: whatever exceeds all others is the last choice.
        self._expansions = {
            symbol: (
                list(accumulate(rule.probability for rule in choices))[:-1],
                [rule.reversed for rule in choices],
            )
            for symbol, choices in self.rules.items()
        }
        self._table = self._predictions()
        self.entropy, self.length = self._moments()

    @property
    def words(self) -> list[str]:
        """All words, in the order of the rules."""
        used = (name for choices in self.rules.values() for rule in choices for name in rule.symbols)
        return list(dict.fromkeys(name for name in used if name not in self.rules))

    @property
    def entropy_rate(self) -> float:
        """Nats per token of the best possible model; the end of each line is a token, too."""
        return self.entropy / (self.length + 1)

    def sample(self, generator: random.Random) -> list[str]:
        """Draw one line."""
        words: list[str] = []
        stack, expansions, draw = [self.start], self._expansions, generator.random
        while stack:
            symbol = stack.pop()
            found = expansions.get(symbol)
            if found is None:
                words.append(symbol)
            else:
                bounds, choices = found
                stack.extend(choices[bisect_right(bounds, draw())])
        return words

    def losses(self, line: Sequence[str]) -> list[float]:
        """Nats of each word given those before it, and of the line's end. Raises for lines not in the language."""
        return list(self.read((*line, END)))

    def read(self, words: Sequence[str]) -> Iterator[float]:
        """Nats of each word given those before it; the line may be incomplete."""
        stack, table = [self.start], self._table
        for place, word in enumerate(words):
            spent = 0.0
            while stack and (rules := table.get(stack[-1])) is not None:
                rule = rules.get(word)
                if rule is None:
                    raise self._error(words, place)
                stack.pop()
                stack.extend(rule.reversed)
                spent += rule.nats
            expected = stack.pop() if stack else END
            if expected != word:
                raise self._error(words, place)
            yield spent

    def _error(self, words: Sequence[str], index: int) -> DataError:
        what = "the end of the line" if words[index] == END else f"the word {words[index]!r}"
        before = " ".join(words[:index][-5:])
        return DataError(f"not a text of the grammar: {what} cannot follow {before!r}")

    def _moments(self) -> tuple[float, float]:
        """Entropy and expected number of words of one line.

        Both are sums over the derivation, so they solve linear systems with one matrix: the expected number of each
        symbol in one expansion of another.
        """
        place = {symbol: number for number, symbol in enumerate(self.rules)}
        expected = np.zeros((len(place), len(place)))
        own = np.zeros((len(place), 2))
        for symbol, choices in self.rules.items():
            for rule in choices:
                own[place[symbol], 0] -= rule.probability * math.log(rule.probability)
                for name in rule.symbols:
                    if name in place:
                        expected[place[symbol], place[name]] += rule.probability
                    else:
                        own[place[symbol], 1] += rule.probability
        growth = float(np.abs(np.linalg.eigvals(expected)).max())
        if growth >= 1:
            raise ConfigError(f"the grammar's lines have no finite expected length: symbols grow {growth:.3f} times")
        totals = np.linalg.solve(np.eye(len(place)) - expected, own)
        entropy, length = totals[place[self.start]]
        return float(entropy), float(length)

    def _predictions(self) -> dict[str, dict[str, Rule]]:
        """The LL(1) table: the rule for each symbol and next word; raises where two rules apply."""
        first, empty = self._first()
        follow = self._follow(first, empty)
        table: dict[str, dict[str, Rule]] = {symbol: {} for symbol in self.rules}
        for symbol, choices in self.rules.items():
            for rule in choices:
                next_words, vanishes = _first_of(rule.symbols, first, empty)
                for word in next_words | (follow[symbol] if vanishes else set()):
                    if word in table[symbol]:
                        raise ConfigError(f"the grammar is not LL(1): two rules of {symbol!r} begin before {word!r}")
                    table[symbol][word] = rule
        return table

    def _first(self) -> tuple[dict[str, set[str]], set[str]]:
        """FIRST sets, and the symbols that may be empty."""
        first: dict[str, set[str]] = {symbol: set() for symbol in self.rules}
        empty: set[str] = set()
        for _ in _until_steady(lambda: (sum(map(len, first.values())), len(empty))):
            for symbol, rule in self._all():
                words, vanishes = _first_of(rule.symbols, first, empty)
                first[symbol] |= words
                if vanishes:
                    empty.add(symbol)
        return first, empty

    def _follow(self, first: dict[str, set[str]], empty: set[str]) -> dict[str, set[str]]:
        """FOLLOW sets."""
        follow: dict[str, set[str]] = {symbol: set() for symbol in self.rules}
        follow[self.start].add(END)
        for _ in _until_steady(lambda: sum(map(len, follow.values()))):
            for symbol, rule in self._all():
                for place, name in enumerate(rule.symbols):
                    if name in self.rules:
                        words, vanishes = _first_of(rule.symbols[place + 1 :], first, empty)
                        follow[name] |= words | (follow[symbol] if vanishes else set())
        return follow

    def _all(self) -> Iterator[tuple[str, Rule]]:
        return ((symbol, rule) for symbol, choices in self.rules.items() for rule in choices)


def _first_of(symbols: Sequence[str], first: dict[str, set[str]], empty: set[str]) -> tuple[set[str], bool]:
    """FIRST set of a sequence of symbols, and whether it may be empty."""
    words: set[str] = set()
    for name in symbols:
        words |= first.get(name, {name})
        if name not in empty:
            return words, False
    return words, True


def _until_steady(measure: Callable[[], object]) -> Iterator[None]:
    """Repeat until the measure no longer changes."""
    previous = None
    while (current := measure()) != previous:
        previous = current
        yield


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
        if tokens < 1:
            raise ConfigError(f"tokens={tokens}: it must be at least 1")
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
