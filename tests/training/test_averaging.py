"""Averages of weights against the sums they stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from anaphor.errors import CheckpointError, ConfigError
from anaphor.training.averaging import build_average

PATHS = st.lists(st.floats(-10, 10), min_size=1, max_size=20)


def follow(average, model, path):
    for value in path:
        nn.init.constant_(model.weight, value)
        average.update()


@settings(deadline=None)
@given(PATHS)
def test_tail_is_the_mean(path):
    model = nn.Linear(2, 1, bias=False)
    average = build_average("tail", model)
    follow(average, model, path)
    expected = torch.full_like(model.weight, sum(path) / len(path))
    torch.testing.assert_close(average.means["weight"], expected.detach())


@settings(deadline=None)
@given(PATHS, st.floats(0, 0.99))
def test_ema_is_the_mean_with_shares_that_fall(path, decay):
    model = nn.Linear(2, 1, bias=False)
    average = build_average("ema", model, decay=decay)
    follow(average, model, path)
    shares = [decay**age for age in reversed(range(len(path)))]
    expected = sum(share * value for share, value in zip(shares, path, strict=True)) / sum(shares)
    torch.testing.assert_close(average.means["weight"], torch.full((1, 2), expected))


def test_the_training_weights_come_back_bit_for_bit():
    model = nn.Linear(5, 3)
    average = build_average("ema", model, decay=0.5)
    average.update()
    at_first = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        nn.init.normal_(weight)
    own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    places = [weight.data_ptr() for weight in model.parameters()]
    with average.swapped_in():
        assert all(torch.equal(weight, at_first[name]) for name, weight in model.named_parameters())
    assert all(torch.equal(weight, own[name]) for name, weight in model.named_parameters())
    with pytest.raises(KeyboardInterrupt), average.swapped_in():
        raise KeyboardInterrupt
    assert all(torch.equal(weight, own[name]) for name, weight in model.named_parameters())
    assert places == [weight.data_ptr() for weight in model.parameters()]


def test_before_the_first_update_nothing_is_swapped():
    model = nn.Linear(2, 2)
    own = model.weight.detach().clone()
    with build_average("tail", model).swapped_in():
        assert torch.equal(model.weight, own)


@pytest.mark.parametrize("name", ["ema", "tail"])
def test_an_average_through_its_state_is_the_uninterrupted_one(name):
    model = nn.Linear(2, 1, bias=False)
    whole, first = build_average(name, model), build_average(name, model)
    follow(whole, model, [0.1, 0.7, 0.3])
    follow(first, model, [0.1, 0.7])
    second = build_average(name, model)
    second.load_state_dict(first.state_dict())
    follow(second, model, [0.3])
    assert second.updates == whole.updates
    assert torch.equal(second.means["weight"], whole.means["weight"])


def test_half_precision_weights_are_averaged_in_single():
    model = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    average = build_average("tail", model)
    follow(average, model, [1.0] * 100 + [2.0])
    assert average.means["weight"].dtype is torch.float32
    torch.testing.assert_close(average.means["weight"], torch.full((1, 2), 102 / 101, dtype=torch.float32))


def test_what_does_not_fit_is_refused():
    average = build_average("tail", nn.Linear(2, 1, bias=False))
    with pytest.raises(CheckpointError, match=r"missing: updates; wrong: weights/weight is 3 but should be 1 × 2"):
        average.load_state_dict({"weights/weight": torch.zeros(3)})
    with pytest.raises(ConfigError, match=r"decay=1\.0"):
        build_average("ema", nn.Linear(1, 1), decay=1.0)
    with pytest.raises(ConfigError, match="is not used by a tail average"):
        build_average("tail", nn.Linear(1, 1), decay=0.5)
    with pytest.raises(ConfigError, match="unknown average 'tali'; did you mean 'tail'"):
        build_average("tali", nn.Linear(1, 1))
