"""Gradients of taps, and every call of a tap: against what autograd and pencil and paper say."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import recorded, recorded_calls, recorded_gradients
from anaphor.mixers import Span, mixer_spec
from anaphor.models import build

TIGHT = {"rtol": 1e-9, "atol": 1e-11}


def test_every_call_is_kept_when_asked():
    model = build("hybrid", vocabulary=20, width=8, layers=2, memory=4)
    tokens = torch.randint(0, 20, (1, 6))
    with recorded_calls(model, "layers.1.*") as every, recorded(model, "layers.1.*") as last:
        _, state = model(tokens[:, :4])
        model(tokens[:, 4:], state)
    assert [tuple(one.shape) for one in every["layers.1.mixer.weights"]] == [(1, 4, 4, 4), (1, 4, 2, 6)]
    assert every["layers.1.mixer.weights"][-1] is last["layers.1.mixer.weights"]


def test_gradients_of_attention_weights_are_those_of_autograd():
    model = build("transformer", vocabulary=20, width=8, layers=2)
    tokens = torch.randint(0, 20, (2, 5))
    with recorded(model, "layers.*.weights") as plain:
        logits, _ = model(tokens)
    expected = torch.autograd.grad(logits.square().sum(), list(plain.values()))
    with recorded_gradients(model, "layers.*.weights") as seen:
        logits, _ = model(tokens)
        logits.square().sum().backward()
    for name, gradient in zip(seen.values, expected, strict=True):
        torch.testing.assert_close(seen.gradients[name], gradient, **TIGHT)
        assert gradient.abs().sum() > 0


def recurrent(name, tokens=5):
    """A mixer, and the gradients of its taps for the sum of all squares of its output."""
    mixer = mixer_spec(name, width=3).build()
    x = torch.randn(2, tokens, 3)
    with recorded_gradients(mixer) as seen:
        y, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    y.square().sum().backward()
    return mixer, x, y.detach(), seen


@pytest.mark.parametrize("name", ["rnn-tanh", "rnn-identity", "gru", "lstm"])
def test_the_gradient_of_a_state_counts_what_it_does_later(name):
    mixer, x, y, seen = recurrent(name)
    states = seen.values["states"].detach()
    for cut in range(1, 5):
        # The sequence is cut, and goes on from a state that autograd knows.
        state = mixer.state_type(*(states[:, cut - 1, part].requires_grad_() for part in range(states.shape[2])))
        rest, _ = mixer(x[:, cut:], state, Span.after(torch.full((2,), cut), 5 - cut))
        later = torch.autograd.grad(rest.square().sum(), state)
        now, hidden = seen.gradients["states"][:, cut - 1], later[0] + 2 * y[:, cut - 1]
        torch.testing.assert_close(now[:, 0], hidden, **TIGHT)
        if name == "lstm":  # the hidden state comes out of the cell, which therefore hears of both
            gates = dict(zip(mixer.gate_names, seen.values["gates"].detach()[:, cut - 1].unbind(1), strict=True))
            inside = gates["output"] * (1 - torch.tanh(state.cell.detach()).square())
            torch.testing.assert_close(now[:, 1], later[1] + hidden * inside, **TIGHT)
    torch.testing.assert_close(seen.gradients["states"][:, -1, 0], 2 * y[:, -1], **TIGHT)


def test_gradients_of_an_lstm_s_gates_follow_from_those_of_its_states():
    mixer, _, _, seen = recurrent("lstm")
    hidden, cell = seen.gradients["states"].unbind(2)
    _, cells = seen.values["states"].detach().unbind(2)
    before = torch.cat((torch.zeros(2, 1, 3), cells[:, :-1]), dim=1)
    values = dict(zip(mixer.gate_names, seen.values["gates"].detach().unbind(2), strict=True))
    found = dict(zip(mixer.gate_names, seen.gradients["gates"].unbind(2), strict=True))
    torch.testing.assert_close(found["output"], hidden * torch.tanh(cells), **TIGHT)
    torch.testing.assert_close(found["forget"], cell * before, **TIGHT)
    torch.testing.assert_close(found["input"], cell * values["candidate"], **TIGHT)
    torch.testing.assert_close(found["candidate"], cell * values["input"], **TIGHT)


def test_gradients_of_a_gru_s_gates_follow_from_those_of_its_states():
    mixer, _, _, seen = recurrent("gru")
    (hidden,) = seen.gradients["states"].unbind(2)
    (states,) = seen.values["states"].detach().unbind(2)
    before = torch.cat((torch.zeros(2, 1, 3), states[:, :-1]), dim=1)
    values = dict(zip(mixer.gate_names, seen.values["gates"].detach().unbind(2), strict=True))
    found = dict(zip(mixer.gate_names, seen.gradients["gates"].unbind(2), strict=True))
    matrix, constant = (weight.detach()[-3:] for weight in mixer.recurrent_weights)
    recalled = before @ matrix.T + constant
    torch.testing.assert_close(found["update"], hidden * (before - values["candidate"]), **TIGHT)
    torch.testing.assert_close(found["candidate"], hidden * (1 - values["update"]), **TIGHT)
    through = found["candidate"] * (1 - values["candidate"].square()) * recalled
    torch.testing.assert_close(found["reset"], through, **TIGHT)


def test_what_comes_after_the_last_token_that_counts_has_no_gradient():
    model = build("lstm", vocabulary=20, width=4, layers=1)
    with recorded_gradients(model, "*.states") as seen:
        logits, _ = model(torch.randint(0, 20, (1, 6)))
    logits[:, 2].sum().backward()
    (gradient,) = seen.gradients.values()
    assert gradient.shape == (1, 6, 2, 4)
    assert gradient[:, :3].abs().amin() > 0
    assert not gradient[:, 3:].any()


def test_a_gradient_that_cannot_be_had_is_explained():
    model = build("transformer", vocabulary=20, width=8, layers=1)
    tokens = torch.randint(0, 20, (1, 4))
    with recorded_gradients(model) as seen:
        logits, _ = model(tokens)
    with pytest.raises(ConfigError, match=r"'layers.0.mixer.weights' has no gradient"):
        _ = seen.gradients
    logits.sum().backward()
    assert seen.gradients["layers.0.mixer.weights"].shape == (1, 4, 4, 4)
    with torch.no_grad(), recorded_gradients(model) as seen:
        model(tokens)
    with pytest.raises(ConfigError, match="no_grad"):
        _ = seen.gradients


def test_nothing_is_watched_afterwards():
    model = build("lstm", vocabulary=20, width=4, layers=1)
    with recorded_gradients(model), recorded_calls(model):
        assert model.layers[0].mixer.gates.is_recorded
    assert not model.layers[0].mixer.gates.is_recorded
    assert not model.layers[0].mixer.gates._forward_hooks
