"""BLEU: by its definition, to read and to check; of a corpus of lines, counted and scored by sacreBLEU; chrF."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anaphor import __version__
from anaphor.config import look_up
from anaphor.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sacrebleu import BLEU
    from sacrebleu.metrics.bleu import BLEUScore

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
    """[N, 10]: the n-grams that match, for n from 1 to 4; the n-grams of the hypothesis; its length, and that of the
    reference closest in length."""
    metadata: Mapping[str, Any]

    @property
    def bleu(self) -> float:
        """From 0 to 100."""
        return _bleu_of_counts(self.rows.sum(axis=0))

    @property
    def precisions(self) -> tuple[float, ...]:
        """Of 1-grams to 4-grams, from 0 to 100; 0 where there are none."""
        return tuple(_score_of_counts(self.rows.sum(axis=0)).precisions)

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
        return "|".join(f"{key}:{value}" for key, value in self.metadata.items())

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

    metric = _load_metric(tokenize, lowercase)
    scored = [metric.sentence_score(line, others) for line, *others in zip(hypotheses, *references, strict=True)]
    rows = np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in scored], np.int64)
    version = f"anaphor-{__version__}"
    if tokenize != "none":
        import sacrebleu

        version += f"+sacrebleu-{sacrebleu.__version__}"
    metadata = {"nrefs": len(references), "case": "lc" if lowercase else "mixed", "eff": "no", "tok": tokenize}
    return BleuScore(rows, {**metadata, "smooth": "none", "version": version})


def _load_metric(tokenize: str, lowercase: bool) -> BLEU:
    """sacreBLEU's metric, for the counts of sentences: its effective order changes their scores alone."""
    look_up(TOKENIZERS, tokenize, "tokenizer")
    from sacrebleu import BLEU

    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase, effective_order=True)
    except (ImportError, RuntimeError):
        language = tokenize.partition("-")[0]
        raise ConfigError(f"tokenizer {tokenize!r} is not installed: pip install 'sacrebleu[{language}]'") from None


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


def _score_of_counts(counts: Counts) -> BLEUScore:
    from sacrebleu import BLEU

    *ngrams, length, reference_length = counts.tolist()
    return BLEU.compute_bleu(ngrams[:ORDERS], ngrams[ORDERS:], length, reference_length)


def _bleu_of_counts(counts: Counts) -> float:
    return min(_score_of_counts(counts).score, 100.0)  # the mean of four logarithms of 100 may be rounded up
