"""Low-rank attention: where it is exact, what it saves, and why it is not exact with a softmax.

P is the n × n attention matrix and V the n × d values. If P has rank k, P = U S Wᵀ with k columns in U and W, and
P V = U (S (Wᵀ V)) needs no n × n matrix. Without softmax P = Q Kᵀ/√h, and W projects keys and values along time as
Linformer's learned projections do: P V = Q (C K)ᵀ (D V) with C = Wᵀ and D = Wᵀ/√h.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anaphor.data.embedded import read_reference
from anaphor.draw import Line, bands, curves, figure_paths
from anaphor.inspect import attention_maps
from anaphor.labs.lab import CURVES, MEASURED, NOT_MEASURED, Check, Outcome, at_least, at_most, equal
from anaphor.labs.measures import LINEAR, MIN_RUN, count_flops, fit_power, processor_seconds
from anaphor.labs.specs import LowRankLabSpec
from anaphor.mixers.base import use_threads
from anaphor.models import LanguageModel, build

EXACT = 1e-10
INEXACT = 0.05  # least relative error of the projections with a softmax
ENERGY = 0.99  # fraction of the squared singular values that the effective rank keeps
NEGLIGIBLE = 1e-6  # smallest singular value that is drawn
TOKENS = 96  # sequence length of the small model
BATCH_SIZE = 8


def random_attention(tokens: int, rank: int) -> Tensor:
    """A random attention matrix of rank k: rows are positive and sum to one. [n, n]"""
    left = torch.softmax(3 * torch.randn(tokens, rank, dtype=torch.float64), dim=-1)
    return left @ torch.softmax(3 * torch.randn(rank, tokens, dtype=torch.float64), dim=-1)


def truncated_svd(P: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first k singular vectors and values: [n, k], [k], [k, n]"""
    U, S, W = torch.linalg.svd(P, full_matrices=False)
    return U[:, :rank], S[:rank], W[:rank]


def multiply_factors(U: Tensor, S: Tensor, W: Tensor, V: Tensor) -> Tensor:
    """P V from right to left: two products of 2·nkd operations, and no n × n matrix."""
    return U @ (S[:, None] * (W @ V))


def multiply_projections(Q: Tensor, K: Tensor, V: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Q (C K)ᵀ (D V)"""
    return (Q @ (C @ K).T) @ (D @ V)


def numerical_rank(P: Tensor) -> int:
    return int(torch.linalg.matrix_rank(P, rtol=EXACT))


def effective_rank(P: Tensor) -> int:
    """Number of singular values that hold 99 % of the sum of their squares."""
    energy = torch.linalg.svdvals(P).square().cumsum(-1)
    return int((energy < ENERGY * energy[-1]).sum()) + 1


def run(spec: LowRankLabSpec) -> Outcome:
    torch.manual_seed(spec.seed)
    n, d, k = spec.tokens, spec.width, spec.rank
    V = torch.randn(n, d, dtype=torch.float64)

    weights = random_attention(n, k)
    factors = truncated_svd(weights, k)
    factors_error = _relative_error(multiply_factors(*factors, V), weights @ V)

    inner = torch.randn(d, k, dtype=torch.float64)
    X = torch.randn(n, d, dtype=torch.float64)
    Q, K = X @ inner @ torch.randn(k, d, dtype=torch.float64) / d, X @ torch.randn(d, d, dtype=torch.float64) / d**0.5
    P = Q @ K.T / math.sqrt(d)
    along = truncated_svd(P, k)[2]
    C, D = along, along / math.sqrt(d)
    projections_error = _relative_error(multiply_projections(Q, K, V, C, D), P @ V)

    softmax = torch.softmax(P, dim=-1)
    projected = torch.softmax(Q @ (C @ K).T / math.sqrt(d), dim=-1) @ (along @ V)
    softmax_error = _relative_error(projected, softmax @ V)

    flops = {
        "P V": count_flops(torch.matmul, weights, V),
        "U (S (Wᵀ V))": count_flops(multiply_factors, *factors, V),
        "Q (C K)ᵀ (D V)": count_flops(multiply_projections, Q, K, V, C, D),
    }
    times = measure_times(spec)
    powers = {name: fit_power(spec.lengths, seconds).exponent for name, seconds in times.items()}
    heads = small_model(spec) if spec.train else {}
    is_timed = times["P V"][-1] >= MIN_RUN
    checks = (
        equal("rank of P, without softmax", numerical_rank(P), k),
        at_most("U (S (Wᵀ V)) off P V, relative", factors_error, EXACT),
        at_most("Q (C K)ᵀ (D V) off P V, relative", projections_error, EXACT),
        equal("operations of U (S (Wᵀ V))", flops["U (S (Wᵀ V))"], 4 * n * k * d),
        equal("operations of Q (C K)ᵀ (D V)", flops["Q (C K)ᵀ (D V)"], 8 * n * k * d),
        at_least("rank of softmax(P), over that of P", numerical_rank(softmax) / k, 2),
        at_least("the same projections inside a softmax, off", softmax_error, INEXACT),
        *(_time_checks(spec, times, powers) if is_timed else ()),
    )
    numbers: dict[str, Any] = {
        "rank": {"P": numerical_rank(P), "softmax(P)": numerical_rank(softmax), "of": n},
        "directions for 99 %": {"P": effective_rank(P), "softmax(P)": effective_rank(softmax)},
        "operations": flops,
        "exponent of the time": powers,
        CURVES: {
            "lengths": list(spec.lengths),
            "times": times,
            "spectra": {
                "Q Kᵀ/√h": _nonzero(_spectrum(P)),
                "softmax(Q Kᵀ/√h)": _nonzero(_spectrum(softmax)),
                **heads.get("spectra", {}),
            },
        },
    }
    if heads:
        numbers[f"attention of a small model, {TOKENS} tokens"] = heads["rows"]
    if is_timed:
        return Outcome("low-rank", spec.claim, checks, numbers, MEASURED)
    note = f"P V takes {1e3 * times['P V'][-1]:.2g} ms at n = {spec.lengths[-1]:,}, too short: use longer --lengths"
    return Outcome("low-rank", spec.claim, checks, numbers, NOT_MEASURED, note)


def _time_checks(spec: LowRankLabSpec, times: dict[str, list[float]], powers: dict[str, float]) -> list[Check]:
    ratio = times["U (S (Wᵀ V))"][-1] / times["P V"][-1]
    checks = (
        at_most("time of U (S (Wᵀ V)) grows as n to", powers["U (S (Wᵀ V))"], LINEAR),
        at_most(f"time of U (S (Wᵀ V)) / that of P V, n = {spec.lengths[-1]:,}", ratio, 1),
    )
    return [replace(check, timed=True) for check in checks]


def measure_times(spec: LowRankLabSpec) -> dict[str, list[float]]:
    """Processor time in seconds at each length, with one thread. Computing the factors of P is not included."""
    times: dict[str, list[float]] = {"P V": [], "U (S (Wᵀ V))": []}
    with use_threads(1):  # work of other threads would not be in the time of this one
        for tokens in spec.lengths:
            P, V = torch.rand(tokens, tokens), torch.randn(tokens, spec.width)
            factors = torch.randn(tokens, spec.rank), torch.rand(spec.rank), torch.randn(spec.rank, tokens)
            times["P V"].append(processor_seconds(torch.matmul, P, V))
            times["U (S (Wᵀ V))"].append(processor_seconds(multiply_factors, *factors, V))
    return times


def small_model(spec: LowRankLabSpec) -> dict[str, Any]:
    """Attention maps of a small byte-level transformer before and after training, on held-out text."""
    torch.manual_seed(spec.seed)
    text = torch.tensor(list("\n".join(read_reference()).encode()))
    train, valid = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    sizes = {"width": 64, "heads": 4, "layers": 2, "feedforward": 128}
    model = build("transformer", vocabulary=256, dropout=0.0, position="rotary", **sizes)
    maps = {"untrained": _maps(model, valid)}
    train_model(model, train, spec.train)
    trained = f"trained, {spec.train} steps"
    maps[trained] = _maps(model, valid)
    rows: dict[str, dict[str, float]] = {}
    spectra: dict[str, list[float]] = {}
    for name, heads in maps.items():
        ranks = sorted(effective_rank(P) for P in heads)
        rows[name] = {
            "heads": len(heads),
            "directions for 99 %, least": ranks[0],
            "median": ranks[len(ranks) // 2],
            "most": ranks[-1],
            "off at rank 8, mean": float(torch.stack([_truncation_error(P, 8) for P in heads]).mean()),
        }
        spectra[f"{name}, mean of heads"] = _nonzero(torch.stack([_spectrum(P) for P in heads]).mean(0))
    with torch.no_grad():
        rows[trained]["loss"] = float(_loss(model, valid, torch.arange(0, len(valid) - TOKENS - 1, TOKENS)))
    return {"rows": rows, "spectra": spectra}


def train_model(model: LanguageModel, text: Tensor, steps: int, lr: float = 3e-3) -> None:
    """Adam on random segments, with linear warmup over the first tenth of the steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 10 * (step + 1) / steps))
    for _ in range(steps):
        loss = _loss(model, text, torch.randint(len(text) - TOKENS, (BATCH_SIZE,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def _loss(model: LanguageModel, text: Tensor, starts: Tensor) -> Tensor:
    segments = text[starts[:, None] + torch.arange(TOKENS + 1)]
    return F.cross_entropy(model(segments[:, :-1])[0].flatten(0, 1), segments[:, 1:].flatten())


def _maps(model: LanguageModel, text: Tensor) -> list[Tensor]:
    return [P.double() for layer in attention_maps(model, text[:TOKENS]).values() for P in layer]


def _truncation_error(P: Tensor, rank: int) -> Tensor:
    """Relative Frobenius error of the best approximation of this rank."""
    values: Tensor = torch.linalg.svdvals(P)
    error: Tensor = values[rank:].norm() / values.norm()
    return error


def _spectrum(P: Tensor) -> Tensor:
    """Singular values divided by the largest."""
    values: Tensor = torch.linalg.svdvals(P)[:TOKENS]
    return values / values[0]


def _nonzero(spectrum: Tensor) -> list[float]:
    """Without singular values that are zero up to rounding."""
    return spectrum[spectrum > NEGLIGIBLE].tolist()


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Singular values with and without softmax, and time against length."""
    data = outcome.numbers[CURVES]
    spectra = {name: (range(1, len(values) + 1), values) for name, values in data["spectra"].items()}
    times = [Line(name, data["lengths"], [1e3 * value for value in y]) for name, y in data["times"].items()]
    paths, time_paths = figure_paths(folder / "low-rank-spectra"), figure_paths(folder / "low-rank-time")
    curves(spectra, *paths, x_label="index of the singular value", y_label="singular value / largest", log_y=True)
    bands({"": times}, time_paths, x_label="sequence length n", y_label="processor time (ms)", log_x=True, log_y=True)
    return [*paths, *time_paths]
