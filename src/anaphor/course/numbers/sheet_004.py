"""Numbers of sheet 004: queries that select or average values, and keys that change what a query finds.

Many queries are right, so a judge computes the weights of the one that was given. The keys of a student have the same
length and differ, which makes each of them selectable: q = c k has its largest score at k.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from anaphor.course.numbers.choices import Question, ask
from anaphor.course.numbers.names import student_names
from anaphor.course.numbers.values import Numbers, seed_random, show

Vector = tuple[float, ...]

ALL = tuple(
    tuple(0.2 * sign * size for sign, size in zip(signs, sizes, strict=True))
    for sizes in ((1, 2, 2), (2, 1, 2), (2, 2, 1))
    for signs in itertools.product((-1, 1), repeat=3)
)
"""Keys of length 0.6."""
SCALE = 200.0
"""Of our own queries: the smallest difference of two scores is then 8."""
CERTAIN = 0.99
CLOSE = 0.01


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


@cache
def keys(student: str) -> tuple[Vector, ...]:
    """Four keys, of which the first two can be averaged: the others are further from the middle between them."""
    draw = seed_random("004.1", student)
    while True:
        found = draw.sample(ALL, 4)
        middle = [a + b for a, b in zip(found[0], found[1], strict=True)]
        both, others = dot(middle, found[0]), [dot(middle, key) for key in found[2:]]
        if 0.1 < both < 0.6 and max(others) < both - 0.07:
            return tuple(found)


def average_query(student: str) -> Vector:
    """A query that averages the first two values."""
    first, second, *_ = keys(student)
    return tuple(SCALE * (a + b) for a, b in zip(first, second, strict=True))


def find_weights(query: Any, with_keys: Sequence[Sequence[float]]) -> list[float] | None:
    """Weights of the keys; None where the query is no list of three numbers."""
    if not _is_vector(query):
        return None
    scores = [dot(query, key) for key in with_keys]
    parts = [math.exp(score - max(scores)) for score in scores]
    return [part / sum(parts) for part in parts]


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(one, float) for one in value)


def _compare(weights: list[float] | None, wanted: Sequence[float]) -> str:
    """What is wrong with weights, without a query that is right."""
    if weights is None:
        return "not a list of three numbers"
    if all(abs(weight - one) <= CLOSE for weight, one in zip(weights, wanted, strict=True)):
        return ""
    return f"its weights are {show([round(weight, 3) for weight in weights])}"


def _one_hot(place: int) -> list[float]:
    return [1.0 if key == place else 0.0 for key in range(4)]


def _given_keys(student: str, **more: str) -> dict[str, str]:
    return {"keys": show([[round(part, 1) for part in key] for key in keys(student)]), **more}


def _rounded(vector: Sequence[float]) -> list[float]:
    return [round(part, 3) for part in vector]


def select_one(student: str) -> Numbers:
    wanted = seed_random("004.1.2", student).randrange(4)
    own = keys(student)

    def judge(found: Mapping[str, Any]) -> dict[str, str]:
        return {name: _compare(find_weights(value, own), _one_hot(wanted)) for name, value in found.items()}

    return Numbers(_given_keys(student, j=str(wanted)), {"q": _rounded([SCALE * part for part in own[wanted]])}, judge)


def select_each(student: str) -> Numbers:
    own = keys(student)

    def judge(found: Mapping[str, Any]) -> dict[str, str]:
        rows = found.get("Q")
        if rows is None:
            return {}
        if not isinstance(rows, list) or len(rows) != 4:
            return {"Q": "not a list of four queries"}
        wrong = [_compare(find_weights(row, own), _one_hot(place)) for place, row in enumerate(rows)]
        return {"Q": next((f"query {place}: {text}" for place, text in enumerate(wrong) if text), "")}

    return Numbers(_given_keys(student), {"Q": [_rounded([SCALE * part for part in key]) for key in own]}, judge)


def average_all(student: str) -> Numbers:
    own = keys(student)

    def judge(found: Mapping[str, Any]) -> dict[str, str]:
        return {name: _compare(find_weights(value, own), [0.25] * 4) for name, value in found.items()}

    return Numbers(_given_keys(student), {"q": [0.0, 0.0, 0.0]}, judge)


def average_two(student: str) -> Numbers:
    own = keys(student)

    def judge(found: Mapping[str, Any]) -> dict[str, str]:
        return {name: _compare(find_weights(value, own), [0.5, 0.5, 0.0, 0.0]) for name, value in found.items()}

    return Numbers(_given_keys(student), {"q": _rounded(average_query(student))}, judge)


def _with_third(student: str, key: Any) -> list[float] | None:
    """Weights of our query, where another third key stands in."""
    if not _is_vector(key):
        return None
    own = [*keys(student)]
    own[2] = tuple(key)
    return find_weights([*average_query(student)], own)


def average_three(student: str) -> Numbers:
    def judge(found: Mapping[str, Any]) -> dict[str, str]:
        third = 1 / 3
        return {name: _compare(_with_third(student, key), [third, third, third, 0]) for name, key in found.items()}

    query = show(_rounded(average_query(student)))
    return Numbers(_given_keys(student, q=query), {"k2": _rounded(keys(student)[0])}, judge)


def take_over(student: str) -> Numbers:
    query = average_query(student)
    length = math.sqrt(dot(query, query))

    def judge(found: Mapping[str, Any]) -> dict[str, str]:
        wrong = {}
        for name, key in found.items():
            wrong[name] = _compare(_with_third(student, key), _one_hot(2))
            if not wrong[name] and abs(math.sqrt(dot(key, key)) - 1) > CLOSE:
                wrong[name] = f"its length is {math.sqrt(dot(key, key)):.3g}"
        return wrong

    unit = [round(part / length, 4) for part in query]
    return Numbers(_given_keys(student, q=show(_rounded(query))), {"k2": unit}, judge)


def batch_shapes(student: str) -> Numbers:
    draw = seed_random("004.3.2c", student)
    lengths = sorted(draw.sample(range(6, 40), 4))
    places = 4 * lengths[-1]
    expected = {
        "input_ids": [4, lengths[-1]],
        "labels": [4],
        "real": sum(lengths),
        "share": (places - sum(lengths)) / places,
    }
    return Numbers({"lengths": ", ".join(map(str, draw.sample(lengths, 4)))}, expected)


MODES = ("It sets some activations to zero.", "It passes everything on unchanged.", "It uses the mean of the batch.",
         "It uses the mean that it collected in training.")  # fmt: skip


def modes(student: str) -> Numbers:
    def question(right: int) -> Question:
        return Question(right=(MODES[right],), wrong=tuple(one for one in MODES if one != MODES[right]))

    names = ("dropout_training", "dropout_evaluation", "batchnorm_training", "batchnorm_evaluation")
    return ask("004.3.3b", student, {name: question(place) for place, name in enumerate(names)})


def first_update(student: str) -> Numbers:
    """One parameter, one step of three optimizers at the same learning rate."""
    draw = seed_random("004.3.4c", student)
    weight, gradient, lr = draw.choice((0.5, 1.0, 2.0)), draw.choice((-0.02, 0.01, 0.04)), draw.choice((0.01, 0.1))
    sign = math.copysign(1.0, gradient)
    shown = {"w": show(weight), "g": show(gradient), "lr": show(lr)}
    return Numbers(shown, {"sgd": -lr * gradient, "adagrad": -lr * sign, "adam": -lr * sign})


def sentences(student: str) -> Numbers:
    """A sentence in the words of the student's stories, and the same words in another order."""
    name, other, *_ = student_names(student)
    verb = seed_random("004.2.2c", student).choice(["sees", "hears", "helps", "trusts"])
    return Numbers({"sentence": f"{name} {verb} {other} .", "shuffled": f". {other} {name} {verb}"})


NUMBERS: Mapping[str, Callable[[str], Numbers]] = {
    "004.1.2a": select_one,
    "004.1.2b": select_each,
    "004.1.3a": average_all,
    "004.1.3b": average_two,
    "004.1.4a": average_three,
    "004.1.4b": take_over,
    "004.2.2c": sentences,
    "004.3.2c": batch_shapes,
    "004.3.3b-modes": modes,
    "004.3.4c": first_update,
}
