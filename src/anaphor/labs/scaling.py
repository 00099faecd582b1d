"""Why dot products are divided by √h: their variance grows with the width h and saturates the softmax."""

from __future__ import annotations

import math
from pathlib import Path

import sympy
import torch
from torch import Tensor

from anaphor.draw import Line, bands, figure_paths
from anaphor.labs.lab import CURVES, Outcome, at_least, at_most, true
from anaphor.labs.specs import ScalingSpec
from anaphor.mixers.attention.score import Dot, ScaledDot, Score
from anaphor.mixers.spec import Sizes

ERRORS = 4.0  # largest error of a simulated moment, in standard errors
CONSTANT = 0.1  # largest range of the normalized entropy with √h over all widths
FALLEN = 0.5  # largest ratio of entropy and gradient without √h, largest width / smallest


def symbolic_moments() -> tuple[sympy.Expr, sympy.Expr]:
    """Mean and variance of q·k from the moments of its parts: E[q²] = σ² + μ², and products of independent parts."""
    h, mu, sigma = sympy.symbols("h mu sigma", positive=True)
    second = sigma**2 + mu**2
    return h * mu * mu, sympy.factor(sympy.expand(h * (second * second - (mu * mu) ** 2)))


def exact(spec: ScalingSpec, width: int) -> tuple[float, float]:
    """E[q·k] = hμ² and Var[q·k] = h(σ⁴ + 2μ²σ²)"""
    mu, sigma = spec.mean, spec.deviation
    return width * mu**2, width * (sigma**4 + 2 * mu**2 * sigma**2)


def exact_among_keys(spec: ScalingSpec, width: int) -> float:
    """h(σ⁴ + μ²σ²): variance for a fixed query. The rest shifts all its scores equally."""
    return width * (spec.deviation**4 + spec.mean**2 * spec.deviation**2)


def sample(spec: ScalingSpec, *shape: int) -> Tensor:
    return spec.mean + spec.deviation * torch.randn(*shape, dtype=torch.float64)


def moments(spec: ScalingSpec, width: int) -> dict[str, float]:
    """Simulated mean and variance, the exact ones, and the difference in standard errors."""
    q, k = sample(spec, spec.samples, width), sample(spec, spec.samples, width)
    products = (q * k).sum(1)
    centered = products - products.mean()
    variance = float(centered.square().mean())
    mean_error = math.sqrt(variance / spec.samples)
    variance_error = math.sqrt(float(centered.pow(4).mean() - variance**2) / spec.samples)
    mean, spread = exact(spec, width)
    # Half the squared difference of two scores of one query estimates their variance.
    squared = (products - (q * k.roll(1, 0)).sum(1)).square() / 2
    among_error = float(squared.std()) / math.sqrt(spec.samples)
    among = exact_among_keys(spec, width)
    return {
        "mean": float(products.mean()),
        "hμ²": mean,
        "variance": variance,
        "h(σ⁴ + 2μ²σ²)": spread,
        "mean off, in standard errors": abs(float(products.mean()) - mean) / mean_error,
        "variance off, in standard errors": abs(variance - spread) / variance_error,
        "variance, one query": float(squared.mean()),
        "h(σ⁴ + μ²σ²)": among,
        "the same, one query": abs(float(squared.mean()) - among) / among_error,
    }


def softmax_statistics(spec: ScalingSpec, score: Score, q: Tensor, k: Tensor) -> tuple[float, float]:
    """Entropy of the softmax divided by log n, and the Frobenius norm of its Jacobian diag(p) − p pᵀ, whose square is
    Σp² − 2Σp³ + (Σp²)²."""
    p = torch.softmax(score(q[None, None], k[None, None])[0, 0], dim=-1)  # [queries, keys]
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1).mean() / math.log(spec.keys)
    squares = p.square().sum(-1)
    return float(entropy), float((squares - 2 * p.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt().mean())


def run(spec: ScalingSpec) -> Outcome:
    torch.manual_seed(spec.seed)
    mean, variance = symbolic_moments()
    h, mu, sigma = sympy.symbols("h mu sigma", positive=True)
    widths = sorted(set(spec.widths))
    table = {f"h = {width}": moments(spec, width) for width in widths}
    curves: dict[str, dict[str, list[float]]] = {"entropy": {}, "gradient": {}}
    scores = {"q·k": Dot, "q·k / √h": ScaledDot}
    pairs = [(sample(spec, spec.queries, width), sample(spec, spec.keys, width)) for width in widths]
    for name, kind in scores.items():
        rows = [
            softmax_statistics(spec, kind(Sizes(width, 1, width, max_positions=0)), q, k)
            for width, (q, k) in zip(widths, pairs, strict=True)
        ]
        curves["entropy"][name], curves["gradient"][name] = (list(column) for column in zip(*rows, strict=True))
    plain, scaled = (curves["entropy"][name] for name in scores)
    gradient, scaled_gradient = (curves["gradient"][name] for name in scores)
    same = mean == h * mu**2 and sympy.expand(variance - h * (sigma**4 + 2 * mu**2 * sigma**2)) == 0
    worst = {key: max(row[key] for row in table.values()) for key in next(iter(table.values()))}
    checks = (
        true("formulas agree with the symbolic derivation", same),
        at_most("error of the means, in standard errors", worst["mean off, in standard errors"], ERRORS),
        at_most("error of the variances, in standard errors", worst["variance off, in standard errors"], ERRORS),
        at_most("the same for one query", worst["the same, one query"], ERRORS),
        at_most("range of the entropy with √h", max(scaled) - min(scaled), CONSTANT),
        at_most("entropy without √h, last / first width", _ratio(plain), FALLEN),
        at_most("gradient without √h, last / first width", _ratio(gradient), FALLEN),
        at_least("gradient with √h, last / first width", _ratio(scaled_gradient), FALLEN),
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
                "gradient, q·k": gradient[place],
                "gradient, q·k / √h": scaled_gradient[place],
            }
            for place, width in enumerate(widths)
        },
        CURVES: {"widths": widths, **curves},
    }
    return Outcome("scaling", spec.claim, checks, numbers)


def _ratio(values: list[float]) -> float:
    """Last value divided by the first; 1 if the first is zero."""
    return values[-1] / values[0] if values[0] else 1.0


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Entropy and Jacobian norm of the softmax against the head width."""
    data = outcome.numbers[CURVES]
    titles = {"entropy": "entropy of the softmax / log n", "gradient": "norm of the Jacobian of the softmax"}
    panels = {title: [Line(name, data["widths"], y) for name, y in data[key].items()] for key, title in titles.items()}
    paths = figure_paths(folder / "scaling")
    bands(panels, paths, x_label="head width h", y_label="mean over queries", log_x=True)
    return paths
