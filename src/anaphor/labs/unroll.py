"""A linear recurrent network, unrolled: its state as a sum over inputs, symbolically and numerically.

h_t = W_h h_{t-1} + W_x x_t from h_0 = 0, and y_t = φ(W_y h_t), so h_T = Σ_t W_h^(T-t) W_x x_t. The powers of W_h
decide what happens to inputs and gradients over a long sequence.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from anaphor.draw import curves, figure_paths
from anaphor.labs.lab import CURVES, Check, Outcome, at_most, equal, true
from anaphor.labs.specs import UnrollSpec
from anaphor.mixers import Mixer, RNNSpec, Span

AT_THE_END = "W_h^(T-1) W_x x_1 + … + W_h W_x x_(T-1) + W_x x_T"
ROUNDING = 1e-10  # relative
RATE = {"orthogonal": 1e-9, "gaussian": 0.05}  # largest difference of measured growth rate and spectral radius


def unroll_symbolically(steps: int) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """h_1 … h_T by the recurrence, expanded, and by the sum, in non-commuting symbols."""
    W_h, W_x, *x = sympy.symbols(f"W_h W_x x_1:{steps + 1}", commutative=False)
    recurred, summed, h = [], [], sympy.Integer(0)
    for step in range(1, steps + 1):
        h = sympy.expand(W_h * h + W_x * x[step - 1])
        recurred.append(h)
        summed.append(sympy.Add(*(W_h ** (step - place) * W_x * x[place - 1] for place in range(1, step + 1))))
    return recurred, summed


def format_state(h: sympy.Expr) -> str:
    """W_h² W_x x_1 + W_h W_x x_2 + W_x x_3, oldest input first."""
    terms = sorted(sympy.Add.make_args(h), key=lambda term: str(term.args[-1]))
    powers = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

    def factor(one: sympy.Expr) -> str:
        base, power = one.as_base_exp()
        return str(base) if power == 1 else f"{base}{str(power).translate(powers)}"

    return " + ".join(" ".join(map(factor, term.args)) for term in terms)


def _formulas(states: dict[str, str]) -> dict[str, str]:
    """State and output after each step."""
    return {
        name: text
        for step, state in states.items()
        for name, text in ((f"h_{step}", state), (f"y_{step}", f"φ(W_y ({state}))"))
    }


def recurrent_matrix(spec: UnrollSpec, radius: float) -> Tensor:
    """A matrix whose largest eigenvalue has this absolute value."""
    drawn = torch.randn(spec.hidden, spec.hidden, dtype=torch.float64)
    if spec.matrix == "orthogonal":
        rotation: Tensor = torch.linalg.qr(drawn).Q
        return radius * rotation
    largest: Tensor = torch.linalg.eigvals(drawn).abs().max()
    return radius * drawn / largest


def network(W_h: Tensor, W_x: Tensor) -> Mixer:
    """A recurrent layer with identity activation and no bias."""
    layer = RNNSpec(width=W_x.shape[1], width_out=len(W_x), nonlinearity="identity").build().double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        layer.input_weights[0].copy_(W_x)
        layer.recurrent_weights[0].copy_(W_h)
    return layer


def states(layer: Mixer, x: Tensor) -> Tensor:
    """h_1 … h_T of one sequence. [T, D] -> [T, H]"""
    h: Tensor = layer(x[None], layer.initial_state(x[None]), Span.whole(x[None]))[0]
    return h[0]


def run(spec: UnrollSpec) -> Outcome:
    torch.manual_seed(spec.seed)
    recurred, summed = unroll_symbolically(spec.symbolic)
    same = [sympy.expand(left - right) == 0 for left, right in zip(recurred, summed, strict=True)]
    checks = [equal(f"states with recurrence = sum, of {spec.symbolic}", sum(same), spec.symbolic)]

    W_x = torch.randn(spec.hidden, spec.inputs, dtype=torch.float64)
    W_y = torch.randn(spec.outputs, spec.hidden, dtype=torch.float64)
    x = torch.randn(spec.steps, spec.inputs, dtype=torch.float64)
    x = x / (x @ W_x.T).norm(dim=1, keepdim=True)  # every W_x x_t has norm 1
    results = {
        f"radius {radius:g}": _measure_radius(spec, recurrent_matrix(spec, radius), W_x, W_y, x, radius)
        for radius in spec.radii
    }
    training = {"without": train_power(None), "clipped": train_power(spec.clip)}
    checks += [*_radius_checks(spec, [one["errors"] for one in results.values()]), *_training_checks(training)]
    numbers = {
        **_formulas({"2": format_state(recurred[1]), "3": format_state(recurred[2]), "T": AT_THE_END}),
        f"after {spec.steps} steps": {name: one["row"] for name, one in results.items()},
        "learning w in w^20 = 1 from 1.5": training,
        CURVES: {
            "share of the first input": {name: one["shares"] for name, one in results.items()},
            "size of the gradient": {name: one["sizes"] for name, one in results.items()},
        },
    }
    return Outcome("unroll", spec.claim, tuple(checks), numbers)


def _measure_radius(
    spec: UnrollSpec, W_h: Tensor, W_x: Tensor, W_y: Tensor, x: Tensor, radius: float
) -> dict[str, Any]:
    """One spectral radius: errors of the layer, share of the first input, gradients, clipping."""
    layer, steps = network(W_h, W_x), spec.steps
    powers = [torch.eye(len(W_h), dtype=W_h.dtype)]
    for _ in range(steps - 1):
        powers.append(W_h @ powers[-1])
    drive = x @ W_x.T  # [T, H]
    terms = torch.stack([powers[steps - 1 - t] @ drive[t] for t in range(steps)])
    last = terms.sum(0)
    first = x[:1].clone().requires_grad_()
    h = states(layer, torch.cat((first, x[1:])))[-1]
    y = torch.tanh(W_y @ h)

    norms = (torch.stack(powers) @ drive.T).norm(dim=1)  # [power, t]: norm of W_h^power W_x x_t
    shares = [float(norms[T - 1, 0] / norms[range(T - 1, -1, -1), range(T)].sum()) for T in range(1, steps + 1)]
    jacobian = torch.stack([torch.autograd.grad(part, first, retain_graph=True)[0][0] for part in h])
    sizes = [float(torch.linalg.matrix_norm(power @ W_x, 2)) for power in powers]
    half = steps // 2
    clipped = _clip_gradient((W_y @ h).sum(), first, spec.clip)
    exact = radius ** (steps - 1) / math.fsum(radius**power for power in range(steps))
    return {
        "errors": {
            # Terms may cancel each other: rounding is relative to the largest of them, not to what is left.
            "states": max(_error(h, last, terms), _error(y, torch.tanh(W_y @ last), torch.ones(1))),
            "jacobian": _error(jacobian, powers[-1] @ W_x, powers[-1] @ W_x),
            "rate": abs((sizes[-1] / sizes[half - 1]) ** (1 / (steps - half)) - radius),
            "share": abs(shares[-1] / exact - 1),
            "clipped": clipped["after"] / spec.clip,
            "direction": 1 - clipped["cosine"],
        },
        "row": {
            "share of x_1": shares[-1],
            "an equal share": 1 / steps,
            "‖∂h_T/∂x_1‖": sizes[-1],
            "gradient of x_1": clipped["before"],
            "clipped": clipped["after"],
        },
        "shares": shares,
        "sizes": sizes,
    }


def _radius_checks(spec: UnrollSpec, errors: list[dict[str, float]]) -> list[Check]:
    """The largest error over all radii."""
    worst = {name: max(row[name] for row in errors) for name in errors[0]}
    checks = [
        at_most("h_T and y_T, relative error against the sums", worst["states"], ROUNDING),
        at_most("∂h_T/∂x_1 = W_h^(T-1) W_x, relative error", worst["jacobian"], ROUNDING),
        at_most("growth rate of the gradient − spectral radius", worst["rate"], RATE[spec.matrix]),
        at_most("norm of a clipped gradient / bound", worst["clipped"], 1.0),
        at_most("1 − cosine of clipped and unclipped gradient", worst["direction"], ROUNDING),
    ]
    if spec.matrix == "orthogonal":  # rotations keep norms, so the share is known
        checks.append(at_most("share of x_1 = ρ^(T-1) / Σ ρ^k, relative error", worst["share"], ROUNDING))
    return checks


def _clip_gradient(loss: Tensor, first: Tensor, bound: float) -> dict[str, float]:
    """Norm of the first input's gradient before and after clipping, and the cosine between the two."""
    loss.backward()
    assert first.grad is not None, "the loss depends on every input"
    before = first.grad.clone()
    clip_grad_norm_([first], bound)
    after = first.grad
    cosine = float((before * after).sum() / (before.norm() * after.norm()))
    return {"before": float(before.norm()), "after": float(after.norm()), "cosine": cosine}


def train_power(bound: float | None, steps: int = 20, updates: int = 500, lr: float = 0.002) -> dict[str, Any]:
    """Gradient descent on ½(w^20 − 1)² from w = 1.5: a recurrent network with one weight."""
    w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    for update in range(1, updates + 1):
        loss = (w**steps - 1).square() / 2
        (gradient,) = torch.autograd.grad(loss, w)
        if not gradient.isfinite():
            return {"w": "lost", "loss": "not a number", "updates": update}
        if bound is not None:
            gradient = gradient.clamp(-bound, bound)
        w = (w - lr * gradient).detach().requires_grad_()
    return {"w": float(w.detach()), "loss": float(loss.detach()), "updates": updates}


def _training_checks(training: dict[str, dict[str, Any]]) -> list[Check]:
    w = training["clipped"]["w"]
    return [
        true("training without clipping ends in NaN", training["without"]["w"] == "lost"),
        at_most("training with clipping: |w − 1|", math.inf if w == "lost" else abs(w - 1), 1e-3),
    ]


def _error(value: Tensor, expected: Tensor, scale: Tensor) -> float:
    """Largest error, divided by the largest number of a scale."""
    return float((value - expected).detach().abs().max() / scale.detach().abs().max())


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Share of the first input and gradient norm against the sequence length."""
    written: list[Path] = []
    labels = ("share of the first input", "gradient norm ‖∂h_T/∂x_1‖")
    for (key, data), label in zip(outcome.numbers[CURVES].items(), labels, strict=True):
        paths = figure_paths(folder / f"unroll-{'share' if key.startswith('share') else 'gradient'}")
        lines = {name: (range(1, len(y) + 1), y) for name, y in data.items()}
        curves(lines, *paths, x_label="sequence length T", y_label=label, log_y=True)
        written += paths
    return written
