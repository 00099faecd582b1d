"""Probabilistic grammars with exact entropy, expected length, and loss on their texts.

A grammar must be LL(1): the next word decides which rule applies. So a text has one derivation, its probability is the
product of the rules used, and the rules used between two words give the probability of the second.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

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
