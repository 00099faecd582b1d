"""Carried states as named tensors: what the model made comes back, whatever it had grown to."""

import copy
from typing import NamedTuple

import pytest
import torch

from anaphor.errors import CheckpointError
from anaphor.mixers import KVBuffer, detach
from anaphor.models import build
from anaphor.training import checkpoint
from anaphor.training.state_dicts import flatten, unflatten

PRESETS = ["lstm", "gru", "qrnn", "linear", "transformer", "transformer-xl", "hybrid"]


def small(name):
    changes = {"memory": 6} if name in ("transformer-xl", "hybrid") else {}
    return build(name, vocabulary=11, width=8, layers=2, **changes)


def state_after(model, tokens, lengths=None):
    with torch.no_grad():
        return model(tokens, lengths=lengths)[1]


def through_a_file(tmp_path, state):
    return checkpoint.read(checkpoint.write(tmp_path, 1, {"carry": flatten(state)}, {})).parts["carry"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_a_model_goes_on_from_a_stored_state(name, padded, tmp_path):
    model, tokens = small(name).eval(), torch.randint(11, (2, 9))
    lengths = torch.tensor([2, 5]) if padded else None
    state = state_after(model, tokens[:, :5], lengths)
    stored = unflatten(model.initial_state(2), through_a_file(tmp_path, state))
    assert type(stored) is type(state)
    with torch.no_grad():
        expected, _ = model(tokens[:, 5:], state)
        actual, _ = model(tokens[:, 5:], stored)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("name", PRESETS)
def test_training_with_carried_state_through_a_file_is_the_uninterrupted_one(name, tmp_path):
    def train(model, state, segments):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for tokens in segments:
            logits, state = model(tokens, state)
            optimizer.zero_grad()
            logits.square().mean().backward()
            optimizer.step()
            state = detach(state)
        return state

    first, second = torch.randint(11, (2, 24)).split(12, 1)
    model = small(name).float()
    state = train(model, None, first.split(4, 1))
    twin = copy.deepcopy(model)
    carried = unflatten(twin.initial_state(2), through_a_file(tmp_path, state))
    train(model, state, second.split(4, 1))
    train(twin, carried, second.split(4, 1))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


class Odd(NamedTuple):
    """Everything that a state may hold."""

    tensor: torch.Tensor
    growing: KVBuffer
    nothing: object
    flag: bool
    count: int
    share: float
    pair: tuple


def odd(length, nothing=None, flag=False, count=0, share=0.0):
    growing = KVBuffer(torch.randn(2, length, 3), 1)
    return Odd(torch.randn(2, 4), growing, nothing, flag, count, share, ((), (torch.arange(3),)))


@pytest.mark.parametrize("nothing", [None, KVBuffer(torch.ones(2, 5, dtype=torch.long), 1), torch.ones(2)])
def test_all_that_a_state_may_hold(nothing, tmp_path):
    state = odd(5, nothing, flag=True, count=2**62, share=0.1)
    again = unflatten(odd(0), through_a_file(tmp_path, state))
    assert isinstance(again, Odd)
    assert torch.equal(again.tensor, state.tensor)
    assert torch.equal(again.growing.data, state.growing.data)
    assert again.growing.axis == 1
    assert (again.flag, again.count, again.share) == (True, 2**62, 0.1)
    assert type(again.nothing) is type(nothing)
    assert again.pair[0] == ()
    assert torch.equal(again.pair[1][0], torch.arange(3))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda tensors: tensors.pop("tensor"), "missing: tensor"),
        (lambda tensors: tensors.pop("nothing@none"), "missing: nothing"),
        (lambda tensors: tensors.update(more=torch.zeros(1)), "unexpected: more"),
        (lambda tensors: tensors.update({"tensor@1": torch.zeros(2, 4)}), "unexpected: tensor"),
        (lambda tensors: tensors.update(tensor=torch.zeros(3, 4)), "tensor is 3 × 4 but should be 2 × 4"),
        (lambda tensors: tensors.update({"growing@1": torch.zeros(2, 9, 4)}), "growing@1 is 2 × 9 × 4 but should"),
        (lambda tensors: tensors.update({"growing@1": torch.zeros(2)}), "growing@1 is 2 but should be 2 × 5 × 3"),
        (lambda tensors: tensors.update({"flag@number": torch.tensor(7)}), r"flag@number .* should be a bool"),
        (lambda tensors: tensors.update({"count@number": torch.zeros(9)}), r"count@number \(9\) should be a int"),
        (
            lambda tensors: tensors.update({"nothing@os.system": tensors.pop("nothing@none")}),
            r"nothing@os.system \(0\) should be a NoneType",
        ),
        (
            lambda tensors: tensors.update({"growing@2": tensors.pop("growing@1")}),
            r"growing@2 \(2 × 5 × 3\) should be a KVBuffer",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_size(spoil, told):
    tensors = flatten(odd(5))
    spoil(tensors)
    with pytest.raises(CheckpointError, match=told):
        unflatten(odd(5), tensors)


def test_a_state_of_other_rows_is_refused():
    model = small("lstm")
    tensors = flatten(state_after(model, torch.randint(11, (2, 3))))
    with pytest.raises(
        CheckpointError, match=r"seen is 2 but should be 3, layers/0/hidden is 2 × 8 but should be 3 × 8"
    ):
        unflatten(model.initial_state(3), tensors)
