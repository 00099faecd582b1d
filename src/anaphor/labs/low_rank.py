"""Attention through matrices of low rank: where it is exact, what it saves, and why a softmax is in the way.

P is the matrix of weights, n × n, and V the values, n × d. Of rank k, P = U S Wᵀ with k columns in U and W, and
P V = U (S (Wᵀ V)) needs no n × n matrix at all. Without softmax P = Q Kᵀ/√h, and W does for keys and values what
Linformer's projections along time learn to do: P V = Q (C K)ᵀ (D V) with C = Wᵀ and D = Wᵀ/√h.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anaphor.draw import Line, bands, curves
from anaphor.inspect import attention_maps
from anaphor.labs.lab import CURVES, Outcome, at_least, at_most, equal
from anaphor.labs.powers import fitted
from anaphor.labs.specs import LowRankLabSpec
from anaphor.labs.table import LABS
from anaphor.training.run import execute, opened_language, prepare
from anaphor.training.spec import LanguageRunSpec
from anaphor.training.trainer import Nobody

EXACT = 1e-10
BROKEN = 0.05  # relative error of the projection once a softmax stands between
ENERGY = 0.99  # share of the squared singular values that counts as all of the matrix
NEGLIGIBLE = 1e-6  # a singular value that is not drawn any more
READ = 96  # tokens of a text that the small model reads


def of_rank(tokens: int, rank: int) -> Tensor:
    """Weights that could be attention: every line is positive and sums to one. [n, n], of rank k"""
    left = torch.softmax(3 * torch.randn(tokens, rank, dtype=torch.float64), dim=-1)
    return left @ torch.softmax(3 * torch.randn(rank, tokens, dtype=torch.float64), dim=-1)


def parts_of(P: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The singular vectors and values that matter: [n, k], [k], [k, n]"""
    U, S, W = torch.linalg.svd(P, full_matrices=False)
    return U[:, :rank], S[:rank], W[:rank]


def through_parts(U: Tensor, S: Tensor, W: Tensor, V: Tensor) -> Tensor:
    """P V from right to left: 2·nkd products twice over, and never an n × n matrix."""
    return U @ (S[:, None] * (W @ V))


def through_projections(Q: Tensor, K: Tensor, V: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Q (C K)ᵀ (D V)"""
    return (Q @ (C @ K).T) @ (D @ V)


def numerical_rank(P: Tensor) -> int:
    return int(torch.linalg.matrix_rank(P, rtol=EXACT))


def directions(P: Tensor) -> int:
    """How many singular values hold nearly all of a matrix: 99 % of the sum of their squares."""
    shares = torch.linalg.svdvals(P).square().cumsum(-1)
    return int((shares < ENERGY * shares[-1]).sum()) + 1


def operations(compute: Callable[..., Tensor], *inputs: Tensor) -> int:
    with FlopCounterMode(display=False) as counted:
        compute(*inputs)
    return int(counted.get_total_flops())


def run(spec: LowRankLabSpec) -> Outcome:
    torch.manual_seed(spec.seed)
    n, d, k = spec.tokens, spec.width, spec.rank
    V = torch.randn(n, d, dtype=torch.float64)

    weights = of_rank(n, k)
    parts = parts_of(weights, k)
    by_parts = _off(through_parts(*parts, V), weights @ V)

    inner = torch.randn(d, k, dtype=torch.float64)
    X = torch.randn(n, d, dtype=torch.float64)
    Q, K = X @ inner @ torch.randn(k, d, dtype=torch.float64) / d, X @ torch.randn(d, d, dtype=torch.float64) / d**0.5
    P = Q @ K.T / math.sqrt(d)
    along = parts_of(P, k)[2]
    C, D = along, along / math.sqrt(d)
    by_projections = _off(through_projections(Q, K, V, C, D), P @ V)

    soft = torch.softmax(P, dim=-1)
    projected = torch.softmax(Q @ (C @ K).T / math.sqrt(d), dim=-1) @ (along @ V)
    broken = _off(projected, soft @ V)

    counted = {
        "P V": operations(torch.matmul, weights, V),
        "U (S (Wᵀ V))": operations(through_parts, *parts, V),
        "Q (C K)ᵀ (D V)": operations(through_projections, Q, K, V, C, D),
    }
    times = measured(spec)
    powers = {name: fitted(spec.lengths, seconds).exponent for name, seconds in times.items()}
    heads = looked_at(spec) if spec.train else {}
    checks = (
        equal("rank of P, without softmax", numerical_rank(P), k),
        at_most("U (S (Wᵀ V)) off P V, relative", by_parts, EXACT),
        at_most("Q (C K)ᵀ (D V) off P V, relative", by_projections, EXACT),
        equal("operations of U (S (Wᵀ V))", counted["U (S (Wᵀ V))"], 4 * n * k * d),
        equal("operations of Q (C K)ᵀ (D V)", counted["Q (C K)ᵀ (D V)"], 8 * n * k * d),
        at_least("rank of softmax(P), over that of P", numerical_rank(soft) / k, 2),
        at_least("the same projections inside a softmax, off", broken, BROKEN),
    )
    numbers: dict[str, Any] = {
        "rank": {"P": numerical_rank(P), "softmax(P)": numerical_rank(soft), "of": n},
        "directions for 99 %": {"P": directions(P), "softmax(P)": directions(soft)},
        "operations": counted,
        "exponent of the time": powers,
        CURVES: {
            "lengths": list(spec.lengths),
            "times": times,
            "spectra": {
                "Q Kᵀ/√h": _shown(_spectrum(P)),
                "softmax(Q Kᵀ/√h)": _shown(_spectrum(soft)),
                **heads.get("spectra", {}),
            },
        },
    }
    if heads:
        numbers[f"attention of a small model, {READ} tokens"] = heads["rows"]
    return Outcome("low-rank", LABS["low-rank"].claim, checks, numbers)


def measured(spec: LowRankLabSpec, repeats: int = 7) -> dict[str, list[float]]:
    """The shortest of several times, in seconds, at each length. The parts of P are known beforehand."""
    times: dict[str, list[float]] = {"P V": [], "U (S (Wᵀ V))": []}
    for tokens in spec.lengths:
        P, V = torch.rand(tokens, tokens), torch.randn(tokens, spec.width)
        parts = torch.randn(tokens, spec.rank), torch.rand(spec.rank), torch.randn(spec.rank, tokens)
        times["P V"].append(min(_seconds(torch.matmul, P, V) for _ in range(repeats)))
        times["U (S (Wᵀ V))"].append(min(_seconds(through_parts, *parts, V) for _ in range(repeats)))
    return times


def _seconds(compute: Callable[..., Tensor], *inputs: Tensor) -> float:
    begun = perf_counter()
    compute(*inputs)
    return perf_counter() - begun


def looked_at(spec: LowRankLabSpec) -> dict[str, Any]:
    """Maps of a small model before and after it was trained, on a text that it was not trained on."""
    run_spec = LanguageRunSpec(
        data="python-reference", tokenizer="character", model="transformer", width=64, heads=4, layers=2,
        feedforward=128, dropout=0.0, bptt=READ, batch_size=8, steps=spec.train, eval_every=spec.train, lr=3e-3,
        seed=spec.seed, device="cpu", position="rotary", warmup=0.1,
    )  # fmt: skip
    rows: dict[str, dict[str, float]] = {}
    spectra: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        before = prepare(run_spec)
        maps = {"untrained": _maps(before)}
        result, _ = execute(run_spec, Path(folder) / "run", Nobody(), test=False)
        with opened_language(Path(folder) / "run", "cpu") as made:
            maps[f"trained, {spec.train} steps"] = _maps(made)
    for name, every in maps.items():
        needed = sorted(directions(one) for one in every)
        rows[name] = {
            "heads": len(every),
            "directions for 99 %, least": needed[0],
            "median": needed[len(needed) // 2],
            "most": needed[-1],
            "off at rank 8, mean": float(torch.stack([_cut(one, 8) for one in every]).mean()),
        }
        spectra[f"{name}, mean of heads"] = _shown(torch.stack([_spectrum(one) for one in every]).mean(0))
    rows[f"trained, {spec.train} steps"]["loss"] = result["valid"]["loss"]
    return {"rows": rows, "spectra": spectra}


def _maps(made: Any) -> list[Tensor]:
    tokens = made.task.splits("valid").tokens[:READ]
    with torch.no_grad():
        return [one.double() for layer in attention_maps(made.model, tokens).values() for one in layer]


def _cut(P: Tensor, rank: int) -> Tensor:
    """What is left of a matrix behind its first singular values, relative to all of it."""
    values: Tensor = torch.linalg.svdvals(P)
    left: Tensor = values[rank:].norm() / values.norm()
    return left


def _spectrum(P: Tensor) -> Tensor:
    """The first singular values, the largest being one."""
    values: Tensor = torch.linalg.svdvals(P)[:READ]
    return values / values[0]


def _shown(spectrum: Tensor) -> list[float]:
    """Up to the first that counts as zero: behind it there is rounding only."""
    return spectrum[spectrum > NEGLIGIBLE].tolist()


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Singular values with and without softmax, and time against length."""
    found = outcome.numbers[CURVES]
    spectra = {name: (range(1, len(values) + 1), values) for name, values in found["spectra"].items()}
    times = [
        Line(
            name,
            found["lengths"],
            [1e3 * one for one in seconds],
            [1e3 * one for one in seconds],
            [1e3 * one for one in seconds],
        )
        for name, seconds in found["times"].items()
    ]
    paths = [folder / "low-rank-spectra.png", folder / "low-rank-time.png"]
    curves(spectra, paths[0], x_label="number of the singular value", y_label="singular value, largest = 1", log_y=True)
    bands({"": times}, paths[1:], x_label="length n", y_label="milliseconds", log_x=True, log_y=True)
    return paths
