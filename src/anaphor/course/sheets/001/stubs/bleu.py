"""Sheet 001, problem 3: BLEU. A sentence is a list of words."""

import math
from collections import Counter

Sentence = list[str]


def ngram_counts(references: list[Sentence], hypothesis: Sentence, n: int) -> tuple[int, int]:
    """001.3.1: a_n and b_n of one hypothesis, which may have several references.

    a_n counts the n-grams of the hypothesis, each at most as often as in the reference that has it most often.
    b_n counts all n-grams of the hypothesis, and is at least 1.
    """
    a_n = ...  # 001.3.1: your code
    b_n = ...
    return a_n, b_n


def compute_bleu(references: list[list[Sentence]], hypotheses: list[Sentence]) -> float:
    """001.3.2: BLEU of a corpus, from 0 to 1. The first hypothesis has the references `references[0]`, and so on."""
    return ...  # 001.3.2: your code, with ngram_counts
