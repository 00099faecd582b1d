"""Numbers of sheet 001: a network of five numbers, the same with vectors, a layer of attention, n-gram counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from anaphor.course.numbers.names import student_names
from anaphor.course.numbers.values import Numbers, seed_random, show

Vector = list[Fraction]


def scalars(student: str) -> dict[str, Fraction]:
    """Inputs of problem 1.1; the ReLU is active, as on the sheet."""
    draw = seed_random("001.1.1", student)
    return {
        "x": Fraction(draw.randint(1, 3)),
        "w1": Fraction(1, draw.randint(2, 6)),
        "b1": Fraction(draw.randint(0, 1), 2),
        "w2": Fraction(draw.choice((-1, 1)), draw.randint(2, 5)),
        "b2": Fraction(draw.randint(-1, 1)),
    }


def scalar_output(one: Mapping[str, Fraction]) -> Fraction:
    return one["w2"] * (one["w1"] * one["x"] + one["b1"]) + one["b2"]


def scalar_gradients(one: Mapping[str, Fraction], skip: int) -> dict[str, Fraction]:
    return {
        "b2": Fraction(1),
        "w2": one["w1"] * one["x"] + one["b1"],
        "b1": one["w2"],
        "w1": one["w2"] * one["x"],
        "x": one["w2"] * one["w1"] + skip,
    }


def scalar_forward(student: str) -> Numbers:
    one = scalars(student)
    return Numbers(_shown(one), {"z5": scalar_output(one)})


def scalar_backward(student: str) -> Numbers:
    one = scalars(student)
    return Numbers(_shown(one), scalar_gradients(one, skip=0))


def scalar_skip(student: str) -> Numbers:
    one = scalars(student)
    return Numbers(_shown(one), {"z6": scalar_output(one) + one["x"], **scalar_gradients(one, skip=1)})


def vectors(student: str) -> dict[str, Any]:
    """Inputs of problem 1.2; one unit of the ReLU is active and one is not, as on the sheet."""
    draw = seed_random("001.1.2", student)
    x = [draw.randint(1, 3), draw.randint(1, 3)]
    off = [-draw.randint(1, 3), -draw.randint(1, 2)]
    on = [draw.randint(1, 3), draw.randint(1, 2)]
    W = [off, on] if draw.random() < 0.5 else [on, off]
    return {"x": x, "W": W, "b1": [0, draw.randint(0, 1)], "u": [draw.randint(1, 3), draw.randint(-3, -1)], "b2": 1}


def vector_network(one: Mapping[str, Any]) -> dict[str, Any]:
    """Output and gradients."""
    z2 = [
        sum(w * x for w, x in zip(row, one["x"], strict=True)) + b for row, b in zip(one["W"], one["b1"], strict=True)
    ]
    z3 = [max(0, z) for z in z2]
    back = [u if z > 0 else 0 for u, z in zip(one["u"], z2, strict=True)]
    return {
        "z5": sum(u * z for u, z in zip(one["u"], z3, strict=True)) + one["b2"],
        "b2": 1,
        "u": z3,
        "b1": back,
        "W": [[b * x for x in one["x"]] for b in back],
        "x": [sum(back[row] * one["W"][row][column] for row in (0, 1)) for column in (0, 1)],
    }


def vector_forward(student: str) -> Numbers:
    one = vectors(student)
    return Numbers(_shown(one), {"z5": vector_network(one)["z5"]})


def vector_backward(student: str) -> Numbers:
    one = vectors(student)
    return Numbers(_shown(one), {name: value for name, value in vector_network(one).items() if name != "z5"})


def layer(student: str) -> Numbers:
    """Problem 2: two heads of width one that read one component each, as on the sheet."""
    draw = seed_random("001.2", student)
    x1, x2 = ([draw.choice((-2, -1, 1, 2)), draw.choice((-1, 1, 2, 3))] for _ in range(2))
    if x1 == x2:
        x2 = [-x1[0], x1[1]]
    rows: list[list[float]] = [[], []]
    for head in (0, 1):
        keys = [x1[head], x2[head]]
        for row, query in zip(rows, keys, strict=True):
            weights = [math.exp(query * key) for key in keys]
            row.append(sum(w * v for w, v in zip(weights, keys, strict=True)) / sum(weights) + query)
    return Numbers({"x1": show(x1), "x2": show(x2)}, {"z1": rows[0], "z2": rows[1]})


WORDS = ["the", "a", "cat", "dog", "bird", "sat", "ran", "on", "under", "mat", "roof", "old"]


def sentences(student: str) -> tuple[list[list[str]], list[str]]:
    """Two references and a hypothesis that repeats words, so that clipping matters."""
    draw = seed_random("001.3.1", student)
    animal, other = draw.sample(["cat", "dog", "bird", "horse"], 2)
    place = draw.choice(["mat", "roof", "wall", "bench"])
    first = f"the {animal} sat on the {place} near the {other}".split()
    second = f"there is a {animal} and a {other} on the {place}".split()
    repeated = draw.choice(["the the the", "a a a", "the the the the"])
    hypothesis = f"{repeated} {animal} on the {place} {draw.choice(['near the', 'and a'])} {other}".split()
    return [first, second], hypothesis


def ngram_counts(references: list[list[str]], hypothesis: list[str], n: int) -> list[int]:
    def counts(words: list[str]) -> Counter[tuple[str, ...]]:
        return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))

    own, theirs = counts(hypothesis), [counts(reference) for reference in references]
    clipped = sum(min(count, max(other[gram] for other in theirs)) for gram, count in own.items())
    return [clipped, max(1, sum(own.values()))]


def ngrams(student: str) -> Numbers:
    references, hypothesis = sentences(student)
    given = {"r1": " ".join(references[0]), "r2": " ".join(references[1]), "h": " ".join(hypothesis)}
    return Numbers(given, {f"n{n}": ngram_counts(references, hypothesis, n) for n in (1, 2, 3, 4)})


def attentional_vector(student: str) -> Numbers:
    """Problem 3.7: one query and two keys through both functions."""
    draw = seed_random("001.3.7", student)
    q = [draw.choice((-1, 1, 2)), draw.choice((-1, 1))]
    first, second = [1, draw.choice((0, 1))], [draw.choice((-1, 0)), 1]
    W = [[1, draw.choice((0, 1))], [0, 1]]
    projected = [sum(q[row] * W[row][column] for row in (0, 1)) for column in (0, 1)]
    scores = [math.exp(sum(a * b for a, b in zip(projected, key, strict=True))) for key in (first, second)]
    weights = [score / sum(scores) for score in scores]
    context = [sum(w * key[place] for w, key in zip(weights, (first, second), strict=True)) for place in (0, 1)]
    vector = [math.tanh(context[0]), math.tanh(context[1] + q[1])]
    given = {"Q": show([[q]]), "K": show([[first, second]]), "W": show(W)}
    return Numbers(given, {"weights": weights, "vector": vector})


def sentence(student: str) -> Numbers:
    """A sentence in the words of the student's pairs."""
    name, other = student_names(student)[:2]
    verb = seed_random("001.3.9", student).choice(["sees", "hears", "helps", "trusts"])
    return Numbers({"sentence": f"{name} {verb} {other} ."})


def _shown(one: Mapping[str, Any]) -> dict[str, str]:
    return {name: show(value) for name, value in one.items()}


def _only_given(make: Callable[[str], Numbers]) -> Callable[[str], Numbers]:
    """The inputs of an exercise whose result is not a number."""
    return lambda student: Numbers(make(student).given)


NUMBERS: Mapping[str, Callable[[str], Numbers]] = {
    "001.1.1a": _only_given(scalar_forward),
    "001.1.1b": scalar_forward,
    "001.1.1c": scalar_backward,
    "001.1.1d": scalar_skip,
    "001.1.2a": _only_given(vector_forward),
    "001.1.2b": vector_forward,
    "001.1.2c": vector_backward,
    "001.2.1": _only_given(layer),
    "001.2.2": layer,
    "001.3.1": ngrams,
    "001.3.7": attentional_vector,
    "001.3.9": sentence,
}
