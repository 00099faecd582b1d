"""What sequence layers cost against length n and width h: time, memory, operations, and steps that must wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anaphor.draw import Line, bands
from anaphor.inspect import recorded
from anaphor.labs.lab import CURVES, Check, Outcome, at_least, at_most, equal
from anaphor.labs.ledger import Ledger
from anaphor.labs.powers import Power, fitted
from anaphor.labs.specs import ComplexitySpec
from anaphor.labs.table import LABS
from anaphor.mixers import AttentionSpec, LinearSpec, LowRankSpec, MixerSpec, PooledSpec, RNNSpec, Span
from anaphor.mixers.pooled import scores_at_once, scores_pair_by_pair

QUADRATIC = 1.7  # the least exponent that counts as growing with the square
LINEAR = 1.35  # the largest that counts as growing in proportion
ENOUGH = 0.004  # seconds that are spent on one time
SHORT = (64, 128, 256)  # lengths at which chains of steps are counted; they need no more


@dataclass(frozen=True)
class Kind:
    """A layer, how it is run, and what its operations should come to."""

    spec: Callable[[ComplexitySpec, int], MixerSpec]
    operations: Callable[[ComplexitySpec, int, int], int] | None
    """Multiplications and additions for n tokens of width h, by the formula; None where a kernel hides them."""
    tap: str | None = None
    """Watched while times are taken, so that the explicit path runs."""
    explicit: str | None = None
    """Watched while operations are counted, where that is another path."""
    quadratic: bool = False


KINDS: dict[str, Kind] = {
    "recurrent": Kind(
        lambda s, h: RNNSpec(width=h),
        lambda s, n, h: 4 * n * h * h,
        explicit="states",
    ),
    "attention, explicit": Kind(
        lambda s, h: AttentionSpec(width=h, heads=1),
        lambda s, n, h: 8 * n * h * h + 4 * n * n * h,
        tap="weights",
        quadratic=True,
    ),
    "attention, fused": Kind(lambda s, h: AttentionSpec(width=h, heads=1), None),
    "pooled": Kind(
        lambda s, h: PooledSpec(width=h),
        lambda s, n, h: 6 * n * h * h + 4 * n * h,
    ),
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
    """One layer of one width, on inputs of any length."""

    def __init__(self, spec: ComplexitySpec, name: str, width: int) -> None:
        torch.manual_seed(spec.seed)
        self.kind = KINDS[name]
        self.layer = self.kind.spec(spec, width).build().eval()
        self.width = width
        # What others do on the machine is in the time on the wall, and not in that of our one thread.
        self.clock = process_time if spec.threads == 1 else perf_counter

    def run(self, x: Tensor, tap: str | None) -> None:
        watching: AbstractContextManager[Any] = nullcontext() if tap is None else recorded(self.layer, tap)
        with torch.no_grad(), watching:
            self.layer(x, self.layer.initial_state(x), Span.whole(x))

    def seconds(self, tokens: int) -> float:
        """The shortest of a few runs, many where one is short."""
        x = torch.randn(1, tokens, self.width)
        best = spent = self._seconds(x)
        while spent < ENOUGH:
            again = self._seconds(x)
            best, spent = min(best, again), spent + again
        return best

    def _seconds(self, x: Tensor) -> float:
        begun = self.clock()
        self.run(x, self.kind.tap)
        return self.clock() - begun

    def operations(self, tokens: int) -> int:
        with FlopCounterMode(display=False) as counted:
            self.run(torch.randn(1, tokens, self.width), self.kind.tap or self.kind.explicit)
        return int(counted.get_total_flops())

    def books(self, tokens: int, tap: str | None) -> Ledger:
        x = torch.randn(1, tokens, self.width)
        ledger = Ledger()
        with ledger:
            self.run(x, tap)
        return ledger


def timed(runners: dict[str, Runner], places: Sequence[int], repeats: int) -> dict[str, list[float]]:
    """The shortest of several times at each length. Layers take turns, so that a disturbance hits all alike."""
    best = {name: [float("inf")] * len(places) for name in runners}
    for _ in range(repeats):
        for place, tokens in enumerate(places):
            for name, runner in runners.items():
                best[name][place] = min(best[name][place], runner.seconds(tokens))
    return best


def exponents(spec: ComplexitySpec, times: dict[str, list[float]]) -> dict[str, Power]:
    """The exponent of each layer's time, over the lengths that count as large."""
    large = [place for place, tokens in enumerate(spec.lengths) if tokens >= spec.large]
    return {
        name: fitted([spec.lengths[place] for place in large], [seconds[place] for place in large])
        for name, seconds in times.items()
    }


def within(powers: dict[str, Power]) -> bool:
    return all(power.exponent >= QUADRATIC for name, power in powers.items() if KINDS[name].quadratic) and all(
        powers[name].exponent <= LINEAR for name in LINEARS
    )


def run(spec: ComplexitySpec) -> Outcome:
    threads = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    try:
        return _run(spec)
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Measured:
    """Everything that was found out, layer by layer."""

    times: dict[str, list[float]]
    attempts: list[dict[str, Power]]
    """Exponents of the time, attempt after attempt; the last counts."""
    peaks: dict[str, list[int]]
    memory: dict[str, Power]
    depths: dict[str, list[int]]
    operations: dict[str, tuple[int, int]]
    """Counted, and by the formula."""
    pooled: dict[str, int]
    """Operations of the two arrangements of pooled attention's scores."""


def _run(spec: ComplexitySpec) -> Outcome:
    runners = {name: Runner(spec, name, spec.width) for name in KINDS}
    attempts: list[dict[str, Power]] = []
    while not attempts or (len(attempts) < spec.attempts and not within(attempts[-1])):
        times = timed(runners, spec.lengths, spec.repeats)
        attempts.append(exponents(spec, times))
    peaks = {name: [runner.books(n, runner.kind.tap).peak for n in spec.lengths] for name, runner in runners.items()}
    found = Measured(
        times=times,
        attempts=attempts,
        peaks=peaks,
        memory=exponents(spec, {name: list(map(float, values)) for name, values in peaks.items()}),
        depths={
            name: [runner.books(n, runner.kind.tap or runner.kind.explicit).depth for n in SHORT]
            for name, runner in runners.items()
        },
        operations={
            name: (runner.operations(spec.length), runner.kind.operations(spec, spec.length, spec.width))
            for name, runner in runners.items()
            if runner.kind.operations is not None
        },
        pooled=arrangements(spec),
    )
    return Outcome("complexity", LABS["complexity"].claim, tuple(_checks(spec, found)), _numbers(spec, found))


def _checks(spec: ComplexitySpec, found: Measured) -> list[Check]:
    n, h, explicit = spec.length, spec.width, "attention, explicit"
    checks = [equal(f"operations of {name}", *pair) for name, pair in found.operations.items()]
    checks += [
        equal("operations of pooled scores, pair by pair", found.pooled["pair by pair"], 2 * n * n * h),
        equal("operations of pooled scores, keys summed first", found.pooled["keys summed first"], 2 * n * h),
    ]
    for what, powers in (("memory", found.memory), ("time", found.attempts[-1])):
        checks.append(at_least(f"{what} of explicit attention grows as n to", powers[explicit].exponent, QUADRATIC))
        checks += [at_most(f"{what} of {name} grows as n to", powers[name].exponent, LINEAR) for name in LINEARS]
    deeper = found.depths[explicit][-1] - found.depths[explicit][0]
    return [
        *checks,
        at_most("memory of fused attention grows as n to", found.memory["attention, fused"].exponent, LINEAR),
        equal("steps in a row of attention, shortest to longest", deeper, 0),
        at_least("steps in a row of recurrent, over the length", found.depths["recurrent"][-1] / SHORT[-1], 1),
    ]


def _numbers(spec: ComplexitySpec, found: Measured) -> dict[str, Any]:
    longest = spec.lengths[-1]
    powers = found.attempts[-1]
    return {
        "against length": {
            name: {
                "time": powers[name].exponent,
                "95 % interval": [round(powers[name].low, 2), round(powers[name].high, 2)],
                "memory": found.memory[name].exponent,
                f"ms, {longest}": 1e3 * found.times[name][-1],
                f"MiB, {longest}": found.peaks[name][-1] / 2**20,
                f"steps in a row, {SHORT[0]} and {SHORT[-1]}": [found.depths[name][0], found.depths[name][-1]],
            }
            for name in KINDS
        },
        "against width": against_width(spec),
        "attempts at the times": len(found.attempts),
        **{
            f"attempt {number}, out of bounds": {name: power.exponent for name, power in attempt.items()}
            for number, attempt in enumerate(found.attempts[:-1], 1)
        },
        CURVES: {"lengths": list(spec.lengths), "seconds": found.times, "bytes": found.peaks},
    }


def arrangements(spec: ComplexitySpec) -> dict[str, int]:
    """Pooled attention's scores as the formula is written, and with the keys summed before they meet a query."""
    q, k = torch.randn(2, 1, spec.length, spec.width).unbind()
    counted = {}
    for name, scores in (("pair by pair", scores_pair_by_pair), ("keys summed first", scores_at_once)):
        with FlopCounterMode(display=False) as counter:
            scores(q, k)
        counted[name] = int(counter.get_total_flops())
    return counted


def against_width(spec: ComplexitySpec) -> dict[str, dict[str, Any]]:
    """Exponents of time, memory and operations against the width, at one length."""
    rows: dict[str, dict[str, Any]] = {}
    for name, kind in KINDS.items():
        runners = [Runner(spec, name, width) for width in spec.widths]
        best = [min(runner.seconds(spec.length) for _ in range(spec.repeats)) for runner in runners]
        peaks = [runner.books(spec.length, kind.tap).peak for runner in runners]
        power = fitted(spec.widths, best)
        rows[name] = {
            "time": power.exponent,
            "95 % interval": [round(power.low, 2), round(power.high, 2)],
            "memory": fitted(spec.widths, peaks).exponent,
        }
        if kind.operations is not None:
            formula = [kind.operations(spec, spec.length, width) for width in spec.widths]
            rows[name]["operations"] = fitted(spec.widths, formula).exponent
    return rows


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Time and memory against length, both axes by factors: the slope of a line is its exponent."""
    found = outcome.numbers[CURVES]
    written = []
    for key, label, unit in (("seconds", "milliseconds", 1e-3), ("bytes", "MiB that live at once", 2**20)):
        lines = []
        for name, values in found[key].items():
            scaled = [value / unit for value in values]
            lines.append(Line(name, found["lengths"], scaled, scaled, scaled))
        path = folder / f"complexity-{'time' if key == 'seconds' else 'memory'}.png"
        bands({"": lines}, [path], x_label="length n", y_label=label, log_x=True, log_y=True)
        written.append(path)
    return written
