"""Self-attention as a fully connected layer: vec(AX) = (I ⊗ A) vec(X)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from anaphor.draw import Panel, figure_paths, heat_maps
from anaphor.inspect import recorded
from anaphor.labs.lab import CURVES, Outcome, at_least, at_most, equal, true
from anaphor.labs.specs import KroneckerSpec
from anaphor.mixers import Attention, AttentionSpec, Span

ROUNDING = 1e-12
FITTED = 1e-8  # largest relative error of an exact fit
FAILED = 0.1  # least relative error of a failed fit
DIGITS = 12  # of an error; the rest is rounding
CHANGED = 0.01  # least difference of A between two inputs


def vec(X: Tensor) -> Tensor:
    """Columns of a matrix stacked into one vector. [..., N, d] -> [..., d·N]"""
    return X.transpose(-1, -2).flatten(-2)


def build_layer(spec: KroneckerSpec) -> Attention:
    """Attention with identity value and output projections: Y = A X, with A from random queries and keys."""
    layer = AttentionSpec(width=spec.width, heads=1, mask="everything", bias=False).build().double()
    with torch.no_grad():
        query, key, value = layer.project.weight.chunk(3)
        for projection in (query, key):
            projection.normal_()
        query.mul_(spec.sharpness)
        value.copy_(torch.eye(spec.width))
        layer.out.weight.copy_(torch.eye(spec.width))
    return layer


@torch.no_grad()
def attend(layer: Attention, X: Tensor) -> tuple[Tensor, Tensor]:
    """Y and A for each sequence. [B, N, d] -> [B, N, d], [B, N, N]"""
    with recorded(layer, "weights") as seen:
        Y, _ = layer(X, (), Span.whole(X))
    return Y, seen["weights"][:, 0]


def dense(A: Tensor, width: int) -> Tensor:
    """M = I ⊗ A: the weight matrix that maps vec(X) to vec(AX)."""
    return torch.kron(torch.eye(width, dtype=A.dtype), A)


def fit(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Least-squares weights of a fully connected layer (the minimum-norm solution)."""
    solution: Tensor = torch.linalg.lstsq(inputs, outputs, driver="gelsd").solution
    return solution.T


def relative_error(M: Tensor, inputs: Tensor, outputs: Tensor) -> float:
    return float((inputs @ M.T - outputs).norm() / outputs.norm())


def run(spec: KroneckerSpec) -> Outcome:
    torch.manual_seed(spec.seed)
    layer, n, d = build_layer(spec), spec.tokens, spec.width
    X = torch.randn(2 * spec.inputs, n, d, dtype=torch.float64)
    Y, A = attend(layer, X)
    M, other = dense(A[0], d), dense(A[1], d)
    blocks = M.unflatten(0, (d, n)).unflatten(2, (d, n)).transpose(1, 2)  # [d, d, N, N]
    diagonal = blocks[range(d), range(d)]
    outside = blocks[~torch.eye(d, dtype=torch.bool)]

    # The fully connected layer is fitted to one half of the sequences and evaluated on the other.
    x, y = vec(X), vec(Y)
    train, test = slice(spec.inputs), slice(spec.inputs, None)
    many, few = fit(x[train], y[train]), fit(x[: spec.few], y[: spec.few])
    fixed = vec(A[0] @ X)  # one A for all inputs
    frozen = fit(x[train], fixed[train])
    errors = {
        f"attention, {spec.inputs:,} inputs": _errors(many, x, y, train, test),
        f"attention, {spec.few} inputs": _errors(few, x, y, slice(spec.few), test),
        "one A for all inputs": _errors(frozen, x, fixed, train, test),
        "the M of the first input": _errors(M, x, y, slice(1), test),
    }
    on_many, on_few, on_fixed, _ = errors.values()
    checks = (
        at_most("largest entry of vec(AX) − (I ⊗ A) vec(X)", float((x[0] @ M.T - y[0]).abs().max()), ROUNDING),
        at_most("the same for vec(AXW) − (Wᵀ ⊗ A) vec(X)", _value_error(A[0], X[0]), ROUNDING),
        equal("largest entry outside the diagonal blocks", float(outside.abs().max()), 0.0),
        equal("largest difference between diagonal blocks", float((diagonal - diagonal[0]).abs().max()), 0.0),
        at_least("largest change of A from one input to another", float((A[0] - A[1]).abs().max()), CHANGED),
        at_most("fit to few inputs, error on them", on_few["on its inputs"], FITTED),
        at_least("fit to few inputs, error on new inputs", on_few["on fresh ones"], FAILED),
        at_least("fit to many inputs, error on them", on_many["on its inputs"], FAILED),
        at_least("fit to many inputs, error on new inputs", on_many["on fresh ones"], FAILED),
        at_most("fit to one A for all, error on new inputs", on_fixed["on fresh ones"], FITTED),
        true("the attention layer accepts a longer sequence", _accepts(layer, n + 1)),
    )
    numbers = {
        "entries of M": (n * d) ** 2,
        "of them not zero": int((M != 0).sum()),
        "of these free": n * (n - 1),  # each row of A sums to one
        "parameters": {
            "a fully connected layer": (n * d) ** 2,
            "queries and keys of attention": 2 * d * d,
            "a fully connected layer, twice the length": (2 * n * d) ** 2,
            "attention, twice the length": 2 * d * d,
        },
        "relative error of a fully connected layer": errors,
        CURVES: {"A": A[0].tolist(), "M": M.tolist(), "M of another input": other.tolist(), "fitted": many.tolist()},
    }
    return Outcome("kronecker", spec.claim, checks, numbers)


def _value_error(A: Tensor, X: Tensor) -> float:
    """Error of vec(AXW) = (Wᵀ ⊗ A) vec(X): W mixes features, A mixes tokens."""
    W = torch.randn(X.shape[1], X.shape[1], dtype=X.dtype)
    return float((torch.kron(W.T.contiguous(), A) @ vec(X) - vec(A @ X @ W)).abs().max())


def _errors(M: Tensor, x: Tensor, y: Tensor, train: slice, test: slice) -> dict[str, float]:
    return {
        "on its inputs": round(relative_error(M, x[train], y[train]), DIGITS),
        "on fresh ones": round(relative_error(M, x[test], y[test]), DIGITS),
    }


def _accepts(layer: Attention, tokens: int) -> bool:
    Y, A = attend(layer, torch.randn(1, tokens, layer.width_in, dtype=torch.float64))
    return bool(torch.allclose(A.sum(-1), torch.ones(1, tokens, dtype=A.dtype))) and Y.shape[1] == tokens


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """M for two inputs, and the fitted fully connected layer."""
    data = outcome.numbers[CURVES]
    titles = {"M": "I ⊗ A for one input", "M of another input": "I ⊗ A for another", "fitted": "fit to many inputs"}
    panels = [Panel(title, torch.tensor(data[name]).numpy(), -1.0, 1.0) for name, title in titles.items()]
    tokens, features = range(1, len(data["A"]) + 1), len(data["M"]) // len(data["A"])
    rows, columns = ([f"{name}{token}" for token in tokens] * features for name in "yx")
    labels = {"x_label": "entry of vec(X), feature by feature", "y_label": "entry of vec(Y)", "label": "weight"}
    paths = figure_paths(folder / "kronecker")
    heat_maps(panels, paths, across=3, rows=rows, columns=columns, **labels)
    return paths
