"""BLEU: by its definition, to read and to check; and of a corpus in lines, quick and as sacreBLEU has it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anaphor import __version__
from anaphor.errors import ConfigError, DataError
from anaphor.metrics.ngrams import ORDERS, Counts, Pair, Tokens, sentence_counts

RESAMPLES, SEED = 1000, 12345
"""As sacreBLEU has them, so that the intervals agree too."""


def ngram_counts(references: Sequence[Tokens], hypothesis: Tokens, n: int) -> tuple[int, int]:
    """(a, b): n-grams of the hypothesis that a reference has as well, and n-grams of the hypothesis, but at least 1.

    A reference vouches for as many copies of an n-gram as it holds; the most generous one counts.
    """
    if n < 1:
        raise ConfigError(f"n={n}: an n-gram has at least one token")
    found = _ngrams(hypothesis, n)
    allowed = [_ngrams(reference, n) for reference in references]
    matched = sum(min(count, max((one[gram] for one in allowed), default=0)) for gram, count in found.items())
    return matched, max(1, found.total())


def bleu(pairs: Iterable[Pair]) -> float:
    """BLEU of (references, hypothesis) pairs, from 0 to 1, as a course defines it.

    A hypothesis of fewer than n tokens counts as one n-gram that does not match. sacreBLEU, and with it `corpus_bleu`,
    counts none there, so its score is the higher one.
    """
    pairs = list(pairs)
    if not pairs:
        raise DataError("there is nothing to score: no hypothesis was given")
    for number, (references, _) in enumerate(pairs, start=1):
        if not references:
            raise DataError(f"hypothesis {number} has no reference")
    precisions = []
    for n in range(1, ORDERS + 1):
        counts = (ngram_counts(references, hypothesis, n) for references, hypothesis in pairs)
        matched, possible = zip(*counts, strict=True)
        precisions.append(sum(matched) / sum(possible))
    length = sum(len(hypothesis) for _, hypothesis in pairs)
    wanted = sum(closest_length(map(len, references), len(hypothesis)) for references, hypothesis in pairs)
    return brevity_penalty(length, wanted) * math.pow(math.prod(precisions), 1 / ORDERS)


def closest_length(lengths: Iterable[int], wanted: int) -> int:
    """The length closest to the one that is wanted; of two as close, the shorter, as sacreBLEU does."""
    return min(lengths, key=lambda length: (abs(length - wanted), length))


def brevity_penalty(length: int, wanted: int) -> float:
    """What hypotheses pay for being shorter together than their references: 1 if they are not, 0 if they are empty."""
    if length >= wanted:
        return 1.0
    return math.exp(1 - wanted / length) if length else 0.0


@dataclass(frozen=True)
class Interval:
    """Where 95 % of the scores lie when sentences are drawn anew."""

    mean: float
    low: float
    high: float
    resamples: int = RESAMPLES
    seed: int = SEED


@dataclass(frozen=True)
class BleuScore:
    """Counts of every sentence, with the facts that produced them. All numbers are of the corpus."""

    rows: Counts
    """[N, 10], as `sentence_counts` gives them."""
    facts: Mapping[str, Any]

    @property
    def bleu(self) -> float:
        """From 0 to 100."""
        return _from_counts(self.rows.sum(axis=0))

    @property
    def precisions(self) -> tuple[float, ...]:
        """Of 1-grams to 4-grams, from 0 to 100; 0 where there are none."""
        return _precisions(self.rows.sum(axis=0))

    @property
    def tokens(self) -> int:
        """In all hypotheses."""
        return int(self.rows[:, -2].sum())

    @property
    def reference_tokens(self) -> int:
        """In the references closest in length."""
        return int(self.rows[:, -1].sum())

    @property
    def brevity_penalty(self) -> float:
        return brevity_penalty(self.tokens, self.reference_tokens)

    @property
    def signature(self) -> str:
        """To be pasted into a table, with sacreBLEU's words."""
        return "|".join(f"{key}:{value}" for key, value in self.facts.items())

    def interval(self) -> Interval:
        """By drawing as many sentences as there are, with repetition, a thousand times."""
        draw, size = np.random.default_rng(SEED), len(self.rows)
        scores = sorted(
            _from_counts(np.bincount(draw.choice(size, size), minlength=size) @ self.rows) for _ in range(RESAMPLES)
        )
        outside = RESAMPLES // 40  # on either side
        return Interval(math.fsum(scores) / RESAMPLES, scores[outside], scores[-1 - outside])

    def to_plain(self) -> dict[str, Any]:
        return {
            "bleu": self.bleu,
            "precisions": list(self.precisions),
            "brevity_penalty": self.brevity_penalty,
            "sentences": len(self.rows),
            "tokens": self.tokens,
            "reference_tokens": self.reference_tokens,
            "signature": self.signature,
        }


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "none", lowercase: bool = False
) -> BleuScore:
    """BLEU of lines, without smoothing; `references` holds one list of lines for each reference translation."""
    if isinstance(hypotheses, str) or any(isinstance(lines, str) for lines in references):
        raise ConfigError("hypotheses and each of the references are lists of lines, but a single text was given")
    if not hypotheses or not references:
        raise DataError(f"there is no {'reference' if hypotheses else 'hypothesis'} to score")
    for number, lines in enumerate(references, start=1):
        if len(lines) != len(hypotheses):
            raise DataError(f"there are {len(hypotheses):,} hypotheses, but {len(lines):,} lines in reference {number}")

    version = f"anaphor-{__version__}"
    prepare = None
    if tokenize != "none":
        from anaphor.metrics import sacre

        prepare = sacre.tokenizer(tokenize)
        version += f"+sacrebleu-{sacre.version()}"

    def tokens(line: str) -> Tokens:
        line = line.lower() if lowercase else line
        return (prepare(line.rstrip()) if prepare else line).split()

    rows = sentence_counts(
        ([tokens(line) for line in others], tokens(hypothesis))
        for hypothesis, *others in zip(hypotheses, *references, strict=True)
    )
    facts = {"nrefs": len(references), "case": "lc" if lowercase else "mixed", "eff": "no", "tok": tokenize}
    return BleuScore(rows, {**facts, "smooth": "none", "version": version})


def _ngrams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    if isinstance(tokens, str):
        raise ConfigError(f"{tokens[:40]!r} is a text, but tokens are wanted: split it first")
    return Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))


def _precisions(counts: Counts) -> tuple[float, ...]:
    matched, possible = counts[:ORDERS].tolist(), counts[ORDERS : 2 * ORDERS].tolist()
    return tuple(100 * a / b if b else 0.0 for a, b in zip(matched, possible, strict=True))


def _from_counts(counts: Counts) -> float:
    precisions = _precisions(counts)
    if not all(precisions):
        return 0.0
    mean = math.fsum(map(math.log, precisions)) / ORDERS
    # Of four times 100 the mean of logarithms may be rounded up.
    return brevity_penalty(int(counts[-2]), int(counts[-1])) * min(math.exp(mean), 100.0)
