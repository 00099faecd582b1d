"""Cost of sequence layers against length n and width h: time, peak memory, operations and depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from anaphor.draw import Line, bands, figure_paths
from anaphor.inspect import recorded
from anaphor.labs.lab import CURVES, MEASURED, NOT_MEASURED, Check, Outcome, at_least, at_most, between, equal
from anaphor.labs.measures import (
    LINEAR,
    MIN_RUN,
    MIN_SECONDS,
    QUADRATIC,
    CostMode,
    Power,
    count_flops,
    fit_power,
    processor_seconds,
)
from anaphor.labs.specs import ComplexitySpec
from anaphor.mixers import AttentionSpec, LinearSpec, LowRankSpec, MixerSpec, PooledSpec, RNNSpec, Span
from anaphor.mixers.noncausal import linear_time_scores, quadratic_scores

SHORT = (64, 128, 256)  # lengths at which the depth is counted


@dataclass(frozen=True)
class Kind:
    """A layer, how it is run, and the expected number of operations."""

    spec: Callable[[ComplexitySpec, int], MixerSpec]
    operations: Callable[[ComplexitySpec, int, int], int] | None
    """Multiplications plus additions for n tokens of width h; None if a fused kernel cannot be counted."""
    tap: str | None = None
    """Tap recorded while measuring, so that the explicit path runs."""
    explicit: str | None = None
    """Tap recorded while counting operations, if that needs another path."""
    quadratic: bool = False


KINDS: dict[str, Kind] = {
    "recurrent": Kind(lambda s, h: RNNSpec(width=h), lambda s, n, h: 4 * n * h * h, explicit="states"),
    "attention, explicit": Kind(
        lambda s, h: AttentionSpec(width=h, heads=1),
        lambda s, n, h: 8 * n * h * h + 4 * n * n * h,
        tap="weights",
        quadratic=True,
    ),
    "attention, fused": Kind(lambda s, h: AttentionSpec(width=h, heads=1), None),
    "pooled": Kind(lambda s, h: PooledSpec(width=h), lambda s, n, h: 6 * n * h * h + 4 * n * h),
    "linear": Kind(
        lambda s, h: LinearSpec(width=h, heads=1, chunk=s.chunk),
        lambda s, n, h: 12 * n * h * h + 4 * h * sum(size * size for size in _chunks(n, s.chunk)) + 2 * n * h,
    ),
    "low-rank": Kind(
        lambda s, h: LowRankSpec(width=h, heads=1, rank=s.rank, tokens=max(*s.lengths, s.length, *SHORT)),
        lambda s, n, h: 8 * n * h * h + 8 * n * s.rank * h,
        explicit="weights",
    ),
}
LINEARS = ("recurrent", "pooled", "linear", "low-rank")


def _chunks(tokens: int, size: int) -> list[int]:
    return [min(size, tokens - start) for start in range(0, tokens, size)]


class Runner:
    """A layer of one width, run on inputs of any length."""

    def __init__(self, spec: ComplexitySpec, name: str, width: int) -> None:
        torch.manual_seed(spec.seed)
        self.kind = KINDS[name]
        self.layer = self.kind.spec(spec, width).build().eval()
        self.width = width
        self.threads = spec.threads

    def run(self, x: Tensor, tap: str | None) -> None:
        recording: AbstractContextManager[Any] = nullcontext() if tap is None else recorded(self.layer, tap)
        with torch.no_grad(), recording:
            self.layer(x, self.layer.initial_state(x), Span.whole(x))

    def seconds(self, tokens: int) -> float:
        """Processor time of a run, minimum over several; with more than one thread the wall time."""
        x = torch.randn(1, tokens, self.width)
        if self.threads == 1:
            return processor_seconds(self.run, x, self.kind.tap)
        best, total = float("inf"), 0.0
        while total < MIN_SECONDS:
            start = perf_counter()
            self.run(x, self.kind.tap)
            seconds = perf_counter() - start
            best, total = min(best, seconds), total + seconds
        return best

    def count_flops(self, tokens: int) -> int:
        return count_flops(self.run, torch.randn(1, tokens, self.width), self.kind.tap or self.kind.explicit)

    def costs(self, tokens: int, tap: str | None) -> CostMode:
        x = torch.randn(1, tokens, self.width)
        costs = CostMode()
        with costs:
            self.run(x, tap)
        return costs


def measure_times(runners: dict[str, Runner], lengths: Sequence[int], repeats: int) -> dict[str, list[float]]:
    """Minimum time at each length. Layers are interleaved, so that a disturbance affects all of them."""
    best = {name: [float("inf")] * len(lengths) for name in runners}
    for _ in range(repeats):
        for index, tokens in enumerate(lengths):
            for name, runner in runners.items():
                best[name][index] = min(best[name][index], runner.seconds(tokens))
    return best


def fit_exponents(spec: ComplexitySpec, costs: dict[str, list[float]]) -> dict[str, Power]:
    """Exponent of each layer's cost over the lengths from `large` on."""
    large = [index for index, tokens in enumerate(spec.lengths) if tokens >= spec.large]
    return {
        name: fit_power([spec.lengths[index] for index in large], [values[index] for index in large])
        for name, values in costs.items()
    }


def are_in_bounds(powers: dict[str, Power]) -> bool:
    low, high = QUADRATIC
    quadratic = all(low <= power.exponent <= high for name, power in powers.items() if KINDS[name].quadratic)
    return quadratic and all(powers[name].exponent <= LINEAR for name in LINEARS)


def run(spec: ComplexitySpec) -> Outcome:
    threads = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    try:
        return _run(spec)
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Measured:
    """All measurements, by layer."""

    times: dict[str, list[float]]
    attempts: list[dict[str, Power]]
    """Exponents of the time by attempt; the last one counts."""
    peaks: dict[str, list[int]]
    memory: dict[str, Power]
    depths: dict[str, list[int]]
    operations: dict[str, tuple[int, int]]
    """Counted and expected."""
    pooled: dict[str, int]
    """Operations of two ways to compute the scores of pooled attention."""


def _run(spec: ComplexitySpec) -> Outcome:
    runners = {name: Runner(spec, name, spec.width) for name in KINDS}
    attempts: list[dict[str, Power]] = []
    while not attempts or (len(attempts) < spec.attempts and not are_in_bounds(attempts[-1])):
        times = measure_times(runners, spec.lengths, spec.repeats)
        attempts.append(fit_exponents(spec, times))
    peaks = {name: [runner.costs(n, runner.kind.tap).peak for n in spec.lengths] for name, runner in runners.items()}
    measured = Measured(
        times=times,
        attempts=attempts,
        peaks=peaks,
        memory=fit_exponents(spec, {name: list(map(float, values)) for name, values in peaks.items()}),
        depths={
            name: [runner.costs(n, runner.kind.tap or runner.kind.explicit).depth for n in SHORT]
            for name, runner in runners.items()
        },
        operations={
            name: (runner.count_flops(spec.length), runner.kind.operations(spec, spec.length, spec.width))
            for name, runner in runners.items()
            if runner.kind.operations is not None
        },
        pooled=count_pooled_flops(spec),
    )
    note = _reason_not_measured(spec, times)
    checks = _checks(spec, measured) if note else [*_checks(spec, measured), *_time_checks(attempts[-1])]
    timing = NOT_MEASURED if note else MEASURED
    return Outcome("complexity", spec.claim, tuple(checks), _numbers(spec, measured), timing, note)


def _reason_not_measured(spec: ComplexitySpec, times: dict[str, list[float]]) -> str:
    """Why the times decide nothing; empty if they do."""
    if spec.threads > 1:
        return f"threads={spec.threads}: wall time depends on other processes; --threads 1 measures processor time"
    longest = times["attention, explicit"][-1]
    if longest < MIN_RUN:
        return f"attention takes {1e3 * longest:.2g} ms at n = {spec.lengths[-1]:,}, too short: use longer --lengths"
    return ""


def _time_checks(powers: dict[str, Power]) -> list[Check]:
    return [replace(check, timed=True) for check in _growth_checks("time", powers)]


def _growth_checks(what: str, powers: dict[str, Power]) -> list[Check]:
    explicit = powers["attention, explicit"].exponent
    return [
        between(f"{what} of explicit attention grows as n to", explicit, *QUADRATIC),
        *(at_most(f"{what} of {name} grows as n to", powers[name].exponent, LINEAR) for name in LINEARS),
    ]


def _checks(spec: ComplexitySpec, measured: Measured) -> list[Check]:
    n, h, explicit = spec.length, spec.width, "attention, explicit"
    checks = [equal(f"operations of {name}", *pair) for name, pair in measured.operations.items()]
    checks += [
        equal("operations of pooled scores, pair by pair", measured.pooled["pair by pair"], 2 * n * n * h),
        equal("operations of pooled scores, keys summed first", measured.pooled["keys summed first"], 2 * n * h),
    ]
    deeper = measured.depths[explicit][-1] - measured.depths[explicit][0]
    return [
        *checks,
        *_growth_checks("memory", measured.memory),
        at_most("memory of fused attention grows as n to", measured.memory["attention, fused"].exponent, LINEAR),
        equal("depth of attention, longest minus shortest", deeper, 0),
        at_least("depth of recurrent / length", measured.depths["recurrent"][-1] / SHORT[-1], 1),
    ]


def _numbers(spec: ComplexitySpec, measured: Measured) -> dict[str, Any]:
    longest = spec.lengths[-1]
    powers = measured.attempts[-1]
    return {
        "against length": {
            name: {
                "time": powers[name].exponent,
                "95 % interval": [round(powers[name].low, 2), round(powers[name].high, 2)],
                "memory": measured.memory[name].exponent,
                f"ms, {longest}": 1e3 * measured.times[name][-1],
                f"MiB, {longest}": measured.peaks[name][-1] / 2**20,
                f"steps in a row, {SHORT[0]} and {SHORT[-1]}": [measured.depths[name][0], measured.depths[name][-1]],
            }
            for name in KINDS
        },
        "against width": against_width(spec),
        "attempts at the times": len(measured.attempts),
        **{
            f"attempt {number}, out of bounds": {name: power.exponent for name, power in attempt.items()}
            for number, attempt in enumerate(measured.attempts[:-1], 1)
        },
        CURVES: {"lengths": list(spec.lengths), "seconds": measured.times, "bytes": measured.peaks},
    }


def count_pooled_flops(spec: ComplexitySpec) -> dict[str, int]:
    """Operations of pooled attention's scores: pair by pair as in the formula, and with the keys summed first."""
    q, k = torch.randn(2, 1, spec.length, spec.width).unbind()
    scores = {"pair by pair": quadratic_scores, "keys summed first": linear_time_scores}
    return {name: count_flops(score, q, k) for name, score in scores.items()}


def against_width(spec: ComplexitySpec) -> dict[str, dict[str, Any]]:
    """Exponents of time, memory and operations against the width, at one length."""
    rows: dict[str, dict[str, Any]] = {}
    for name, kind in KINDS.items():
        runners = [Runner(spec, name, width) for width in spec.widths]
        best = [min(runner.seconds(spec.length) for _ in range(spec.repeats)) for runner in runners]
        peaks = [runner.costs(spec.length, kind.tap).peak for runner in runners]
        power = fit_power(spec.widths, best)
        rows[name] = {
            "time": power.exponent,
            "95 % interval": [round(power.low, 2), round(power.high, 2)],
            "memory": fit_power(spec.widths, peaks).exponent,
        }
        if kind.operations is not None:
            formula = [kind.operations(spec, spec.length, width) for width in spec.widths]
            rows[name]["operations"] = fit_power(spec.widths, formula).exponent
    return rows


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Time and memory against length on log-log axes: the slope of a line is its exponent."""
    data = outcome.numbers[CURVES]
    figures = [figure_paths(folder / f"complexity-{name}") for name in ("time", "memory")]
    units = (("seconds", "processor time (ms)", 1e-3), ("bytes", "peak memory (MiB)", 2**20))
    for paths, (key, label, unit) in zip(figures, units, strict=True):
        lines = [Line(name, data["lengths"], [value / unit for value in y]) for name, y in data[key].items()]
        bands({"": lines}, paths, x_label="sequence length n", y_label=label, log_x=True, log_y=True)
    return [path for paths in figures for path in paths]
