"""What layers cost: counted exactly on any machine, and timed where there is time."""

import sys

import pytest
import torch

from anaphor.labs import complexity, measures
from anaphor.labs.lab import LABS, Outcome
from anaphor.labs.measures import CostMode, Power
from anaphor.labs.specs import ComplexitySpec
from anaphor.labs.verb import print_outcome

SMALL = ComplexitySpec(
    lengths=(64, 128, 256, 512), large=128, widths=(8, 16, 32), width=16, length=96, repeats=1, attempts=1, chunk=40
)


def test_operations_memory_and_depth_follow_the_formulas():
    """Seed 002 1 (e) and seed 003 3.1. Times are left out: those of such short texts say nothing."""
    checks = {check.what: check for check in complexity.run(SMALL).checks if not check.timed}
    assert [check for check in checks.values() if not check.kept] == []
    assert checks["operations of attention, explicit"].value == 8 * 96 * 16 * 16 + 4 * 96 * 96 * 16
    assert len(checks) == 15


def test_a_time_out_of_bounds_is_taken_again_and_told(monkeypatch):
    found = iter([Power(1.5, 1.4, 1.6), Power(1.9, 1.8, 2.0)])
    power = {name: Power(1.0, 0.9, 1.1) for name in complexity.KINDS}
    monkeypatch.setattr(complexity, "against_width", lambda spec: {})
    monkeypatch.setattr(
        complexity,
        "fit_exponents",
        lambda spec, times: power | {"attention, explicit": next(found, Power(2.0, 2.0, 2.0))},
    )
    outcome = complexity.run(ComplexitySpec(**{**vars(SMALL), "attempts": 3, "lengths": (16, 32, 64), "large": 16}))
    assert outcome.numbers["attempts at the times"] == 2
    assert outcome.numbers["attempt 1, out of bounds"]["attention, explicit"] == 1.5
    assert outcome.holds


def with_exponent(monkeypatch, exponent: float, threads: int = 1) -> Outcome:
    """The lab with given exponents of the time: one for explicit attention, 1 for all others."""
    fit = complexity.fit_exponents
    linear = {name: Power(1.0, 0.9, 1.1) for name in complexity.KINDS}
    times = {name: [0.005, 0.02, 0.08] for name in complexity.KINDS}
    monkeypatch.setattr(complexity, "against_width", lambda spec: {})
    monkeypatch.setattr(complexity, "measure_times", lambda runners, lengths, repeats: times)
    monkeypatch.setattr(
        complexity,
        "fit_exponents",
        lambda spec, costs: (
            linear | {"attention, explicit": Power(exponent, exponent, exponent)}
            if costs is times
            else fit(spec, costs)
        ),
    )
    return complexity.run(ComplexitySpec(**{**vars(SMALL), "lengths": (64, 128, 256), "large": 64, "threads": threads}))


@pytest.mark.parametrize(("exponent", "is_quadratic"), [(1.5, False), (1.9, True), (2.1, True), (2.78, False)])
def test_a_time_is_quadratic_only_near_two_and_does_not_decide_what_needs_no_clock(monkeypatch, exponent, is_quadratic):
    outcome = with_exponent(monkeypatch, exponent)
    timed = {check.what: check.kept for check in outcome.checks if check.timed}
    assert timed.pop("time of explicit attention grows as n to") is is_quadratic
    assert list(timed.values()) == [True] * 4
    assert (outcome.holds, outcome.timing) == (True, "measured")


def test_wall_time_of_several_threads_decides_nothing(monkeypatch):
    outcome = with_exponent(monkeypatch, 2.0, threads=2)
    assert (outcome.holds, outcome.timing) == (True, "not measured")
    assert not [check for check in outcome.checks if check.timed]


@pytest.mark.parametrize("tick", [1e-6, 1e-3, 0.01])
def test_the_time_of_a_call_is_its_processor_time_also_by_a_coarse_clock(monkeypatch, tick):
    calls = []  # each takes 0.7 ms of a clock that advances by whole ticks
    monkeypatch.setattr(measures, "thread_time", lambda: len(calls) * 0.7e-3 // tick * tick)
    assert measures.processor_seconds(calls.append, 1) == pytest.approx(0.7e-3, rel=0.5)
    assert len(calls) * 0.7e-3 >= measures.MIN_SECONDS


def test_a_clock_that_stands_still_gives_a_time_that_has_a_logarithm(monkeypatch):
    monkeypatch.setattr(measures, "thread_time", lambda: 1.0)
    monkeypatch.setattr(measures, "MAX_WAIT", 0.0)
    assert measures.processor_seconds(len, "") > 0


def test_the_number_of_threads_is_put_back(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(complexity, "_run", lambda spec: torch.get_num_threads())
    assert complexity.run(ComplexitySpec(threads=before + 1)) == before + 1
    assert torch.get_num_threads() == before


def test_the_cost_mode_counts_bytes_that_live_at_once_and_steps_that_wait():
    x = torch.zeros(1000, dtype=torch.float32)  # there before, and not counted
    with CostMode() as costs, torch.no_grad():
        y = x + 1  # 4,000 bytes
        z = y * y  # 8,000
        del y
        w = z.view(10, 100).sum(0)  # a view is no step; 400 more beside 4,000
    assert costs.peak == 8000
    assert costs.depth == 3
    assert w.shape == (100,)


def test_steps_side_by_side_are_no_deeper_than_one():
    x = torch.ones(8, dtype=torch.float32)
    with CostMode() as costs:
        kept = [x * number for number in range(5)]
    assert (costs.depth, costs.peak, len(kept)) == (1, 5 * 32, 5)


@pytest.mark.slow
def test_measured_exponents_at_large_n(capsys):
    """On a noisy machine up to three attempts; how many it took is told."""
    outcome = LABS["complexity"].run(ComplexitySpec(attempts=3))
    attempts = outcome.numbers["attempts at the times"]
    with capsys.disabled():
        sys.stdout.write(f"\nattempts: {attempts}, exponents: {outcome.numbers['against length']}\n")
    rows = outcome.numbers["against length"]
    assert outcome.timing == "measured"
    assert 1.7 <= rows["attention, explicit"]["time"] <= 2.3
    assert all(rows[name]["time"] <= 1.35 for name in ("pooled", "linear", "recurrent"))
    assert all(row["95 % interval"][0] <= row["time"] + 0.01 for row in rows.values())


def test_an_interval_stands_on_one_line_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(complexity, "against_width", lambda spec: {})
    powers = dict.fromkeys(complexity.KINDS, Power(0.1234, -0.28, 0.53))
    found = complexity.Measured(
        times={name: [0.2641] for name in complexity.KINDS},
        attempts=[powers],
        peaks={name: [238_551_040] for name in complexity.KINDS},
        memory=powers,
        depths={name: [195, 771] for name in complexity.KINDS},
        operations={},
        pooled={},
    )
    print_outcome(Outcome("complexity", "a claim", (), complexity._numbers(ComplexitySpec(), found)), [])
    shown = capsys.readouterr().out
    assert shown.count("(-0.28, 0.53)") == len(complexity.KINDS)
    assert shown.count("(195, 771)") == len(complexity.KINDS)
