"""BLEU of a corpus against sacreBLEU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from anaphor.metrics.bleu import corpus_bleu
from benchmarks.timing import Finding, estimate_ratio, mean_seconds, time_alternately

SENTENCES = 30_000
WORDS = 10_000
MIN_LENGTH, MAX_LENGTH = 4, 24


def draw_lines(sentences: int) -> tuple[list[str], list[str]]:
    """Hypotheses and references: words as frequent as in a language, every fourth one mistranslated."""
    generator = np.random.default_rng(0)
    share = 1 / np.arange(1, WORDS + 1)
    lengths = generator.integers(MIN_LENGTH, MAX_LENGTH + 1, sentences)
    right, wrong = generator.choice(WORDS, (2, lengths.sum()), p=share / share.sum())
    translated = np.where(generator.random(len(right)) < 0.25, wrong, right)
    ends = np.cumsum(lengths)[:-1]
    hypotheses, references = (
        [" ".join(f"w{word}" for word in line) for line in np.split(side, ends)] for side in (translated, right)
    )
    return hypotheses, references


def run_ours(hypotheses: list[str], references: list[str]) -> float:
    return corpus_bleu(hypotheses, [references]).bleu


def run_sacrebleu(hypotheses: list[str], references: list[str]) -> float:
    from sacrebleu import BLEU

    # `force` turns off its warning about tokenized text.
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return float(metric.corpus_score(hypotheses, [references]).score)


def count_ticks(pairs: int, device: torch.device) -> int:
    return pairs


def measure(pairs: int, device: torch.device, tick: Callable[[str], None]) -> list[Finding]:
    """Corpus BLEU against sacreBLEU's, on the same lines and with the same result."""
    lines = draw_lines(SENTENCES)
    times = time_alternately(partial(run_ours, *lines), partial(run_sacrebleu, *lines), pairs, partial(tick, "BLEU"))
    ratio = estimate_ratio(times)
    ours, theirs = mean_seconds(times)
    return [
        ratio.to_finding(
            f"BLEU of {SENTENCES:,} sentence pairs",
            "sacreBLEU, tokenize=none, no smoothing",
            promise="at least as fast",
            kept=ratio.value >= 1,
            detail=f"{ours:.2f} s against {theirs:.2f} s; {MIN_LENGTH} to {MAX_LENGTH} tokens each, one reference",
        )
    ]
