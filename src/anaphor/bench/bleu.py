"""Corpus BLEU against sacreBLEU's, on the same lines and with the same result, in turns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from anaphor.bench.finding import Finding
from anaphor.bench.timing import in_turns, ratio
from anaphor.metrics.bleu import corpus_bleu

SENTENCES = 30_000
VOCABULARY = 10_000
SHORTEST, LONGEST = 4, 24


def drawn(sentences: int) -> tuple[list[str], list[str]]:
    """Hypotheses and references: words as frequent as in a language, and every fourth one mistranslated."""
    draw = np.random.default_rng(0)
    share = 1 / np.arange(1, VOCABULARY + 1)
    lengths = draw.integers(SHORTEST, LONGEST + 1, sentences)
    words = draw.choice(VOCABULARY, (2, lengths.sum()), p=share / share.sum())
    right, wrong = words
    guessed = np.where(draw.random(len(right)) < 0.25, wrong, right)
    ends = np.cumsum(lengths)[:-1]
    hypotheses, references = (
        [" ".join(f"w{word}" for word in line) for line in np.split(side, ends)] for side in (guessed, right)
    )
    return hypotheses, references


def ours(hypotheses: list[str], references: list[str]) -> float:
    return corpus_bleu(hypotheses, [references]).bleu


def theirs(hypotheses: list[str], references: list[str]) -> float:
    from sacrebleu import BLEU

    # `force` keeps it from looking for tokens that should not be there.
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return float(metric.corpus_score(hypotheses, [references]).score)


def measure(pairs: int, tick: Callable[[str], None]) -> list[Finding]:
    lines = drawn(SENTENCES)
    times = in_turns(partial(ours, *lines), partial(theirs, *lines), pairs, partial(tick, "BLEU"))
    found = ratio(times)
    seconds = [sum(pair[which] for pair in times) / len(times) for which in (0, 1)]
    return [
        Finding(
            what=f"BLEU of {SENTENCES:,} sentence pairs",
            peer="sacreBLEU, tokenize=none, no smoothing",
            value=found.value,
            low=found.low,
            high=found.high,
            promise="at least as fast",
            kept=found.value >= 1,
            detail=(
                f"{seconds[0]:.2f} s against {seconds[1]:.2f} s; {SHORTEST} to {LONGEST} tokens a sentence, one "
                f"reference; {found.pairs} pairs in turns"
            ),
        )
    ]
