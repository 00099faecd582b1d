"""Numbers of sheet 003: questions with options, a recurrent network by hand, masked weights, spread of dot products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from anaphor.course.numbers.choices import Question, ask
from anaphor.course.numbers.values import Numbers, seed_random, show

Row = list[float]

CHOICES: Mapping[str, Question] = {
    "003.1.1": Question(
        right=("From the text itself: the next token is the label.",),
        wrong=(
            "From people who mark each word as right or wrong.",
            "From a second model that was trained before.",
            "From a dictionary of the language.",
        ),
    ),
    "003.1.2": Question(
        right=("The architecture says which functions follow each other, and the weights are the numbers in them.",),
        wrong=(
            "Architecture and weights are two words for the same file.",
            "The weights say how many layers there are, the architecture holds their numbers.",
            "The architecture is what is learned, and the weights are chosen before training.",
        ),
    ),
    "003.1.3": Question(right=("A decoder.",), wrong=("An encoder.", "A classifier.", "A tokenizer.")),
    "003.1.4": Question(right=("An encoder.",), wrong=("A decoder.", "A sampler.", "A tokenizer.")),
    "003.1.5": Question(
        right=(
            "Whether a review is friendly.",
            "In which language a recording is spoken.",
        ),
        wrong=("What is said in a recording, word by word.", "The translation of a sentence."),
    ),
    "003.1.6": Question(
        right=(
            "The text that it was trained on.",
            "A pretrained model that it was fine-tuned from.",
            "The measure that it was selected by.",
        ),
        wrong=("The number of threads that it runs on.",),
    ),
    "003.1.7": Question(
        right=("Tokenizer, model, tokenizer.",),
        wrong=("Model, tokenizer, model.", "Tokenizer, tokenizer, model.", "Model, tokenizer."),
    ),
    "003.1.8": Question(
        right=("Three: sequences, tokens of a sequence, size of a vector.",),
        wrong=(
            "Two: sequences, tokens of a sequence.",
            "Two: tokens of a sequence, size of a vector.",
            "Four: sequences, heads, layers, tokens.",
        ),
    ),
    "003.1.9": Question(
        right=("The probability of token t, given all tokens before it.",),
        wrong=(
            "The probability of token t, given all tokens up to t.",
            "The probability of token t alone.",
            "The probability of all tokens before t.",
        ),
    ),
    "003.1.10": Question(
        right=("Gradients grew with every step back, until an update was too large for the numbers.",),
        wrong=(
            "Gradients shrank with every step back to zero.",
            "A ReLU got a large positive input.",
            "A sigmoid got a large positive input.",
        ),
    ),
    "003.1.11": Question(
        right=("From the past to the future, because no later day has an effect.",),
        wrong=(
            "In both directions, because more context is always better.",
            "In both directions, because gradients are then more exact.",
            "In neither: only the same day has an effect.",
        ),
    ),
    "003.1.12": Question(
        right=("The target, given the source.",),
        wrong=("The source.", "The source and the target together.", "The source, given the target."),
    ),
    "003.1.13": Question(
        right=("Where the inputs are long.",),
        wrong=(
            "Where the inputs are short.",
            "Where there is little memory.",
            "Where one token comes at a time, forever.",
        ),
    ),
    "003.1.14": Question(
        right=("One or a few layers on top, which turn the vectors of the model into what a task needs.",),
        wrong=(
            "The first layer, which turns tokens into vectors.",
            "The part of a layer that computes weights of attention, and nothing else.",
            "The file with the settings of a model.",
        ),
    ),
    "003.1.15": Question(
        right=("Cutting off what is too long.", "Filling up what is too short.", "A mask for what was filled in."),
        wrong=("Tensors of another type.",),
    ),
    "003.1.16": Question(
        right=("The ids stand for other words in the model, and nothing need fail.",),
        wrong=(
            "Nothing: ids are the same for all models of a language.",
            "Only the speed changes.",
            "It always fails with an error.",
        ),
    ),
}
"""The questions are in the sheet; these are their options."""


def choose(exercise: str, student: str) -> Numbers:
    return ask(exercise, student, {"answer": CHOICES[exercise]})


def network(student: str) -> dict[str, Any]:
    """A recurrent network without activation, with a state of two numbers, two classes and two inputs."""
    draw = seed_random("003.2", student)
    return {
        "W_hh": [
            [draw.choice((0.5, 1.0)), draw.choice((-0.5, 0.5))],
            [draw.choice((0.0, 0.5)), draw.choice((-1.0, 1.0))],
        ],
        "W_hx": [draw.choice((1.0, 2.0)), draw.choice((-1.0, 1.0))],
        "W_yh": [[draw.choice((1.0, -1.0)), 0.5], [draw.choice((0.5, -0.5)), draw.choice((1.0, -1.0))]],
        "x": [draw.choice((1.0, -1.0)), draw.choice((1.0, 0.5, -0.5))],
        "y": [draw.randint(0, 1), draw.randint(0, 1)],
    }


def times(matrix: list[Row], vector: Row) -> Row:
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]


def transposed(matrix: list[Row]) -> list[Row]:
    return [list(column) for column in zip(*matrix, strict=True)]


def softmax(scores: Row) -> Row:
    parts = [math.exp(score) for score in scores]
    return [part / sum(parts) for part in parts]


def outer(first: Row, second: Row) -> list[Row]:
    return [[a * b for b in second] for a in first]


def backpropagate(one: Mapping[str, Any]) -> dict[str, Any]:
    """The gradients of problem 2 by its own formulas."""
    h0: Row = [0.0, 0.0]
    h1 = [w * one["x"][0] for w in one["W_hx"]]
    h2 = [a + w * one["x"][1] for a, w in zip(times(one["W_hh"], h1), one["W_hx"], strict=True)]
    g_o = [
        [p - (1 if place == label else 0) for place, p in enumerate(softmax(times(one["W_yh"], h)))]
        for h, label in zip((h1, h2), one["y"], strict=True)
    ]
    at_h2 = times(transposed(one["W_yh"]), g_o[1])
    at_h1 = times(transposed(one["W_hh"]), at_h2)  # of J_2
    through = [outer(at_h2, h1), outer(at_h1, h0)]
    total = [[sum(part[row][column] for part in through) for column in (0, 1)] for row in (0, 1)]
    return {"g_o1": g_o[0], "g_o2": g_o[1], "g_h2": at_h2, "g_h1": at_h1, "g_W_hh": total}


def _shown(one: Mapping[str, Any]) -> dict[str, str]:
    x1, x2 = (show(value) for value in one["x"])
    y1, y2 = (show([1 - label, label]) for label in one["y"])
    matrices = {name: show(one[name]) for name in ("W_hh", "W_hx", "W_yh")}
    return {**matrices, "x1": x1, "x2": x2, "y1": y1, "y2": y2}


def gradients(student: str) -> Numbers:
    one = network(student)
    return Numbers(_shown(one), backpropagate(one))


def masked(student: str) -> Numbers:
    """Weights of four keys, and what they are without one of them."""
    draw = seed_random("003.3.4", student)
    scores = [float(draw.choice((-1, 0, 1, 2))) for _ in range(4)]
    hidden = draw.randint(0, 3)
    kept = softmax([score for key, score in enumerate(scores) if key != hidden])
    weights = [*kept[:hidden], 0.0, *kept[hidden:]]
    wrong = softmax(scores)[hidden]
    shown = {"scores": show(scores), "hidden": str(hidden)}
    return Numbers(shown, {"weights": weights, "before": wrong})


def spread(student: str, *, variance: bool) -> Numbers:
    """Mean or variance of q·k."""
    draw = seed_random("003.3.5", student)
    size, mean, sigma = draw.choice((16, 32, 64, 128)), draw.choice((0.25, 0.5, 1.0, 2.0)), draw.choice((0.5, 1.0, 2.0))
    shown = {"h": str(size), "mu": show(mean), "sigma": show(sigma)}
    if variance:
        return Numbers(shown, {"variance": size * (sigma**4 + 2 * mean**2 * sigma**2)})
    return Numbers(shown, {"mean": size * mean**2})


def crossover(student: str) -> Numbers:
    """From which length on the quadratic part is the larger one: 6 n h² for three projections, 4 n² h for the rest."""
    size = seed_random("003.3.1", student).choice((32, 64, 96, 128, 256))
    return Numbers({"h": str(size), "n": str(2 * size)}, {"projections": 12 * size**3, "rest": 16 * size**3})


NUMBERS: Mapping[str, Callable[[str], Numbers]] = {
    **{exercise: partial(choose, exercise) for exercise in CHOICES},
    "003.2.2-numbers": gradients,
    "003.3.1-numbers": crossover,
    "003.3.4-numbers": masked,
    "003.3.5a": partial(spread, variance=False),
    "003.3.5b": partial(spread, variance=True),
}
