"""Why dot products are divided by √h: how they spread with the width h, and what a softmax makes of it."""

from __future__ import annotations

import math
from pathlib import Path

import sympy
import torch
from torch import Tensor

from anaphor.draw import Line, bands
from anaphor.labs.lab import CURVES, Outcome, at_least, at_most, true
from anaphor.labs.specs import ScalingSpec
from anaphor.labs.table import LABS
from anaphor.mixers.attention.score import Dot, ScaledDot, Score
from anaphor.mixers.spec import Sizes

ERRORS = 4.0  # standard errors that a simulated moment may be off the exact one
STEADY = 0.1  # how much the entropy with √h may move from the smallest width to the largest, as a share of log n
FALLEN = 0.5  # what may be left of entropy and gradient without √h, from the smallest width to the largest


def in_letters() -> tuple[sympy.Expr, sympy.Expr]:
    """Mean and variance of q·k from the moments of its parts: E[q²] = σ² + μ², and products of independent parts."""
    h, mu, sigma = sympy.symbols("h mu sigma", positive=True)
    second = sigma**2 + mu**2
    return h * mu * mu, sympy.factor(sympy.expand(h * (second * second - (mu * mu) ** 2)))


def exact(spec: ScalingSpec, width: int) -> tuple[float, float]:
    """E[q·k] = hμ² and Var[q·k] = h(σ⁴ + 2μ²σ²)"""
    mu, sigma = spec.mean, spec.deviation
    return width * mu**2, width * (sigma**4 + 2 * mu**2 * sigma**2)


def exact_among_keys(spec: ScalingSpec, width: int) -> float:
    """h(σ⁴ + μ²σ²): what is left of the variance for one query. The rest moves all its scores alike."""
    return width * (spec.deviation**4 + spec.mean**2 * spec.deviation**2)


def drawn(spec: ScalingSpec, *shape: int) -> Tensor:
    return spec.mean + spec.deviation * torch.randn(*shape, dtype=torch.float64)


def moments(spec: ScalingSpec, width: int) -> dict[str, float]:
    """Mean and variance over many pairs, beside the exact ones, with their standard errors."""
    q, k = drawn(spec, spec.samples, width), drawn(spec, spec.samples, width)
    products = (q * k).sum(1)
    off = products - products.mean()
    variance = float(off.square().mean())
    mean_error = math.sqrt(variance / spec.samples)
    variance_error = math.sqrt(float(off.pow(4).mean() - variance**2) / spec.samples)
    mean, spread = exact(spec, width)
    # Two scores of one query differ by what its keys make of them, and twice over.
    apart = (products - (q * k.roll(1, 0)).sum(1)).square() / 2
    among_error = float(apart.std()) / math.sqrt(spec.samples)
    among = exact_among_keys(spec, width)
    return {
        "mean": float(products.mean()),
        "hμ²": mean,
        "variance": variance,
        "h(σ⁴ + 2μ²σ²)": spread,
        "mean off, in standard errors": abs(float(products.mean()) - mean) / mean_error,
        "variance off, in standard errors": abs(variance - spread) / variance_error,
        "variance, one query": float(apart.mean()),
        "h(σ⁴ + μ²σ²)": among,
        "the same, one query": abs(float(apart.mean()) - among) / among_error,
    }


def sharpness(spec: ScalingSpec, score: Score, q: Tensor, k: Tensor) -> tuple[float, float]:
    """The entropy of the softmax, as a share of the largest, and the size of its Jacobian diag(p) − p pᵀ, whose squares
    sum up to Σp² − 2Σp³ + (Σp²)²."""
    p = torch.softmax(score(q[None, None], k[None, None])[0, 0], dim=-1)  # [queries, keys]
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1).mean() / math.log(spec.keys)
    squares = p.square().sum(-1)
    return float(entropy), float((squares - 2 * p.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt().mean())


def run(spec: ScalingSpec) -> Outcome:
    torch.manual_seed(spec.seed)
    mean, variance = in_letters()
    h, mu, sigma = sympy.symbols("h mu sigma", positive=True)
    widths = sorted(set(spec.widths))
    table = {f"h = {width}": moments(spec, width) for width in widths}
    curves: dict[str, dict[str, list[float]]] = {"entropy": {}, "gradient": {}}
    scores = {"q·k": Dot, "q·k / √h": ScaledDot}
    pairs = [(drawn(spec, spec.queries, width), drawn(spec, spec.keys, width)) for width in widths]
    for name, kind in scores.items():
        found = [
            sharpness(spec, kind(Sizes(width, 1, width, max_positions=0)), q, k)
            for width, (q, k) in zip(widths, pairs, strict=True)
        ]
        curves["entropy"][name], curves["gradient"][name] = (list(column) for column in zip(*found, strict=True))
    plain, scaled = (curves["entropy"][name] for name in scores)
    slope, steady = (curves["gradient"][name] for name in scores)
    checks = (
        true(
            "the formulae agree with letters",
            mean == h * mu**2 and sympy.expand(variance - h * (sigma**4 + 2 * mu**2 * sigma**2)) == 0,
        ),
        at_most(
            "means off, in standard errors", max(row["mean off, in standard errors"] for row in table.values()), ERRORS
        ),
        at_most(
            "variances off, in standard errors",
            max(row["variance off, in standard errors"] for row in table.values()),
            ERRORS,
        ),
        at_most(
            "variances for one query off, in standard errors",
            max(row["the same, one query"] for row in table.values()),
            ERRORS,
        ),
        at_most("entropy with √h moves by", max(scaled) - min(scaled), STEADY),
        at_most("entropy without √h, last over first", _left(plain), FALLEN),
        at_most("gradient without √h, last over first", _left(slope), FALLEN),
        at_least("gradient with √h, last over first", _left(steady), FALLEN),
    )
    numbers = {
        "E[q·k]": str(mean).replace("**", "^"),
        "Var[q·k]": str(variance).replace("**", "^"),
        "dot products": {name: {key: row[key] for key in list(row)[:6]} for name, row in table.items()},
        "softmax over keys": {
            f"h = {width}": {
                **{key: table[f"h = {width}"][key] for key in ("variance, one query", "h(σ⁴ + μ²σ²)")},
                "entropy, q·k": plain[place],
                "entropy, q·k / √h": scaled[place],
                "gradient, q·k": slope[place],
                "gradient, q·k / √h": steady[place],
            }
            for place, width in enumerate(widths)
        },
        CURVES: {"widths": widths, **curves},
    }
    return Outcome("scaling", LABS["scaling"].claim, checks, numbers)


def _left(values: list[float]) -> float:
    """The last as a share of the first; what is nothing from the start does not fall."""
    return values[-1] / values[0] if values[0] else 1.0


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Entropy and gradient of the softmax as heads get wider."""
    found = outcome.numbers[CURVES]
    titles = {"entropy": "entropy, 1 = uniform", "gradient": "size of the Jacobian"}
    panels = {
        title: [Line(name, found["widths"], y, y, y) for name, y in found[key].items()] for key, title in titles.items()
    }
    path = folder / "scaling.png"
    bands(panels, [path], x_label="width h", y_label="softmax of the scores", log_x=True)
    return [path]
