"""BLEU: by its definition, to read and to check; and of a corpus of lines, fast and equal to sacreBLEU; chrF.

Tokenizers and chrF are sacreBLEU's. BLEU's counts are our own, because they are faster: `python -m benchmarks
--parts bleu` measures it (results/speed.md). Tests hold both equal to 1e-9.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anaphor import __version__
from anaphor.config import look_up
from anaphor.errors import ConfigError, DataError

ORDERS = 4
# As in sacreBLEU, so that the intervals agree, too.
RESAMPLES, SEED = 1000, 12345
TOKENIZERS = {
    "none": "the lines are tokens separated by white space",
    "13a": "words and punctuation of European languages; what most papers report",
    "intl": "the same by the properties of Unicode characters",
    "zh": "single Chinese characters, the rest as 13a",
    "char": "single characters",
    "ja-mecab": "Japanese words; needs sacrebleu[ja]",
    "ko-mecab": "Korean words; needs sacrebleu[ko]",
}
"""Those of sacreBLEU that need no download."""

Tokens = Sequence[str]
Pair = tuple[Sequence[Tokens], Tokens]
Counts = NDArray[np.int64]


def ngram_counts(references: Sequence[Tokens], hypothesis: Tokens, n: int) -> tuple[int, int]:
    """(a, b): n-grams of the hypothesis that are in a reference, and n-grams of the hypothesis, but at least 1.

    An n-gram matches as often as the reference that contains it most often.
    """
    if n < 1:
        raise ConfigError(f"n={n}: an n-gram has at least one token")
    counts = _ngrams(hypothesis, n)
    allowed = [_ngrams(reference, n) for reference in references]
    matched = sum(min(count, max((one[gram] for one in allowed), default=0)) for gram, count in counts.items())
    return matched, max(1, counts.total())


def bleu(pairs: Iterable[Pair]) -> float:
    """BLEU of (references, hypothesis) pairs, from 0 to 1, by its definition.

    A hypothesis of fewer than n tokens counts as one n-gram that does not match. sacreBLEU, and so `corpus_bleu`,
    counts none there, so its score is higher.
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
    """The length closest to the wanted one; on a tie the shorter, as in sacreBLEU."""
    return min(lengths, key=lambda length: (abs(length - wanted), length))


def brevity_penalty(length: int, wanted: int) -> float:
    """Penalty for hypotheses shorter than their references: 1 if they are not, 0 if they are empty."""
    if length >= wanted:
        return 1.0
    return math.exp(1 - wanted / length) if length else 0.0


@dataclass(frozen=True)
class Interval:
    """95 % interval of a score by bootstrap resampling of sentences."""

    mean: float
    low: float
    high: float
    resamples: int = RESAMPLES
    seed: int = SEED


@dataclass(frozen=True)
class BleuScore:
    """Counts of every sentence and how they were measured. All numbers are of the corpus."""

    rows: Counts
    """[N, 10], from `sentence_counts`."""
    facts: Mapping[str, Any]

    @property
    def bleu(self) -> float:
        """From 0 to 100."""
        return _bleu_of_counts(self.rows.sum(axis=0))

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
        """In sacreBLEU's format."""
        return "|".join(f"{key}:{value}" for key, value in self.facts.items())

    def interval(self) -> Interval:
        """By drawing as many sentences as there are, with replacement, a thousand times."""
        generator, size = np.random.default_rng(SEED), len(self.rows)
        draws = (np.bincount(generator.choice(size, size), minlength=size) for _ in range(RESAMPLES))
        scores = sorted(_bleu_of_counts(draw @ self.rows) for draw in draws)
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
    tokenizer = None
    if tokenize != "none":
        tokenizer = _load_tokenizer(tokenize)
        import sacrebleu

        version += f"+sacrebleu-{sacrebleu.__version__}"

    def split(line: str) -> Tokens:
        line = line.lower() if lowercase else line
        return (tokenizer(line.rstrip()) if tokenizer else line).split()

    rows = sentence_counts(
        ([split(line) for line in others], split(hypothesis))
        for hypothesis, *others in zip(hypotheses, *references, strict=True)
    )
    facts = {"nrefs": len(references), "case": "lc" if lowercase else "mixed", "eff": "no", "tok": tokenize}
    return BleuScore(rows, {**facts, "smooth": "none", "version": version})


def _load_tokenizer(name: str) -> Callable[[str], str]:
    """sacreBLEU's function from a line to the line with white space between its tokens."""
    look_up(TOKENIZERS, name, "tokenizer")
    from sacrebleu import BLEU

    try:
        tokenizer: Callable[[str], str] = BLEU(tokenize=name).tokenizer
    except (ImportError, RuntimeError):
        language = name.partition("-")[0]
        raise ConfigError(f"tokenizer {name!r} is not installed: pip install 'sacrebleu[{language}]'") from None
    return tokenizer


@dataclass(frozen=True)
class ChrfScore:
    """Common n-grams of characters, from 0 to 100."""

    chrf: float
    signature: str


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> ChrfScore:
    """chrF2 of untokenized lines; `references` holds one list of lines for each reference translation."""
    from sacrebleu import CHRF

    metric = CHRF(lowercase=lowercase)
    score = metric.corpus_score(hypotheses, references).score
    return ChrfScore(float(score), f"{metric.get_signature()}")


def _ngrams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    if isinstance(tokens, str):
        raise ConfigError(f"{tokens[:40]!r} is a text, but tokens are wanted: split it first")
    return Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))


def _precisions(counts: Counts) -> tuple[float, ...]:
    matched, possible = counts[:ORDERS].tolist(), counts[ORDERS : 2 * ORDERS].tolist()
    return tuple(100 * a / b if b else 0.0 for a, b in zip(matched, possible, strict=True))


def _bleu_of_counts(counts: Counts) -> float:
    precisions = _precisions(counts)
    if not all(precisions):
        return 0.0
    mean = math.fsum(map(math.log, precisions)) / ORDERS
    # The mean of the logarithms of four times 100 may be rounded up.
    return brevity_penalty(int(counts[-2]), int(counts[-1])) * min(math.exp(mean), 100.0)


def sentence_counts(pairs: Iterable[Pair]) -> Counts:
    """One row for each (references, hypothesis), [N, 10]; the rows of a corpus add up to the counts of the corpus.

    First the n-grams that match, for n from 1 to 4, then the n-grams of the hypothesis, then its length and that of the
    reference closest to it, the shorter one on a tie.
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
    tokens = list(chain.from_iterable(texts))
    ids = {token: number for number, token in enumerate(dict.fromkeys(tokens))}

    matches = _matches(np.fromiter(map(ids.__getitem__, tokens), np.int64, len(tokens)), lengths, sentence, role)
    hypothesis = lengths[starts]
    possible = np.maximum(hypothesis[:, None] - np.arange(ORDERS), 0)
    base = int(lengths.max()) + 1
    rank = np.abs(lengths - hypothesis[sentence]) * base + lengths  # by distance, then by length
    rank[role == 0] = np.iinfo(np.int64).max
    closest = np.minimum.reduceat(rank, starts) % base
    return np.column_stack((matches, possible, hypothesis, closest))


def _matches(tokens: Counts, lengths: Counts, sentence: Counts, role: Counts) -> Counts:
    """Clipped matches of every sentence, [N, 4].

    The id of an n-gram is made from that of its first n - 1 tokens, which includes the sentence, and that of its last
    token. Equal ids are equal n-grams of one sentence, so sorting the ids counts them.
    """
    rows, roles = int(sentence[-1]) + 1, int(role.max()) + 1
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(tokens))  # tokens from here to the end of the text
    role = np.repeat(role, lengths)
    start = np.arange(len(tokens))  # where an n-gram begins
    kinds = int(tokens.max(initial=0)) + 1
    keys, word = np.unique(np.repeat(sentence, lengths) * kinds + tokens, return_inverse=True)
    gram, owner = word, keys // kinds  # the sentence that each n-gram belongs to
    matches = np.zeros((rows, ORDERS), np.int64)
    for order in range(ORDERS):
        if order:
            longer = left[start] > order
            start = start[longer]
            keys, gram = np.unique(gram[longer] * len(word) + word[start + order], return_inverse=True)
            owner = owner[keys // len(word)]
        times = np.bincount(gram * roles + role[start], minlength=len(keys) * roles).reshape(-1, roles)
        matched = np.minimum(times[:, 0], times[:, 1:].max(axis=1))
        matches[:, order] = np.bincount(owner, matched, rows)
        # Where n tokens do not match, no more tokens will.
        kept = (matched > 0)[gram]
        start, gram = start[kept], gram[kept]
    return matches
