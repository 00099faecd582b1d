"""Backpropagation by hand through a small network, node by node, in exact fractions and with vectors.

z1 = w1 x, z2 = z1 + b1, z3 = ReLU(z2), z4 = w2 z3, z5 = z4 + b2; a skip connection adds x once more, z6 = z5 + x.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anaphor.draw import figure_paths
from anaphor.labs.lab import CURVES, Outcome, at_most, equal, true
from anaphor.labs.specs import BackpropSpec
from anaphor.trace import Graph, trace

ROUNDING = 1e-12
STEP = Fraction(1, 1000)  # of x, for finite differences


@dataclass(frozen=True)
class Scalars:
    x: Fraction
    w1: Fraction
    b1: Fraction
    w2: Fraction
    b2: Fraction


def forward(given: Scalars) -> dict[str, Fraction]:
    """The value of every node, in order of computation."""
    z1 = given.w1 * given.x
    z2 = z1 + given.b1
    z3 = max(Fraction(0), z2)
    z4 = given.w2 * z3
    z5 = z4 + given.b2
    return {"z1": z1, "z2": z2, "z3": z3, "z4": z4, "z5": z5, "z6": z5 + given.x}


def backward(given: Scalars, z: dict[str, Fraction]) -> dict[str, Fraction]:
    """The gradient of z5 at every node, by the chain rule from the output back."""
    g = {"z5": Fraction(1)}
    g["b2"] = g["z4"] = g["z5"]  # addition: both inputs get the gradient
    g["w2"], g["z3"] = g["z4"] * z["z3"], g["z4"] * given.w2  # multiplication: times the other factor
    g["z2"] = g["z3"] * (z["z2"] > 0)  # ReLU: passed where the input is positive
    g["b1"] = g["z1"] = g["z2"]
    g["w1"], g["x"] = g["z1"] * given.x, g["z1"] * given.w1
    return g


def network(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """The same network as a function for `trace`."""
    z1 = w1 * x
    z2 = z1 + b1
    z3 = torch.relu(z2)
    z4 = w2 * z3
    z5 = z4 + b2
    return z5  # noqa: RET504  # names the node


def with_skip(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    z5 = network(x, w1, b1, w2, b2)
    z6 = z5 + x
    return z6  # noqa: RET504  # names the node


def vector_network(x: Tensor, W: Tensor, b1: Tensor, u: Tensor, b2: Tensor) -> Tensor:
    z1 = W @ x
    z2 = z1 + b1
    z3 = torch.relu(z2)
    z4 = u @ z3
    z5 = z4 + b2
    return z5  # noqa: RET504  # names the node


def vector_gradients(x: Tensor, W: Tensor, b1: Tensor, u: Tensor, b2: Tensor) -> tuple[float, dict[str, Tensor]]:
    """z5 and its gradients. By Lemma 1 the product W x has the gradients g xᵀ by W and Wᵀ g by x."""
    z2 = W @ x + b1
    z3 = torch.relu(z2)
    g = u * (z2 > 0)
    gradients = {"b2": torch.ones(()).to(x), "u": z3, "b1": g, "W": torch.outer(g, x), "x": W.T @ g}
    return float(u @ z3 + b2), gradients


def product_rule_errors(seed: int) -> tuple[float, float]:
    """Largest error of Lemma 1 against autograd: for random matrices, and for a matrix used twice."""
    torch.manual_seed(seed)
    U, V, B = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (4, 2), (4, 5)))
    W, A = U @ V, U @ B
    by_W, by_A = W.detach().cos(), A.detach().exp()  # of z = Σ sin W + Σ exp A
    by_U, by_V = torch.autograd.grad(W.sin().sum(), (U, V), retain_graph=True)
    (twice,) = torch.autograd.grad(W.sin().sum() + A.exp().sum(), U)
    with torch.no_grad():
        once = max(float((by_W @ V.T - by_U).abs().max()), float((U.T @ by_W - by_V).abs().max()))
        return once, float((by_W @ V.T + by_A @ B.T - twice).abs().max())


def graphs(inputs: dict[str, Any]) -> dict[str, Graph]:
    """The three graphs, from the inputs stored in an outcome."""
    scalars = {name: Fraction(value) for name, value in inputs["scalars"].items()}
    return {
        "backprop": trace(network)(**scalars),
        "backprop-skip": trace(with_skip)(**scalars),
        "backprop-vectors": trace(vector_network)(**inputs["vectors"]),
    }


def run(spec: BackpropSpec) -> Outcome:
    names = ("x", "w1", "b1", "w2", "b2")
    given = Scalars(*(spec.fraction(name) for name in names))
    z = forward(given)
    g = backward(given, z)
    skipped = g | {"x": g["x"] + 1}  # x is used twice: gradients add up
    W = [list(spec.vector_w[:2]), list(spec.vector_w[2:])]
    listed = [list(spec.vector_x), W, list(spec.vector_b1), list(spec.vector_u), spec.vector_b2]
    vectors = dict(zip(("x", "W", "b1", "u", "b2"), listed, strict=True))
    value, by_hand = vector_gradients(**{key: torch.tensor(one, dtype=torch.float64) for key, one in vectors.items()})
    inputs = {"scalars": {name: str(getattr(given, name)) for name in names}, "vectors": vectors}
    plain, skip, several = graphs(inputs).values()

    shifted = forward(Scalars(given.x + STEP, given.w1, given.b1, given.w2, given.b2))
    same_side = (shifted["z2"] > 0) == (z["z2"] > 0)
    once, twice = product_rule_errors(spec.seed)
    checks = (
        at_most("gradients of z5, error against trace", _error(g, plain), ROUNDING),
        at_most("gradients of z6, error against trace", _error(skipped | {"z6": Fraction(1)}, skip), ROUNDING),
        true("values and gradients of z5 equal to trace, as fractions", _equal_fractions(z, g, plain)),
        true("values and gradients of z6 equal to trace, as fractions", _equal_fractions(z, skipped, skip)),
        true("change of z5 = gradient × step of x", not same_side or shifted["z5"] - z["z5"] == g["x"] * STEP),
        true("change of z6 = gradient × step of x", not same_side or shifted["z6"] - z["z6"] == skipped["x"] * STEP),
        equal("z5 with vectors, traced", float(several["z5"].value), value),
        at_most(
            "gradients with vectors, error against trace",
            max(
                float(((one - _gradient(several, name)) / one.abs().clamp(min=1)).abs().max())
                for name, one in by_hand.items()
            ),
            ROUNDING,
        ),
        at_most("Ū = W̄ Vᵀ and V̄ = Uᵀ W̄, error against autograd", once, ROUNDING),
        at_most("Ū = W̄ Vᵀ + Ā Bᵀ for U used twice, error", twice, ROUNDING),
    )
    numbers = {
        "values": {name: str(one) for name, one in z.items()},
        "gradients of z5": {name: str(g[name]) for name in ("b2", "w2", "b1", "w1", "x")},
        "gradients of z6": {name: str(skipped[name]) for name in ("b2", "w2", "b1", "w1", "x")},
        "with vectors, z5": value,
        "with vectors, gradients": {name: one.tolist() for name, one in by_hand.items()},
        CURVES: {"inputs": inputs},
    }
    return Outcome("backprop", spec.claim, checks, numbers)


def _gradient(graph: Graph, name: str) -> Tensor:
    gradient = graph[name].gradient
    assert gradient is not None, "the output depends on every node"
    return gradient.double()


def _equal_fractions(values: dict[str, Fraction], gradients: dict[str, Fraction], graph: Graph) -> bool:
    traced = {node.name: node for node in graph.nodes}
    return all(traced[name].exact_value == one for name, one in values.items() if name in traced) and all(
        traced[name].exact_gradient == one for name, one in gradients.items() if name in traced
    )


def _error(by_hand: dict[str, Fraction], graph: Graph) -> float:
    """Largest error: relative for gradients above one, absolute below."""
    return max(
        abs(float(one) - float(_gradient(graph, name))) / max(1.0, abs(float(one))) for name, one in by_hand.items()
    )


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """The three graphs with value and gradient at every node."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = graphs(outcome.numbers[CURVES]["inputs"])
    return [path for name, graph in drawn.items() for path in graph.draw(*figure_paths(folder / name))]
