"""Numbers of sheet 002: a linear recurrent network, costs, a banded mask, patches, padded batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anaphor.course.numbers.choices import Question, ask
from anaphor.course.numbers.values import Numbers, seed_random, show


def network(student: str) -> dict[str, Any]:
    """A linear recurrent network with a state of two numbers; inputs and outputs are numbers."""
    draw = seed_random("002.1", student)
    return {
        "W_h": [[draw.choice((1, 2)), draw.choice((-1, 1))], [draw.choice((0, 1)), draw.choice((-1, 2))]],
        "W_x": [draw.choice((1, 2)), draw.choice((-1, 3))],
        "W_y": [draw.choice((-2, 1)), draw.choice((1, 2))],
        "x": [draw.randint(1, 3), draw.choice((-1, 2)), draw.randint(-2, 4)],
    }


def states(one: Mapping[str, Any]) -> tuple[list[list[int]], list[int]]:
    """States and outputs after each input."""
    state, found, outputs = [0, 0], [], []
    for x in one["x"]:
        carried = [sum(w * h for w, h in zip(row, state, strict=True)) for row in one["W_h"]]
        state = [old + w * x for old, w in zip(carried, one["W_x"], strict=True)]
        found.append(state)
        outputs.append(sum(w * h for w, h in zip(one["W_y"], state, strict=True)))
    return found, outputs


def given_network(student: str) -> dict[str, str]:
    one = network(student)
    x1, x2, x3 = map(str, one["x"])
    return {"W_h": show(one["W_h"]), "W_x": show(one["W_x"]), "W_y": show(one["W_y"]), "x1": x1, "x2": x2, "x3": x3}


def two_steps(student: str) -> Numbers:
    found, outputs = states(network(student))
    return Numbers(given_network(student), {"h2": found[1], "y2": outputs[1]})


def three_steps(student: str) -> Numbers:
    found, outputs = states(network(student))
    return Numbers(given_network(student), {"h3": found[2], "y3": outputs[2]})


def first_input(student: str) -> Numbers:
    """What x_1 is multiplied by, where W_h is one number."""
    draw = seed_random("002.1d", student)
    small, large, steps = draw.choice((0.7, 0.8, 0.9)), draw.choice((1.1, 1.2, 1.3)), draw.choice((21, 31, 41))
    shown = {"small": show(small), "large": show(large), "T": str(steps)}
    return Numbers(shown, {"small": small ** (steps - 1), "large": large ** (steps - 1)})


GROWTH = ("1 (constant)", "log T", "T", "T²", "T³")


def costs(student: str) -> Numbers:
    questions = {
        "recurrent": Question(right=("T",), wrong=tuple(one for one in GROWTH if one != "T")),
        "attention": Question(right=("T²",), wrong=tuple(one for one in GROWTH if one != "T²")),
        "steps": Question(right=(GROWTH[0],), wrong=GROWTH[1:]),
    }
    return ask("002.1e", student, questions)


def output_matrix(student: str) -> Numbers:
    draw = seed_random("002.2b", student)
    dim, n_hidden, heads = draw.choice((32, 48, 64)), draw.choice((12, 16, 20)), draw.choice((3, 5, 6))
    shown = {"dim": str(dim), "n_hidden": str(n_hidden), "num_heads": str(heads)}
    return Numbers(shown, {"from": heads * n_hidden, "to": dim})


def banded_mask(student: str) -> Numbers:
    """How many weights a mask allows that lets each token see itself and some before."""
    draw = seed_random("002.2c", student)
    tokens, before = draw.randint(6, 11), draw.randint(1, 3)
    allowed = sum(min(token, before) + 1 for token in range(tokens))
    last = [1 if tokens - 1 - token <= before else 0 for token in range(tokens)]
    shown = {"T": str(tokens), "tokens_before": "the token" if before == 1 else f"the {before} tokens"}
    return Numbers(shown, {"allowed": allowed, "last_row": last})


def patches(student: str) -> Numbers:
    draw = seed_random("002.3a", student)
    side, count, width = draw.choice((4, 6, 8)), draw.choice((5, 6, 7, 9)), draw.choice((64, 96, 128))
    numbers = 3 * side * side
    shown = {"image": str(side * count), "patch": str(side), "width": str(width)}
    expected = {"patches": count**2, "numbers": numbers, "parameters": (numbers + 1) * width}
    return Numbers(shown, expected)


def padded_batch(student: str) -> Numbers:
    draw = seed_random("002.4b", student)
    lengths = draw.sample(range(4, 19), 4)
    longest = max(lengths)
    expected = {
        "columns": longest,
        "padding": 4 * longest - sum(lengths),
        "targets": sum(lengths) - 4,
    }
    return Numbers({"lengths": ", ".join(map(str, lengths))}, expected)


NUMBERS: Mapping[str, Callable[[str], Numbers]] = {
    "002.1a": two_steps,
    "002.1b": three_steps,
    "002.1d-numbers": first_input,
    "002.1e": costs,
    "002.2b-size": output_matrix,
    "002.2c-mask": banded_mask,
    "002.3a-numbers": patches,
    "002.4b": padded_batch,
}
