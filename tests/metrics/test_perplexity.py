"""Perplexity from totals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anaphor.metrics.losses import LossMeter, LossTotal, loss_result

TOTALS = st.builds(LossTotal, st.floats(0, 1e6), st.integers(1, 10**6), st.integers(1, 10**6))


@given(st.lists(TOTALS, min_size=1, max_size=6))
def test_totals_of_parts_add_up_to_the_whole(parts):
    whole = sum(parts[1:], parts[0])
    assert whole.tokens == sum(part.tokens for part in parts)
    assert whole.loss == pytest.approx(sum(part.total for part in parts) / whole.tokens)


def test_perplexity_is_the_exponential_of_the_mean_loss():
    total = LossTotal(math.log(8) * 10, 10, bytes=15)
    assert total.perplexity == pytest.approx(8)
    assert total.bits_per_byte == pytest.approx(2)
    assert LossTotal(1e6, 10).perplexity == math.inf
    assert math.isnan(LossTotal(math.nan, 3).perplexity), "a number that is none is not a large one"
    assert LossTotal(1.0, 1).bits_per_byte is None


def test_a_result_carries_its_signature():
    result = loss_result(LossTotal(math.log(50) * 4, 4), {"bptt": 35, "state": "carried"}, {"bleu": 3.0}, overlap=1)
    assert result.values["perplexity"] == pytest.approx(50)
    assert (result.values["bleu"], result.details) == (3.0, {"tokens": 4, "overlap": 1})
    assert result.signature == result.to_plain()["signature"] == "bptt:35|state:carried"


def test_a_sum_of_many_small_losses_is_exact():
    meter = LossMeter()
    for _ in range(1000):
        meter.add(torch.tensor(0.1, dtype=torch.float32), 3)
    assert meter.read().tokens == 3000
    assert meter.read().total == pytest.approx(1000 * float(torch.tensor(0.1, dtype=torch.float32)), rel=1e-12)
