"""The grammar's numbers are exact: against drawn text, against all strings, against a grammar solved by hand."""

import contextlib
import math
import random

import numpy as np
import pytest

from anaphor.data.datasets import open_dataset
from anaphor.data.grammar import END, Grammar, Rule
from anaphor.data.grammar_dataset import GrammarDataset, english
from anaphor.data.tokenizer import Word
from anaphor.errors import ConfigError, DataError


def lengths(grammar, longest):
    """Symbol -> probability of each number of words, by convolution: knows nothing of strings."""
    found = {symbol: np.zeros(longest + 1) for symbol in grammar.rules}
    one_word = np.eye(longest + 1)[1] if longest else np.zeros(1)
    for _ in range(400):
        for symbol, choices in grammar.rules.items():
            total = np.zeros(longest + 1)
            for rule in choices:
                part = np.eye(longest + 1)[0] * rule.probability
                for name in rule.symbols:
                    part = np.convolve(part, found.get(name, one_word))[: longest + 1]
                total += part
            found[symbol] = total
    return found[grammar.start]


def strings(grammar, longest):
    """Every derivation of at most so many words, leftmost first."""
    least = dict.fromkeys(grammar.rules, 0)
    for _ in range(len(least)):
        for symbol, choices in grammar.rules.items():
            least[symbol] = min(sum(least.get(name, 1) for name in rule.symbols) for rule in choices)
    agenda = [((), (grammar.start,), 1.0)]
    while agenda:
        words, rest, probability = agenda.pop()
        while rest and rest[0] not in grammar.rules:
            words, rest = (*words, rest[0]), rest[1:]
        if len(words) + sum(least.get(name, 1) for name in rest) > longest:
            continue
        if not rest:
            yield words, probability
            continue
        for rule in grammar.rules[rest[0]]:
            agenda.append((words, (*rule.symbols, *rest[1:]), probability * rule.probability))


def test_entropy_and_length_against_a_grammar_solved_by_hand():
    # "a" repeated: n words with probability (1 - p) p ** n, so the length is geometric.
    p = 0.3
    grammar = Grammar({"S": [Rule(("a", "S"), p), Rule((), 1 - p)]}, "S")
    entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p)) / (1 - p)
    assert grammar.length == pytest.approx(p / (1 - p))
    assert grammar.entropy == pytest.approx(entropy)
    assert grammar.entropy_rate == pytest.approx(entropy / (1 / (1 - p)))
    assert grammar.losses(["a", "a"]) == pytest.approx([-math.log(p), -math.log(p), -math.log(1 - p)])


def test_the_entropy_rate_against_drawn_text():
    """Ratio of two means over lines; its standard error by linearisation."""
    source = GrammarDataset(tokens=100_000, seed=7)
    losses = [source.grammar.losses(line.split()) for line in source.text("train").splitlines()]
    totals, tokens = np.array([sum(line) for line in losses]), np.array([len(line) for line in losses])
    rate = totals.sum() / tokens.sum()
    error = (totals - rate * tokens).std() / math.sqrt(len(losses)) / tokens.mean()
    assert abs(rate - source.grammar.entropy_rate) < 4 * error
    assert error < 0.02 * rate, "otherwise this would show nothing"
    assert abs(tokens.mean() - 1 - source.grammar.length) < 4 * tokens.std() / math.sqrt(len(tokens))
    assert abs(totals.mean() - source.grammar.entropy) < 4 * totals.std() / math.sqrt(len(totals))


@pytest.mark.parametrize("longest", [4, 5])
def test_probabilities_of_all_short_strings_sum_to_that_of_being_short(longest):
    grammar = english()
    found = list(strings(grammar, longest))
    assert len({words for words, _ in found}) == len(found) > 100, "no string has two derivations"
    expected = lengths(grammar, longest)
    for count in range(longest + 1):
        total = math.fsum(probability for words, probability in found if len(words) == count)
        assert total == pytest.approx(expected[count], abs=1e-12)
    for words, probability in random.Random(0).sample(found, 100):
        assert math.exp(-sum(grammar.losses(words))) == pytest.approx(probability)


def test_nesting_adds_up_too():
    """Deep strings of a small grammar with agreement across a centre."""
    grammar = Grammar(
        {
            "S": [Rule(("a", "S", "b"), 0.3), Rule(("c", "T", "d"), 0.3), Rule(("x",), 0.4)],
            "T": [Rule(("S", "e"), 0.2), Rule((), 0.8)],
        },
        "S",
    )
    found = list(strings(grammar, 15))
    assert len({words for words, _ in found}) == len(found)
    expected = lengths(grammar, 15)
    assert math.fsum(probability for _, probability in found) == pytest.approx(expected.sum(), abs=1e-12)
    assert expected.sum() > 0.98


def test_losses_of_the_next_word_sum_to_one_over_the_vocabulary():
    """So the source's loss at a token is that of a language model, and may be compared with one."""
    grammar = english()
    generator = random.Random(1)
    for _ in range(20):
        line = grammar.sample(generator)
        cut = generator.randrange(len(line) + 1)
        total = 0.0
        for word in (*grammar.words, END):
            # A word that cannot stand there has no probability.
            with contextlib.suppress(DataError):
                total += math.exp(-list(grammar.read([*line[:cut], word]))[-1])
        assert total == pytest.approx(1)


def test_the_source_says_its_loss_on_a_text_token_by_token():
    source = open_dataset("grammar")
    text = source.text("valid")
    losses = source.losses(text)
    assert len(losses) == len(Word.train(source.text("train")).encode(text))
    total, tokens = source.loss(text)
    assert tokens == len(losses)
    assert total == pytest.approx(losses.sum())
    assert losses.min() >= 0
    assert total / tokens == pytest.approx(source.grammar.entropy_rate, rel=0.05)


def test_drawn_text_is_the_same_each_time_and_differs_between_splits_and_seeds():
    assert GrammarDataset(2000).read("train") == GrammarDataset(2000).read("train")
    assert GrammarDataset(2000).read("valid") != GrammarDataset(2000).read("test")
    assert GrammarDataset(2000, seed=1).read("train") != GrammarDataset(2000).read("train")


def test_the_default_has_the_size_of_a_small_corpus():
    source = open_dataset("grammar")
    tokenizer = Word.train(source.text("train"))
    assert 200_000 <= len(tokenizer.encode(source.text("train"))) < 200_100
    assert 50 <= len(tokenizer) <= 200
    assert set(source.grammar.words) <= set(tokenizer.tokens), "every word is learnt"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("every dogs sleeps .", "'dogs' cannot follow 'every'"),
        ("every dog sleep .", "'sleep' cannot follow 'every dog'"),
        ("every dog sleeps", "the end of the line cannot follow 'every dog sleeps'"),
        ("every dog sleeps . .", "the word '.' cannot follow"),
        ("", "the end of the line"),
        ("zebra", "'zebra'"),
    ],
)
def test_another_language_is_refused_with_the_word_where_it_shows(line, message):
    with pytest.raises(DataError, match=message):
        open_dataset("grammar").loss(f"{line}\n")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"S": [Rule(("a",), 0.5), Rule(("a", "b"), 0.5)]}, r"not LL\(1\): two rules of 'S' begin before 'a'"),
        ({"S": [Rule(("S", "a"), 0.5), Rule(("b",), 0.5)]}, r"not LL\(1\)"),
        ({"S": [Rule(("A", "a"), 1)], "A": [Rule(("a",), 0.5), Rule((), 0.5)]}, r"not LL\(1\): two rules of 'A'"),
        ({"S": [Rule(("a",), 0.5)]}, "sum to 1, not to 0.5"),
        ({"S": [Rule(("a", "S", "S"), 0.6), Rule(("b",), 0.4)]}, "grow 1.200 times"),
        ({"T": [Rule(("a",), 1)]}, "no rule for its start 'S'"),
    ],
)
def test_a_grammar_whose_numbers_would_not_be_exact_is_refused(rules, message):
    with pytest.raises(ConfigError, match=message):
        Grammar(rules, "S")
