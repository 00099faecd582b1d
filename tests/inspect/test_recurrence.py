"""Gates and states of recurrent layers over time."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import recorded, unit_maps
from anaphor.mixers import Span, mixer_spec
from anaphor.models import Backbone, BlockSpec, build


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("lstm", ["hidden", "cell", "input", "forget", "candidate", "output"]),
        ("gru", ["hidden", "reset", "update", "candidate"]),
        ("qrnn", ["cell", "candidate", "forget", "output"]),
        ("rnn-tanh", ["hidden"]),
    ],
)
def test_every_part_of_every_layer_is_there(name, parts):
    model = build(name, vocabulary=20, width=6, layers=2)
    tokens = torch.randint(0, 20, (1, 7))
    found = unit_maps(model, tokens)
    assert [one.part for one in found] == 2 * parts
    assert {one.layer for one in found} == {"layers.0.mixer", "layers.1.mixer"}
    with recorded(model) as seen:
        model(tokens)
    torch.testing.assert_close(found[0].values, seen["layers.0.mixer.states"][0, :, 0].T.detach())
    assert found[0].units == tuple(range(6))
    for one in found:
        assert one.values.shape == (6, 7)
        assert not one.bounded or bool(((one.values >= 0) & (one.values <= 1)).all())


def test_units_that_vary_most_are_the_same_in_every_part():
    model = build("lstm", vocabulary=20, width=12, layers=1)
    tokens = torch.randint(0, 20, (9,))
    everything, some = unit_maps(model, tokens), unit_maps(model, tokens, most=4)
    spread = everything[0].values.std(1, correction=0)
    assert set(some[0].units) == set(spread.argsort(descending=True)[:4].tolist())
    assert list(some[0].units) == sorted(some[0].units)
    for whole, part in zip(everything, some, strict=True):
        assert (part.units, part.of) == (some[0].units, 12)
        torch.testing.assert_close(part.values, whole.values[list(part.units)])
    with pytest.raises(ConfigError, match="most=0"):
        unit_maps(model, tokens, most=0)


def test_a_direction_from_the_end_is_shown_in_the_order_of_the_text():
    stack = Backbone([BlockSpec(mixer=mixer_spec("bidirectional-gru", width=4), norm="none", residual=False)])
    x = torch.randn(1, 5, 4)
    found = unit_maps(stack, x, stack.initial_state(x), Span.whole(x))
    y, _ = stack(x, stack.initial_state(x), Span.whole(x))
    hidden = {one.layer: one.values for one in found if one.part == "hidden"}
    torch.testing.assert_close(hidden["0.mixer.forward_layer"], y[0, :, :2].T.detach())
    torch.testing.assert_close(hidden["0.mixer.backward_layer"], y[0, :, 2:].T.detach())


def test_models_without_recurrence_have_none():
    assert unit_maps(build("transformer", vocabulary=20, width=8, layers=1), torch.randint(0, 20, (3,))) == []
    with pytest.raises(ConfigError, match="has a batch of 2"):
        unit_maps(build("gru", vocabulary=20, width=8), torch.randint(0, 20, (2, 3)))
