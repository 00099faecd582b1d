"""Ratios and their intervals, on times that are known; and the stacks that are compared do the same work."""

import math
import os
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from anaphor.mixers import Span
from benchmarks import overhead
from benchmarks.processes import PEER_SPIN_COUNT, SPIN_COUNT_VARIABLE, spawn_peer
from benchmarks.timing import estimate_ratio, time_alternately


def test_a_constant_ratio_has_no_interval_to_speak_of():
    found = estimate_ratio([(1.0, 2.0), (3.0, 6.0), (0.5, 1.0)])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.pairs == 3


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=20))
def test_the_interval_is_scipys(pairs):
    found = estimate_ratio(pairs)
    logs = [math.log(second / first) for first, second in pairs]
    middle, error = sum(logs) / len(logs), stats.sem(logs)
    assert found.value == pytest.approx(math.exp(middle))
    if error > 0:
        low, high = stats.t.interval(0.95, len(logs) - 1, middle, error)
        assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_both_run_equally_often_in_either_order():
    calls = []
    found = time_alternately(lambda: calls.append("first"), lambda: calls.append("second"), pairs=40)
    assert len(found) == 40
    assert calls.count("first") == calls.count("second") == 42
    orders = {tuple(calls[start : start + 2]) for start in range(4, len(calls), 2)}
    assert orders == {("first", "second"), ("second", "first")}


@pytest.mark.parametrize("make", [overhead.lstm_pair, overhead.attention_pair])
def test_what_is_compared_has_the_same_size_and_shape(make):
    setting = overhead.Setting(2, 5, 64, 2)
    stack, peer, run = make(setting)
    x = torch.randn(2, 5, 64)
    assert sum(p.numel() for p in stack.parameters()) == sum(p.numel() for p in peer.parameters())
    assert run(x).shape == stack(x, stack.initial_state(x), Span.whole(x))[0].shape


def test_a_peer_elsewhere_has_a_process_and_settings_of_its_own(monkeypatch):
    monkeypatch.setenv(SPIN_COUNT_VARIABLE, "500")
    with spawn_peer(partial, eval, f"__import__('os').environ['{SPIN_COUNT_VARIABLE}'], given") as peer:
        assert [peer({"given": letter}) for letter in "ab"] == [(PEER_SPIN_COUNT, "a"), (PEER_SPIN_COUNT, "b")]
    assert os.environ[SPIN_COUNT_VARIABLE] == "500"
