"""Backpropagation by hand: forward through a small network node by node, then back, in fractions and with vectors.

z1 = w1 x, z2 = z1 + b1, z3 = ReLU(z2), z4 = w2 z3, z5 = z4 + b2; a skip connection adds x once more, z6 = z5 + x.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anaphor.inspect import Graph, trace
from anaphor.labs.lab import CURVES, Outcome, at_most, equal, true
from anaphor.labs.specs import BackpropSpec
from anaphor.labs.table import LABS

ROUNDING = 1e-12
NUDGE = Fraction(1, 1000)  # by which x is moved to see how far the output follows


@dataclass(frozen=True)
class Scalars:
    x: Fraction
    w1: Fraction
    b1: Fraction
    w2: Fraction
    b2: Fraction


def forward(given: Scalars) -> dict[str, Fraction]:
    """Every node's value, in the order in which one computes them."""
    z1 = given.w1 * given.x
    z2 = z1 + given.b1
    z3 = max(Fraction(0), z2)
    z4 = given.w2 * z3
    z5 = z4 + given.b2
    return {"z1": z1, "z2": z2, "z3": z3, "z4": z4, "z5": z5, "z6": z5 + given.x}


def backward(given: Scalars, z: dict[str, Fraction]) -> dict[str, Fraction]:
    """The gradient of z5 at every node, from the output back: each is that of its reader times a local derivative."""
    g = {"z5": Fraction(1)}
    g["b2"] = g["z4"] = g["z5"]  # a sum hands its gradient to both
    g["w2"], g["z3"] = g["z4"] * z["z3"], g["z4"] * given.w2  # a product crosses them over
    g["z2"] = g["z3"] * (z["z2"] > 0)  # ReLU lets through or stops
    g["b1"] = g["z1"] = g["z2"]
    g["w1"], g["x"] = g["z1"] * given.x, g["z1"] * given.w1
    return g


def network(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """The same for `trace`, which needs no more than this."""
    z1 = w1 * x
    z2 = z1 + b1
    z3 = torch.relu(z2)
    z4 = w2 * z3
    z5 = z4 + b2
    return z5  # noqa: RET504  # a name for the graph


def with_skip(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    z5 = network(x, w1, b1, w2, b2)
    z6 = z5 + x
    return z6  # noqa: RET504  # likewise


def of_vectors(x: Tensor, W: Tensor, b1: Tensor, u: Tensor, b2: Tensor) -> Tensor:
    z1 = W @ x
    z2 = z1 + b1
    z3 = torch.relu(z2)
    z4 = u @ z3
    z5 = z4 + b2
    return z5  # noqa: RET504  # a name for the graph


def vectors_by_hand(x: Tensor, W: Tensor, b1: Tensor, u: Tensor, b2: Tensor) -> tuple[float, dict[str, Tensor]]:
    """z5 and its gradients. The product W x has both sides of Lemma 1: the outer product g xᵀ, and Wᵀ g."""
    z2 = W @ x + b1
    z3 = torch.relu(z2)
    g = u * (z2 > 0)
    gradients = {"b2": torch.ones(()).to(x), "u": z3, "b1": g, "W": torch.outer(g, x), "x": W.T @ g}
    return float(u @ z3 + b2), gradients


def products(seed: int) -> tuple[float, float]:
    """Lemma 1 on random matrices, and with a matrix that is used twice: how far the rule is off autograd."""
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
    """The three graphs, from the inputs as an outcome keeps them."""
    scalars = {name: Fraction(value) for name, value in inputs["scalars"].items()}
    return {
        "backprop": trace(network)(**scalars),
        "backprop-skip": trace(with_skip)(**scalars),
        "backprop-vectors": trace(of_vectors)(**inputs["vectors"]),
    }


def run(spec: BackpropSpec) -> Outcome:
    names = ("x", "w1", "b1", "w2", "b2")
    given = Scalars(*(spec.fraction(name) for name in names))
    z = forward(given)
    g = backward(given, z)
    skipped = g | {"x": g["x"] + 1}  # x is read twice, and gradients add up
    W = [list(spec.vector_w[:2]), list(spec.vector_w[2:])]
    listed = [list(spec.vector_x), W, list(spec.vector_b1), list(spec.vector_u), spec.vector_b2]
    vectors = dict(zip(("x", "W", "b1", "u", "b2"), listed, strict=True))
    value, by_hand = vectors_by_hand(**{key: torch.tensor(one, dtype=torch.float64) for key, one in vectors.items()})
    inputs = {"scalars": {name: str(getattr(given, name)) for name in names}, "vectors": vectors}
    plain, skip, several = graphs(inputs).values()

    further = forward(Scalars(given.x + NUDGE, given.w1, given.b1, given.w2, given.b2))
    same_side = (further["z2"] > 0) == (z["z2"] > 0)
    once, twice = products(spec.seed)
    checks = (
        at_most("gradients of z5 by hand, off traced ones", _off(g, plain), ROUNDING),
        at_most("gradients of z6 by hand, off traced ones", _off(skipped | {"z6": Fraction(1)}, skip), ROUNDING),
        true("every traced value and gradient of z5 is the same fraction", _same(z, g, plain)),
        true("every traced value and gradient of z6 is the same fraction", _same(z, skipped, skip)),
        true("z5 follows x by gradient × step", not same_side or further["z5"] - z["z5"] == g["x"] * NUDGE),
        true("z6 follows x by gradient × step", not same_side or further["z6"] - z["z6"] == skipped["x"] * NUDGE),
        equal("z5 with vectors, traced", float(several["z5"].value), value),
        at_most(
            "gradients with vectors by hand, off traced ones",
            max(
                float(((one - _gradient(several, name)) / one.abs().clamp(min=1)).abs().max())
                for name, one in by_hand.items()
            ),
            ROUNDING,
        ),
        at_most("Ū = W̄ Vᵀ and V̄ = Uᵀ W̄, off autograd", once, ROUNDING),
        at_most("Ū = W̄ Vᵀ + Ā Bᵀ for U used twice, off", twice, ROUNDING),
    )
    numbers = {
        "values": {name: str(one) for name, one in z.items()},
        "gradients of z5": {name: str(g[name]) for name in ("b2", "w2", "b1", "w1", "x")},
        "gradients of z6": {name: str(skipped[name]) for name in ("b2", "w2", "b1", "w1", "x")},
        "with vectors, z5": value,
        "with vectors, gradients": {name: one.tolist() for name, one in by_hand.items()},
        CURVES: {"inputs": inputs},
    }
    return Outcome("backprop", LABS["backprop"].claim, checks, numbers)


def _gradient(graph: Graph, name: str) -> Tensor:
    gradient = graph[name].gradient
    assert gradient is not None, "every node here leads to the output"
    return gradient.double()


def _same(values: dict[str, Fraction], gradients: dict[str, Fraction], graph: Graph) -> bool:
    traced = {node.name: node for node in graph.nodes}
    return all(traced[name].exact_value == one for name, one in values.items() if name in traced) and all(
        traced[name].exact_gradient == one for name, one in gradients.items() if name in traced
    )


def _off(by_hand: dict[str, Fraction], graph: Graph) -> float:
    """The largest difference, as a share of what it should be where that is above one."""
    return max(
        abs(float(one) - float(_gradient(graph, name))) / max(1.0, abs(float(one))) for name, one in by_hand.items()
    )


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """The three graphs with value and gradient at every node."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = graphs(outcome.numbers[CURVES]["inputs"])
    return [path for name, graph in drawn.items() for path in graph.draw(folder / f"{name}.png")]
