"""Every lab: its claim holds on its own inputs, fails where it should, and repeats the numbers of the exercises."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.labs import kronecker, low_rank, masking, scaling, specs, unroll
from anaphor.labs.lab import CURVES, LABS, Outcome, at_least, at_most, equal, true
from anaphor.labs.measures import fit_power
from anaphor.labs.verb import print_outcome

QUICK = {
    "low-rank": specs.LowRankLabSpec(train=0, lengths=(64, 128, 256)),  # nothing is trained, little is timed
    "scaling": specs.ScalingSpec(samples=4000),
}
DOCS = Path(__file__).parents[2] / "docs"
LABS_HERE = [name for name in LABS if name != "complexity"]


@pytest.fixture(scope="module")
def outcomes():
    return {name: LABS[name].run(QUICK.get(name)) for name in LABS_HERE}


@pytest.mark.parametrize("name", LABS_HERE)
def test_every_lab_holds_and_says_so_in_json(outcomes, name):
    outcome = outcomes[name]
    assert [check for check in outcome.checks if not check.kept] == []
    plain = json.loads(json.dumps(outcome.to_plain(), allow_nan=False))
    assert list(plain) == ["lab", "claim", "holds", "timing", "numbers"]
    assert (plain["lab"], plain["claim"], plain["holds"]) == (name, LABS[name].claim, True)


@pytest.mark.parametrize("name", LABS_HERE)
def test_every_lab_draws_from_its_numbers_alone(outcomes, name, tmp_path):
    plain = json.loads(json.dumps(outcomes[name].to_plain()))
    written = LABS[name].draw(Outcome(name, plain["claim"], (), plain["numbers"]), tmp_path / "figures")
    assert written
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert {path.suffix for path in written} == set(starts)
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in written)


def test_a_claim_without_checks_does_not_hold():
    assert not Outcome("lab", "claim", ()).holds
    assert not Outcome("lab", "claim", (at_most("a", 1, 2), at_most("b", math.inf, 2))).holds
    assert not at_most("not a number", math.nan, 2).kept
    assert [check.kept for check in (at_least("c", 1, 2), equal("d", 3, 3), true("e", False))] == [False, True, False]
    assert at_most("b", math.inf, 2).to_plain()["value"] == "inf"


def test_the_dense_matrix_of_attention_is_the_identity_times_the_weights():
    A = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    M = kronecker.dense(A, 3)
    X = torch.randn(2, 3, dtype=torch.float64)
    torch.testing.assert_close(M @ kronecker.vec(X), kronecker.vec(A @ X))
    np.testing.assert_array_equal(kronecker.vec(torch.tensor([[1, 2], [3, 4]])), [1, 3, 2, 4])  # column by column
    assert M.shape == (6, 6)
    assert int((M != 0).sum()) == 12


def test_free_entries_of_attention_are_what_rows_that_sum_to_one_leave_open(outcomes):
    """Seed 000: of N² different weights one in each row is what the others leave of 1."""
    assert outcomes["kronecker"].numbers["of these free"] == 4 * 3


def test_a_fully_connected_layer_can_be_attention_that_ignores_its_input():
    outcome = kronecker.run(specs.KroneckerSpec(sharpness=0.0))
    assert not outcome.holds
    errors = outcome.numbers["relative error of a fully connected layer"]
    assert errors["attention, 2,000 inputs"]["on fresh ones"] < 1e-8


def test_states_are_unrolled_with_letters(outcomes):
    """Seed 002, problem 1 (a) to (c)."""
    numbers = outcomes["unroll"].numbers
    assert numbers["h_2"] == "W_h W_x x_1 + W_x x_2"
    assert numbers["h_3"] == "W_h² W_x x_1 + W_h W_x x_2 + W_x x_3"
    for step in "23T":
        assert numbers[f"y_{step}"] == f"φ(W_y ({numbers[f'h_{step}']}))"
    assert numbers["h_T"] == "W_h^(T-1) W_x x_1 + … + W_h W_x x_(T-1) + W_x x_T"


def test_the_first_input_is_lost_kept_or_swells_with_the_radius(outcomes):
    shares = outcomes["unroll"].numbers[CURVES]["share of the first input"]
    assert shares["radius 0.9"][-1] < 1e-5
    assert shares["radius 1"][-1] == pytest.approx(1 / 100)
    assert shares["radius 1.1"][-1] == pytest.approx(1 - 1 / 1.1, rel=1e-3)


def test_clipping_bounds_what_explodes_and_leaves_what_vanishes(outcomes):
    rows = outcomes["unroll"].numbers["after 100 steps"]
    assert rows["radius 1.1"]["gradient of x_1"] > 1000
    assert rows["radius 1.1"]["clipped"] == pytest.approx(1)
    assert rows["radius 0.9"]["clipped"] == rows["radius 0.9"]["gradient of x_1"] < 0.001


def test_any_matrix_grows_at_its_spectral_radius():
    assert unroll.run(specs.UnrollSpec(matrix="gaussian", radii=(0.5, 1.2), steps=200)).holds


def test_a_lab_does_not_change_the_random_numbers_of_its_caller():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    first = torch.rand(1)
    assert LABS["unroll"].run(specs.UnrollSpec(seed=5)).holds
    assert torch.equal(torch.cat((first, torch.rand(1))), expected)


def test_terms_of_a_state_that_cancel_leave_rounding_alone():
    """With one number as state and radius 1 every term is 1 or -1, and their sum nearly zero."""
    assert unroll.run(specs.UnrollSpec(hidden=1, radii=(1.0,))).holds


def test_a_lab_ends_in_a_verdict_where_numbers_grow_large():
    assert not scaling.run(specs.ScalingSpec(mean=1000.0, samples=100, queries=100)).holds


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.5, 1.0), (-2.0, 0.3)])
def test_moments_of_a_dot_product(mean, deviation):
    """Seed 003, 3.5: hμ² and h(σ⁴ + 2μ²σ²), here with h = 10."""
    spec = specs.ScalingSpec(mean=mean, deviation=deviation)
    expected = 10 * mean**2, 10 * (deviation**4 + 2 * mean**2 * deviation**2)
    assert scaling.exact(spec, 10) == pytest.approx(expected)
    found = scaling.moments(spec, 10)
    assert found["mean off, in standard errors"] < 4
    assert found["variance off, in standard errors"] < 4


def test_the_root_of_the_width_keeps_the_softmax_awake(outcomes):
    rows = outcomes["scaling"].numbers["softmax over keys"]
    assert rows["h = 256"]["entropy, q·k"] < 0.1 < 0.7 < rows["h = 256"]["entropy, q·k / √h"]


def test_masked_tokens_have_no_influence_wherever_they_stand():
    for spec in (
        specs.MaskingSpec(hidden=0, padding=5, heads=4),
        specs.MaskingSpec(tokens=3, hidden=2, padding=1, width=3, heads=1),
    ):
        assert masking.run(spec).holds


def test_a_mask_that_leaks_would_be_seen(monkeypatch):
    monkeypatch.setattr(
        masking, "masks", lambda spec: dict.fromkeys(("hidden token", "causal", "padding"), "everything")
    )
    outcome = masking.run(specs.MaskingSpec())
    assert not outcome.holds
    assert outcome.numbers["masks"]["causal"]["gradient there"] > 0.01


@pytest.mark.parametrize(
    ("full", "factors", "timing", "kept"),
    [
        ((0.001, 0.004, 0.016), (0.001, 0.002, 0.004), "measured", [True, True]),
        ((0.001, 0.004, 0.016), (0.004, 0.016, 0.064), "measured", [False, False]),  # slower, and quadratic
        ((0.0002, 0.00026, 0.00034), (0.0004, 0.0004, 0.0004), "not measured", []),  # too short to tell
    ],
)
def test_low_rank_times_decide_beside_what_holds_without_a_clock(monkeypatch, capsys, full, factors, timing, kept):
    times = {"P V": list(full), "U (S (Wᵀ V))": list(factors)}
    monkeypatch.setattr(low_rank, "measure_times", lambda spec: times)
    outcome = low_rank.run(QUICK["low-rank"])
    assert (outcome.holds, outcome.timing) == (True, timing)
    assert [check.kept for check in outcome.checks if check.timed] == kept
    print_outcome(outcome, [])
    shown = capsys.readouterr().out
    assert f"timing: {timing}" in shown
    assert ("2 of 2 checks of the time failed" in shown) is (kept == [False, False])
    assert outcome.to_plain()["timing"] == timing


def test_a_lab_without_a_clock_says_nothing_about_timing(outcomes, capsys):
    print_outcome(outcomes["unroll"], [])
    assert "timing" not in capsys.readouterr().out
    assert outcomes["unroll"].to_plain()["timing"] is None


def test_low_rank_products_are_exact_and_cheap(outcomes):
    """Seed 003, 3.2 and 3.3: O(nkd) products instead of O(n²d)."""
    numbers = outcomes["low-rank"].numbers
    assert numbers["operations"] == {
        "P V": 2 * 256 * 256 * 32,
        "U (S (Wᵀ V))": 4 * 256 * 8 * 32,
        "Q (C K)ᵀ (D V)": 8 * 256 * 8 * 32,
    }
    assert numbers["rank"] == {"P": 8, "softmax(P)": 256, "of": 256}


def test_every_concept_has_an_answer_and_its_evidence(outcomes):
    outcome = outcomes["concepts"]
    assert len(outcome.checks) == 16
    assert all(row["answer"] and row["why"] for row in outcome.numbers[CURVES]["answers"].values())
    assert LABS["concepts"].run(specs.ConceptsSpec(question=9, seed=5)).holds


def test_keys_inside_a_hull_get_a_certificate_instead_of_a_query():
    outcome = LABS["selection"].run(specs.SelectionSpec(width=1, keys=(0.0, 1.0, 2.0, 3.0)))
    assert outcome.holds
    assert [row["query"] == "none" for row in outcome.numbers["queries"].values()] == [0, 1, 1, 0, 0, 1]


def test_an_exponent_is_read_off_a_line_with_its_interval():
    n = [1, 2, 4, 8]
    exact = fit_power(n, [5 * one**2 for one in n])
    assert (exact.exponent, exact.low, exact.high) == pytest.approx((2, 2, 2))
    rough = fit_power(n, [1, 5, 15, 66])
    assert rough.low < 2 < rough.high


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: specs.BackpropSpec(x="one"), "x='one' is not a number"),
        (lambda: specs.BackpropSpec(b2="1/0"), "b2='1/0' is not a number"),
        (lambda: specs.BackpropSpec(vector_w=(1, 2)), "vector_w has 2 numbers, but it needs 4"),
        (lambda: specs.KroneckerSpec(few=99), "few=99"),
        (lambda: specs.KroneckerSpec(tokens=1), "tokens=1: it must be at least 2"),
        (lambda: specs.KroneckerSpec(tokens=100), "more than 64"),
        (lambda: specs.KroneckerSpec(inputs=10), "inputs=10"),
        (lambda: specs.UnrollSpec(matrix="gausian"), "did you mean 'gaussian'"),
        (lambda: specs.UnrollSpec(radii=(3.0,)), "radii"),
        (lambda: specs.UnrollSpec(steps=10_000), "at most 1,000"),
        (lambda: specs.UnrollSpec(clip=0), "clip=0"),
        (lambda: specs.BpttSpec(reach=0), "reach=0"),
        (lambda: specs.ComplexitySpec(large=4096), "large=4096"),
        (lambda: specs.ComplexitySpec(lengths=(64, 64, 10**6), large=1), "at least 3 different"),
        (lambda: specs.ComplexitySpec(lengths=(64, 128, 10**6), large=1), "16,384"),
        (lambda: specs.LowRankLabSpec(rank=20), "rank=20"),
        (lambda: specs.LowRankLabSpec(lengths=(64, 64, 128)), "at least 3 different"),
        (lambda: specs.LowRankLabSpec(tokens=10_000), "8,192"),
        (lambda: specs.ScalingSpec(deviation=0.0), "deviation=0.0"),
        (lambda: specs.ScalingSpec(samples=10**8), "memory"),
        (lambda: specs.MaskingSpec(hidden=6), "hidden=6: the positions are 0 to 5"),
        (lambda: specs.MaskingSpec(padding=6), "padding=6"),
        (lambda: specs.MaskingSpec(heads=3), "heads=3"),
        (lambda: specs.ConceptsSpec(question=17), "question=17"),
        (lambda: specs.SelectionSpec(width=5), "width=5"),
        (lambda: specs.BackpropSpec(x="1e400"), "x='1e400' is too large"),
        (lambda: specs.BackpropSpec(x="1e999999999"), "x='1e999999999' is too large"),
        (
            lambda: specs.BackpropSpec(w1="1/10000000000"),
            "is too large: numerator and denominator can be at most 1,000,000,000",
        ),
        (lambda: specs.BackpropSpec(vector_x=(math.nan, 1)), "vector_x=(nan, 1): it must be a finite number"),
        (lambda: specs.BackpropSpec(seed=2**64), "seed=18446744073709551616: it must be 0 to"),
        (lambda: specs.BackpropSpec(seed=-1), "seed=-1: it must be 0 to"),
        (lambda: specs.KroneckerSpec(sharpness=math.inf), "sharpness=inf: it must be a finite number"),
        (lambda: specs.KroneckerSpec(inputs=10**8), "inputs=100000000: it must be at most 100,000"),
        (lambda: specs.UnrollSpec(clip=math.nan), "clip=nan"),
        (lambda: specs.UnrollSpec(radii=(1e-300,)), "radii=(1e-300,)"),
        (lambda: specs.UnrollSpec(radii=(0.5, 2.0), steps=1000), "overflows double precision"),
        (lambda: specs.UnrollSpec(hidden=3000), "hidden=3000: it must be at most 64"),
        (lambda: specs.BpttSpec(steps=300), "steps=300: it must be at most 100"),
        (lambda: specs.ScalingSpec(mean=1e200), "mean=1e+200: it must be at most 1,000"),
        (lambda: specs.ScalingSpec(mean=-1e200), "mean=-1e+200: it must be at least -1000"),
        (lambda: specs.ScalingSpec(deviation=1e-300), "deviation=1e-300: it must be at least 0.001"),
        (lambda: specs.MaskingSpec(tokens=3000), "tokens=3000: it must be at most 64"),
        (lambda: specs.MaskingSpec(tokens=64, width=32), "tokens=64 × width=32 is more than 1,024"),
        (lambda: specs.LowRankLabSpec(width=10**5), "width=100000: it must be at most 512"),
        (lambda: specs.ComplexitySpec(rank=10**5), "rank=100000: it must be at most 1,024"),
        (lambda: specs.ComplexitySpec(threads=10**5), "threads=100000: it must be at most 256"),
    ],
)
def test_inputs_that_cannot_be_meant_are_refused(make, told):
    with pytest.raises(ConfigError) as refused:
        make()
    assert told in str(refused.value)


@pytest.mark.parametrize("name", LABS)
def test_every_lab_has_a_page_with_all_its_parts(name):
    page = DOCS / ("selection.md" if name == "selection" else f"labs/{name}.md")
    text = page.read_text(encoding="utf-8")
    assert "**Claim.**" in text
    assert "## Change this and see" in text
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert figures
    assert all((page.parent / figure).is_file() for figure in figures)
    assert f'"{page.relative_to(DOCS)}"' in (DOCS.parent / "zensical.toml").read_text(encoding="utf-8")


def test_exercises_start_from_the_sizes_of_the_sheet():
    """Seed 003: three steps, inputs of 3, states of 4, two classes; the token at position 3 is hidden."""
    spec = specs.BpttSpec()
    assert (spec.steps, spec.inputs, spec.hidden, spec.outputs) == (3, 3, 4, 2)
    assert specs.MaskingSpec().hidden == 3
