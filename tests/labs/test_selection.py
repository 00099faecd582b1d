"""Selection by design: every answer is checked by arithmetic on what it returns, never by asking the solver again."""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.errors import ConfigError
from anaphor.labs.selection import (
    Impossible,
    Replacement,
    Selection,
    attention,
    average,
    identity,
    replace_key,
    run,
    select,
)
from anaphor.labs.specs import SelectionSpec

EXAMPLE = np.array(SelectionSpec().keys).reshape(-1, 3)


def weights_of(keys, query):
    exponentials = np.exp(keys @ query - (keys @ query).max())
    return exponentials / exponentials.sum()


def check(keys, wanted, answer):
    """A query whose weights show it, or multipliers that forbid any margin of 1e-6."""
    others = [index for index in range(len(keys)) if index not in wanted]
    if isinstance(answer, Selection):
        weights = weights_of(keys, answer.query)
        np.testing.assert_allclose(answer.weights, weights, rtol=0, atol=1e-12)
        np.testing.assert_allclose(attention(keys, answer.query)[0], weights, rtol=0, atol=1e-6)
        if len(wanted) == 1:
            assert weights[wanted[0]] >= 0.99
        else:
            np.testing.assert_allclose(weights[wanted], 1 / len(wanted), rtol=0, atol=1e-6)
        if others:
            scores = keys @ answer.query / np.abs(answer.query).max()
            assert scores[wanted].min() - scores[others].max() == pytest.approx(answer.margin, rel=1e-3)
        return
    multipliers = answer.certificate
    assert multipliers[wanted].sum() == pytest.approx(1, rel=0, abs=1e-14 * np.abs(multipliers).max())
    assert (multipliers[others] <= 0).all()
    assert multipliers[others].sum() == pytest.approx(-1)
    # With equal scores on the wanted keys, q · (multipliers @ keys) is that score less a mean of the others: at least
    # the margin. And for a query with entries between -1 and 1 it is at most this sum.
    assert np.abs(multipliers @ keys).sum() < 1e-6


@st.composite
def matrices(draw):
    """Up to 8 keys with up to 3 numbers; duplicates, means of others, points on a line and zeros among them."""
    count, width = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    scale = draw(st.sampled_from([1.0, 0.1, 1e-3, 10.0]))
    number = draw(st.sampled_from([st.integers(-2, 2), st.floats(-3, 3, width=16), st.floats(-1, 1)]))
    keys = scale * np.array([[float(draw(number)) for _ in range(width)] for _ in range(count)])
    for change in draw(st.lists(st.sampled_from(["twice", "mean", "line", "zero"]), max_size=4)):
        place, one, two = (draw(st.integers(0, count - 1)) for _ in range(3))
        if change == "twice":
            keys[place] = keys[one]
        elif change == "mean":
            keys[place] = np.delete(keys, place, 0).mean(0) if count > 1 else keys[place]
        elif change == "line":
            keys[place] = keys[one] + draw(st.sampled_from([-1.0, 0.25, 0.5, 3.0])) * (keys[two] - keys[one])
        else:
            keys[place] = 0
    return keys


@given(matrices())
@settings(max_examples=40)
def test_a_key_is_selected_or_a_mean_of_the_others(keys):
    for index in range(len(keys)):
        check(keys, [index], select(keys, index))


@given(matrices(), st.data())
@settings(max_examples=60)
def test_a_subset_is_averaged_or_its_flat_meets_the_hull_of_the_others(keys, data):
    wanted = data.draw(st.lists(st.integers(0, len(keys) - 1), min_size=1, unique=True))
    check(keys, wanted, average(keys, wanted))


@given(matrices())
@settings(max_examples=30)
def test_all_keys_are_averaged_exactly(keys):
    np.testing.assert_allclose(weights_of(keys, average(keys).query), 1 / len(keys), rtol=0, atol=1e-15)


@given(matrices())
@settings(max_examples=20)
def test_the_identity_exists_exactly_when_every_key_can_be_selected(keys):
    each, together = [select(keys, index) for index in range(len(keys))], identity(keys)
    missing = [answer for answer in each if isinstance(answer, Impossible)]
    if missing:
        assert isinstance(together, Impossible)
        assert len(together.certificate) == len(missing)
    else:
        assert attention(keys, together.query).diagonal().min() >= 0.99


@pytest.mark.parametrize("margin", [1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("scale", [1.0, 20.0, 300.0])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_least_margin_is_enough_to_select(margin, scale, width):
    """One key above the middle of the others, which stand at the corners of a cube, by so much and no more."""
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=width - 1))) * scale
    keys = np.vstack([np.hstack([corners, np.zeros((len(corners), 1))]), np.append(np.zeros(width - 1), margin)])
    answer = select(keys, len(keys) - 1)
    assert isinstance(answer, Selection)
    assert answer.margin == pytest.approx(margin, rel=1e-3)
    check(keys, [len(keys) - 1], answer)


def test_no_query_has_a_larger_margin():
    """Against many queries with entries between -1 and 1, and against the known answer for keys on a square."""
    square = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    assert select(square, 0).margin == pytest.approx(1)
    queries = np.random.default_rng(0).uniform(-1, 1, (20000, 3))
    scores = queries @ EXAMPLE.T
    for index in range(4):
        reached = (scores[:, index] - np.delete(scores, index, 1).max(1)).max()
        assert 0.8 * select(EXAMPLE, index).margin < reached <= select(EXAMPLE, index).margin


def test_a_duplicate_cannot_be_selected_but_both_can_be_averaged():
    keys = np.array([[1.0, 0], [0, 1], [1, 0]])
    answer = select(keys, 0)
    assert isinstance(answer, Impossible)
    np.testing.assert_array_equal(answer.certificate, [1, 0, -1])
    assert "key 0 = key 2" in answer.why
    assert "at most 0.5" in answer.why
    np.testing.assert_allclose(average(keys, [0, 2]).weights, [0.5, 0, 0.5], atol=1e-6)


def test_the_bound_on_the_weight_of_an_inner_key_holds_for_any_query():
    """Of four keys round it each makes a quarter: its weight is at most 0.2, which a query of zeros reaches."""
    keys = np.vstack([EXAMPLE, EXAMPLE.mean(0)])
    answer = select(keys, 4)
    np.testing.assert_allclose(answer.certificate, [-0.25, -0.25, -0.25, -0.25, 1])
    assert "at most 0.2" in answer.why
    queries = np.random.default_rng(0).normal(size=(1000, 3)) * np.logspace(-3, 3, 1000)[:, None]
    assert attention(keys, queries)[:, 4].max() <= 0.2


@pytest.mark.parametrize(
    ("keys", "possible"),
    [([[5.0]], True), ([[0.0], [0.0]], False), ([[0.0, 0], [0, 0], [0, 0]], False), ([[1e-9], [2e-9]], True),
     ([[1e9, 1], [1e9, 2]], True), ([[-1.0], [0], [1]], True)],
)  # fmt: skip
def test_degenerate_keys(keys, possible):
    answer = select(keys, 0)
    assert isinstance(answer, Selection if possible else Impossible)
    check(np.array(keys), [0], answer)


def test_keys_on_a_line_far_from_zero_on_which_the_solver_gives_up_at_first():
    line = np.array([-0.67, -0.42, -0.4, -0.79, -0.32, -2.12])[:, None] * [1, -0.7645] + [-4698, 3985.26]
    keys = line + 1e-9 * np.random.default_rng(0).normal(size=line.shape)
    for index in range(len(keys)):
        check(keys, [index], select(keys, index))


def test_keys_that_double_precision_cannot_tell_apart_are_refused_and_moving_them_helps():
    keys = np.array([[1e15, 1e15], [1e15, 1e15 + 1]])
    with pytest.raises(ConfigError, match="subtract the mean key"):
        select(keys, 0)
    assert isinstance(select(keys - keys.mean(0), 0), Selection)


def test_least_squares_can_return_another_value_where_the_programme_does_not():
    keys = np.array([[0.0, 1], [3, 2], [2, -2], [3, -1]])
    fitted = np.linalg.lstsq(keys, np.array([100.0, 0, 0, 0]), rcond=None)[0]
    assert weights_of(keys, fitted)[1] > 0.99
    assert select(keys, 0).weights[0] > 0.99


def test_a_new_third_key_makes_two_averaged_values_three():
    query = average(EXAMPLE, [0, 1]).query
    for length in (None, 1.0):
        answer = replace_key(EXAMPLE, query, 2, [0, 1, 2], length)
        keys = np.vstack([EXAMPLE[:2], answer.key, EXAMPLE[3]])
        np.testing.assert_allclose(attention(keys, query)[0], [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-6)
        assert length is None or np.linalg.norm(answer.key) == pytest.approx(length)


def test_a_new_third_key_of_length_one_returns_the_third_value():
    query = average(EXAMPLE, [0, 1]).query
    answer = replace_key(EXAMPLE, query, 2, 2, length=1)
    np.testing.assert_allclose(answer.key, query / np.linalg.norm(query))
    assert attention(np.vstack([EXAMPLE[:2], answer.key, EXAMPLE[3]]), query)[0, 2] >= 0.99


def test_a_free_key_is_the_nearest_that_will_do():
    """It differs from the old one along the query only."""
    query = average(EXAMPLE, [0, 1]).query
    change = replace_key(EXAMPLE, query, 2, 2).key - EXAMPLE[2]
    assert change @ query == pytest.approx(np.linalg.norm(change) * np.linalg.norm(query))


@given(matrices(), st.data())
@settings(max_examples=60)
def test_a_replaced_key_does_it_or_no_allowed_score_would(keys, data):
    count, width = keys.shape
    index = data.draw(st.integers(0, count - 1))
    wanted = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    length = data.draw(st.sampled_from([None, 1.0, 0.01, 30.0]))
    query = np.array(data.draw(st.lists(st.integers(-20, 20), min_size=width, max_size=width)), dtype=float)
    companions = [other for other in wanted if other != index]
    if companions and data.draw(st.booleans()):  # a query that already prefers some of them
        designed = average(keys, companions)
        query = designed.query if isinstance(designed, Selection) else query
    answer = replace_key(keys, query, index, wanted, length)

    def does_it(weights):
        return weights[wanted].sum() >= 0.99 and np.ptp(weights[wanted]) <= 1e-6

    if isinstance(answer, Replacement):
        changed = keys.copy()
        changed[index] = answer.key
        assert does_it(weights_of(changed, query))
        assert length is None or np.linalg.norm(answer.key) == pytest.approx(length)
        return
    reach = np.linalg.norm(query) * (length or 0)
    scores = keys @ query
    np.testing.assert_allclose(np.delete(answer.certificate, index), np.delete(scores, index), rtol=1e-12, atol=1e-40)
    if length is None and query.any():
        tried = np.append(scores.mean() + np.linspace(-1000, 1000, 2001), scores)
    elif width == 1:
        tried = np.array([-reach, reach])
    else:
        tried = np.append(np.linspace(-reach, reach, 2001), scores[np.abs(scores) <= reach])
    every = np.repeat(scores[None], len(tried), 0)
    every[:, index] = tried
    exponentials = np.exp(every - every.max(1, keepdims=True))
    weights = exponentials / exponentials.sum(1, keepdims=True)
    assert not any(does_it(line) for line in weights)


def test_why_no_key_will_do_is_told_with_numbers():
    query = average(EXAMPLE, [0, 1]).query
    for reason, answer in {
        "the query is zero": replace_key(EXAMPLE, np.zeros(3), 2, 2),
        "scores 2.07795 at best with this query: the wanted keys get 8.96e-06 of": replace_key(
            EXAMPLE, query, 2, 2, length=0.1
        ),
        "scores 2.07795 at best with this query, but should": replace_key(EXAMPLE, query, 2, [0, 1, 2], length=0.1),
        "are 13.0076, -3.11051: they differ, and key 2 does not change them": replace_key(EXAMPLE, query, 2, [0, 2, 3]),
        "key 0 scores 13.0076 and key 3 -3.11051: the wanted keys get 5e-08 of": replace_key(EXAMPLE, query, 2, 3),
    }.items():
        assert isinstance(answer, Impossible)
        assert reason in answer.why


def test_tensors_are_taken_as_keys():
    assert select(torch.eye(3), 1).weights[1] >= 0.99


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: select(EXAMPLE, 4), "there is no key 4; the keys are 0 to 3"),
        (lambda: select(EXAMPLE, -1), "there is no key -1"),
        (lambda: average(EXAMPLE, []), "at least one key"),
        (lambda: average(EXAMPLE, [1, 1]), "each once"),
        (lambda: select([1.0, 2.0], 0), r"shape \[2\]"),
        (lambda: select(np.zeros((0, 3)), 0), r"shape \[0, 3\]"),
        (lambda: select([[1.0], [np.nan]], 0), "finite"),
        (lambda: replace_key(EXAMPLE, [1.0, 2.0], 0, 0), "the query has 2 numbers, but a key has 3"),
        (lambda: replace_key(EXAMPLE, np.ones(3), 0, 0, length=0), "length=0"),
        (lambda: replace_key(EXAMPLE, np.ones(3), 9, 0), "index: there is no key 9"),
    ],
)
def test_what_cannot_be_meant_is_refused(ask, told):
    with pytest.raises(ConfigError, match=told):
        ask()


def test_the_lab_reports_its_numbers():
    report = run(SelectionSpec()).to_plain()
    assert report["lab"] == "selection"
    assert report["holds"] is True
    assert report["claim"]
    assert json.loads(json.dumps(report)) == report
    queries = report["numbers"]["queries"]
    np.testing.assert_allclose([queries[f"key {i}"]["weights"] for i in range(4)], np.eye(4), rtol=0, atol=0.01)
    np.testing.assert_allclose(queries["keys 0 and 1"]["weights"], [0.5, 0.5, 0, 0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(queries["all"]["weights"], np.full(4, 0.25))
    assert report["numbers"]["the third, by a new key of length 1"][2] >= 0.99


def test_the_lab_says_why_there_is_no_new_third_key():
    """Keys three times as long: no key of length 1 scores what the first two score."""
    outcome = run(SelectionSpec(keys=tuple(3 * number for number in SelectionSpec().keys)))
    assert outcome.numbers["average of three, by a new key"] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=1e-6)
    told = outcome.numbers["the third, by a new key of length 1"]
    assert re.fullmatch(
        r"none, because key 2 scores 6\.\d+ at best with this query: the wanted keys get .* weight", told
    )


def test_the_lab_says_why_no_new_key_can_be_asked_for():
    outcome = run(SelectionSpec(keys=(1.0, 0.0, 0.0, 1.0, 1.0, 0.0), width=2))
    for name in ("average of three, by a new key", "the third, by a new key of length 1"):
        assert outcome.numbers[name] == "none, because no query averages keys 0 and 1"
