"""Schedules: shapes between one and their end, and the plateau of the example script."""

import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anaphor.errors import CheckpointError, ConfigError
from anaphor.training.schedule import SCHEDULES, SHAPES, ScheduleSpec, build_schedule

SHARES = st.floats(0, 1)
LOSSES = st.lists(st.floats(0.1, 10) | st.just(math.nan) | st.just(math.inf), max_size=30)


@st.composite
def specs(draw):
    name = draw(st.sampled_from(sorted(SHAPES)))
    final = draw(st.none() | SHARES) if name != "constant" else None
    return ScheduleSpec(schedule=name, warmup=draw(st.floats(0, 0.9)), min_lr_ratio=final)


@given(specs(), SHARES, SHARES)
def test_factors_rise_in_the_warm_up_and_never_after(spec, one, other):
    schedule, (early, late) = build_schedule(spec), sorted((one, other))
    before, after = schedule.factor(early), schedule.factor(late)
    assert 0 <= before <= 1
    if late <= spec.warmup:
        assert before <= after
    if early >= spec.warmup:
        assert before >= after - 1e-12


@given(specs())
def test_the_warm_up_ends_at_one_and_the_budget_at_the_final_share(spec):
    schedule = build_schedule(spec)
    assert schedule.factor(spec.warmup) == pytest.approx(1)
    end = 1 if spec.schedule == "constant" else spec.min_lr_ratio or 0
    assert schedule.factor(1) == pytest.approx(end, abs=1e-12)
    assert schedule.factor(1.7) == schedule.factor(1)


@given(specs(), st.integers(1, 50), SHARES)
def test_a_schedule_asks_only_how_much_is_spent(spec, steps, where):
    """The same share of steps and of minutes gives the same factor, asked in any order and any number of times."""
    first, second = build_schedule(spec), build_schedule(spec)
    for step in range(steps):
        first.factor(step / steps)
        first.report(1.0)
    assert first.factor(where) == second.factor(where)
    assert first.state_dict() == {}


@given(st.sampled_from(["linear", "cosine"]), st.floats(0, 0.999))
def test_steps_are_small_where_progress_is(name, where):
    schedule = build_schedule(ScheduleSpec(schedule=name))
    assert abs(schedule.factor(where) - schedule.factor(where + 0.001)) < 0.002


def test_half_way_down():
    assert build_schedule(ScheduleSpec(schedule="linear", min_lr_ratio=0.2)).factor(0.5) == pytest.approx(0.6)
    assert build_schedule(ScheduleSpec(schedule="cosine")).factor(0.5) == pytest.approx(0.5)
    assert build_schedule(ScheduleSpec(schedule="constant", warmup=0.2)).factor(0.1) == pytest.approx(0.5)


@given(st.lists(st.floats(0.1, 10), max_size=30))
def test_plateau_against_the_loop_of_the_example_script(losses):
    schedule, lr, best = build_schedule(ScheduleSpec(schedule="plateau")), 20.0, None
    for loss in losses:
        lowered = schedule.report(loss)
        if not best or loss < best:
            best = loss
        else:
            lr /= 4.0
            assert lowered
        assert 20.0 * schedule.factor(0.5) == lr


@given(LOSSES, st.integers(0, 30), st.floats(1.1, 10))
def test_a_plateau_through_its_state_is_the_uninterrupted_one(losses, where, divisor):
    spec = ScheduleSpec(schedule="plateau", plateau_factor=divisor)
    whole, first, second = (build_schedule(spec) for _ in range(3))
    for loss in losses:
        whole.report(loss)
    for loss in losses[:where]:
        first.report(loss)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for loss in losses[where:]:
        second.report(loss)
    assert second.state_dict() == whole.state_dict()
    assert second.factor(1.0) == whole.factor(1.0)


def test_a_loss_that_is_no_number_is_no_improvement():
    schedule = build_schedule(ScheduleSpec(schedule="plateau"))
    assert schedule.report(math.nan)
    assert not schedule.report(3.0)
    assert schedule.report(math.nan)
    assert schedule.state_dict() == {"best": 3.0, "cuts": 2}


@given(st.floats(0.01, 0.9), SHARES)
def test_a_plateau_warms_up_too(warmup, where):
    assume(where < warmup)
    schedule = build_schedule(ScheduleSpec(schedule="plateau", warmup=warmup))
    assert schedule.factor(where) == pytest.approx(where / warmup)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"warmup": 1.0}, "warmup=1.0"),
        ({"schedule": "cosine", "min_lr_ratio": 1.5}, "min_lr_ratio=1.5"),
        ({"schedule": "plateau", "min_lr_ratio": 0.1}, "min_lr_ratio=0.1 is not used by a plateau schedule"),
        ({"schedule": "linear", "plateau_factor": 4.0}, "plateau_factor=4.0 is not used by a linear schedule"),
        ({"schedule": "plateau", "plateau_factor": 1.0}, "plateau_factor=1.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, told):
    with pytest.raises(ConfigError, match=told):
        ScheduleSpec(**fields)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("cosine", {"best": 1.0}),
        ("plateau", {}),
        ("plateau", {"best": "low", "cuts": 1}),
        ("plateau", {"best": 1.0, "cuts": -1}),
        ("plateau", {"best": 1.0, "cuts": 10**400}),
    ],
)
def test_a_state_that_does_not_fit_is_refused(name, state):
    with pytest.raises(CheckpointError, match="the schedule's state does not fit"):
        build_schedule(ScheduleSpec(schedule=name)).load_state_dict(state)


def test_every_schedule_says_something_of_every_moment():
    for name in SCHEDULES:
        schedule = build_schedule(ScheduleSpec(schedule=name))
        assert all(0 <= schedule.factor(step / 10) <= 1 for step in range(11))
