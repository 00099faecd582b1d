"""A hook of torch on a tap is called, also where a kernel would run without it. One that cannot work is an error."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.mixers import QRNNSpec, Span
from anaphor.models import build
from anaphor.taps import taps_of

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def make(name):
    model = build(name, vocabulary=9, width=8, layers=1).eval()
    return model, taps_of(model)


@pytest.mark.parametrize("name", ["transformer", "linear", "lstm", "gru", "rnn-tanh", "qrnn"])
def test_a_hook_sees_what_a_recording_sees(name):
    model, taps = make(name)
    plain, _ = model(TOKENS)
    seen = {}
    handles = [
        tap.register_forward_hook(lambda tap, given, result, path=path: seen.__setitem__(path, result))
        for path, tap in taps.items()
    ]
    hooked, _ = model(TOKENS)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(hooked, plain)
    with recorded(model) as found:
        model(TOKENS)
    assert seen.keys() == found.keys() == taps.keys()
    for path, tensor in found.items():
        torch.testing.assert_close(seen[path], tensor)
    assert not any(tap.is_recorded for tap in taps.values())


def test_a_hook_outlives_a_recording():
    model, taps = make("transformer")
    calls = []
    with recorded(model, "*.weights"):
        taps["layers.0.mixer.weights"].register_forward_pre_hook(lambda tap, given: calls.append(given[0].shape))
    model(TOKENS)
    assert calls == [(1, 4, 5, 5)]


def test_changed_weights_of_attention_change_the_output():
    """Also without a recording, where the fused kernel would run."""
    model, taps = make("transformer")
    plain, _ = model(TOKENS)
    taps["layers.0.mixer.weights"].register_forward_hook(lambda tap, given, weights: weights * 0)
    changed, _ = model(TOKENS)
    model.layers[0].mixer.out.weight.data.zero_()
    expected, _ = model(TOKENS)
    torch.testing.assert_close(changed, expected)
    assert not torch.allclose(changed, plain)


def test_changed_gates_of_a_qrnn_change_its_output():
    mixer, x = QRNNSpec(width=4).build().eval(), torch.randn(1, 3, 4)
    mixer.gates.register_forward_hook(lambda tap, given, gates: gates * 0)
    y, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    assert not y.any()


@pytest.mark.parametrize(
    "change",
    [
        lambda tap, given, tensor: tensor * 0,
        lambda tap, given, tensor: tensor.zero_(),
    ],
    ids=["another", "in place"],
)
@pytest.mark.parametrize(("name", "tap"), [("lstm", "gates"), ("gru", "states"), ("qrnn", "states")])
def test_a_change_that_the_layer_would_not_see_is_refused(name, tap, change):
    model, taps = make(name)
    taps[f"layers.0.mixer.{tap}"].register_forward_hook(change)
    with torch.no_grad(), pytest.raises(ConfigError, match="put the hook on the layer itself"):
        model(TOKENS)


def test_in_inference_mode_a_hook_may_read():
    model, taps = make("lstm")
    calls = []
    taps["layers.0.mixer.states"].register_forward_hook(lambda tap, given, tensor: calls.append(tensor.shape))
    with torch.inference_mode():
        model(TOKENS)
    assert calls == [(1, 5, 2, 8)]
