"""Numbers of sheet 000: attention as a matrix, its form, and the batches of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from anaphor.course.numbers.values import Numbers, seed_random, show


def kronecker(student: str) -> Numbers:
    """The matrix I ⊗ A of two tokens and two components, and what it makes of vec(X)."""
    draw = seed_random("000.1.1", student)
    parts = draw.sample([1, 2, 3, 4, 6, 7], 2)
    A = [[Fraction(part, 8), 1 - Fraction(part, 8)] for part in parts]
    X = [[draw.randint(-3, 3), draw.choice((1, 2, 4))], [draw.choice((-2, -1, 5)), draw.randint(-3, 3)]]
    zero = Fraction(0)
    M = [[*A[0], zero, zero], [*A[1], zero, zero], [zero, zero, *A[0]], [zero, zero, *A[1]]]
    stacked = [X[row][column] for column in (0, 1) for row in (0, 1)]
    result = [sum((m * x for m, x in zip(row, stacked, strict=True)), zero) for row in M]
    return Numbers({"A": show(A), "X": show(X)}, {"M": M, "vecY": result})


def form(student: str) -> Numbers:
    """How many entries M has, how many may differ from zero, and how many can be chosen."""
    draw = seed_random("000.1.2", student)
    tokens, width = draw.randint(4, 9), draw.choice((2, 3, 5, 6, 8))
    counts = {"entries": (tokens * width) ** 2, "nonzero": width * tokens**2, "free": tokens * (tokens - 1)}
    return Numbers({"N": str(tokens), "d": str(width)}, counts)


def batches(student: str) -> Numbers:
    """What becomes of a text that is cut into columns and segments."""
    draw = seed_random("000.2.0", student)
    rows, bptt = draw.choice((4, 5, 6, 8)), draw.choice((3, 4, 5, 7))
    length, rest = draw.randint(40, 90), draw.randint(1, rows - 1)
    segments = -(-(length - 1) // bptt)
    counts = {
        "steps": length,
        "left_out": rest,
        "batches": segments,
        "last": length - 1 - (segments - 1) * bptt,
        "unseen": rows - 1,
    }
    return Numbers({"N": str(length * rows + rest), "B": str(rows), "bptt": str(bptt)}, counts)


NUMBERS: Mapping[str, Callable[[str], Numbers]] = {
    "000.1.1-numbers": kronecker,
    "000.1.2-numbers": form,
    "000.2.0c": batches,
}
