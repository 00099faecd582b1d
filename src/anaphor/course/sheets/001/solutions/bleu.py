"""Sheet 001, problem 3: BLEU. A sentence is a list of words."""

import math
from collections import Counter

Sentence = list[str]


def ngram_counts(references: list[Sentence], hypothesis: Sentence, n: int) -> tuple[int, int]:
    """001.3.1: a_n and b_n of one hypothesis, which may have several references.

    a_n counts the n-grams of the hypothesis, each at most as often as in the reference that has it most often.
    b_n counts all n-grams of the hypothesis, and is at least 1.
    """

    def count(words: Sentence) -> Counter:
        return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))

    most: Counter = Counter()
    for reference in references:
        most |= count(reference)
    own = count(hypothesis)
    return sum((own & most).values()), max(1, sum(own.values()))


def compute_bleu(references: list[list[Sentence]], hypotheses: list[Sentence]) -> float:
    """001.3.2: BLEU of a corpus, from 0 to 1. The first hypothesis has the references `references[0]`, and so on."""
    closest = [
        min((abs(len(one) - len(words)), len(one)) for one in several)[1]
        for several, words in zip(references, hypotheses, strict=True)
    ]
    length = sum(map(len, hypotheses))
    if length == 0:
        return 0.0
    logarithms = []
    for n in (1, 2, 3, 4):
        counts = [ngram_counts(several, words, n) for several, words in zip(references, hypotheses, strict=True)]
        clipped, whole = sum(a for a, _ in counts), sum(b for _, b in counts)
        if clipped == 0:
            return 0.0
        logarithms.append(math.log(clipped / whole))
    return min(1.0, math.exp(1 - sum(closest) / length)) * math.exp(sum(logarithms) / 4)
