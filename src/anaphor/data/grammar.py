"""Probabilistic grammars whose every number is exact: entropy, expected length, the loss on any of their texts.

A grammar must be LL(1): the next word alone decides which rule applies. So no text has two derivations, its probability
is the product of the rules that were used, and what was used between two words is the probability of the second given
all before it.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from anaphor.errors import ConfigError, DataError

END = "\n"


@dataclass(frozen=True)
class Rule:
    """One way to write a symbol."""

    symbols: tuple[str, ...]
    """What it is written as; names that have rules of their own are written further."""
    probability: float
    """How often, among the rules of the same symbol."""


class Grammar:
    """Rules for each symbol; a name without rules is a word."""

    def __init__(self, rules: Mapping[str, Sequence[Rule]], start: str) -> None:
        self.rules = {symbol: tuple(choices) for symbol, choices in rules.items()}
        self.start = start
        for symbol, choices in self.rules.items():
            total = math.fsum(rule.probability for rule in choices)
            if not math.isclose(total, 1, abs_tol=1e-9) or any(rule.probability <= 0 for rule in choices):
                raise ConfigError(f"the probabilities of {symbol!r} must be positive and sum to 1, not to {total}")
        if start not in self.rules:
            raise ConfigError(f"the grammar has no rule for its start {start!r}")
        self._bounds = {
            symbol: list(accumulate(rule.probability for rule in choices)) for symbol, choices in self.rules.items()
        }
        self._table = self._predictions()
        self.entropy, self.length = self._moments()

    @property
    def words(self) -> list[str]:
        """Every word, in the order of the rules."""
        used = (name for choices in self.rules.values() for rule in choices for name in rule.symbols)
        return list(dict.fromkeys(name for name in used if name not in self.rules))

    @property
    def entropy_rate(self) -> float:
        """Nats per token of the best possible model, where the end of each line is a token too."""
        return self.entropy / (self.length + 1)

    def sample(self, generator: random.Random) -> list[str]:
        """One line."""
        words: list[str] = []
        stack = [self.start]
        while stack:
            symbol = stack.pop()
            if symbol not in self.rules:
                words.append(symbol)
                continue
            bounds = self._bounds[symbol]
            # The last bound may be a rounding error below one.
            chosen = min(bisect_right(bounds, generator.random()), len(bounds) - 1)
            stack.extend(reversed(self.rules[symbol][chosen].symbols))
        return words

    def losses(self, line: Sequence[str]) -> list[float]:
        """Nats of each word given those before it, and of the line's end. A line of another language is refused."""
        return list(self.read((*line, END)))

    def read(self, words: Sequence[str]) -> Iterator[float]:
        """Nats of each word given those before it; the words may break off anywhere in a line."""
        stack = [self.start]
        for place, word in enumerate(words):
            spent = 0.0
            while stack and stack[-1] in self.rules:
                rule = self._table[stack[-1]].get(word)
                if rule is None:
                    raise self._misfit(words, place)
                stack.pop()
                stack.extend(reversed(rule.symbols))
                spent -= math.log(rule.probability)
            expected = stack.pop() if stack else END
            if expected != word:
                raise self._misfit(words, place)
            yield spent

    def _misfit(self, words: Sequence[str], place: int) -> DataError:
        what = "the end of the line" if words[place] == END else f"the word {words[place]!r}"
        before = " ".join(words[:place][-5:])
        return DataError(f"not a text of the grammar: {what} cannot stand after {before!r}")

    def _moments(self) -> tuple[float, float]:
        """Entropy and expected words of one line.

        Both are sums over the derivation: what a symbol adds itself, and what the symbols it is written as add. So
        they solve linear systems with one matrix, the expected number of each symbol in one rewriting of another.
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
        """Which rule applies, for each symbol and next word; refused where two of them could."""
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
        """For each symbol the words it may begin with; and the symbols that may vanish."""
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
        """For each symbol the words that may stand after it."""
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
        for symbol, choices in self.rules.items():
            for rule in choices:
                yield symbol, rule


def _first_of(symbols: Sequence[str], first: dict[str, set[str]], empty: set[str]) -> tuple[set[str], bool]:
    """The words that a row of symbols may begin with, and whether all of it may vanish."""
    words: set[str] = set()
    for name in symbols:
        words |= first.get(name, {name})
        if name not in empty:
            return words, False
    return words, True


def _until_steady(measure: Callable[[], object]) -> Iterator[None]:
    """Once more and once more, until the measure stays as it was."""
    before = None
    while (now := measure()) != before:
        before = now
        yield
