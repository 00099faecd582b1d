"""Recurrent mixers against `torch.nn`, and each kernel against its readable cell: values and gradients."""

import pytest
import torch
from torch import nn

from anaphor.inspect import recorded
from anaphor.mixers import LSTMSpec, Span, mixer_spec
from anaphor.models import Backbone, BlockSpec

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
KERNELS = {
    "rnn-tanh": lambda width, out: nn.RNN(width, out, nonlinearity="tanh", batch_first=True),
    "rnn-relu": lambda width, out: nn.RNN(width, out, nonlinearity="relu", batch_first=True),
    "gru": lambda width, out: nn.GRU(width, out, batch_first=True),
    "lstm": lambda width, out: nn.LSTM(width, out, batch_first=True),
}
NAMES = [*KERNELS, "rnn-identity"]


def gradients(y, inputs):
    return torch.autograd.grad(y.square().sum(), inputs)


@pytest.mark.parametrize("name", KERNELS)
def test_against_torch_nn(name):
    mixer = mixer_spec(name, width=6, width_out=7).build()
    peer = KERNELS[name](6, 7)
    peer.load_state_dict(mixer.kernel.state_dict())
    x = torch.randn(3, 11, 6, requires_grad=True)
    ours, state = mixer(x, mixer.initial_state(x), Span.whole(x))
    theirs, after = peer(x)
    torch.testing.assert_close(ours, theirs, **TIGHT)
    after = after if isinstance(after, tuple) else (after,)
    for tensor, expected in zip(state, after, strict=True):
        torch.testing.assert_close(tensor, expected[0], **TIGHT)
    for mine, other in zip(
        gradients(ours, [x, *mixer.kernel.parameters()]), gradients(theirs, [x, *peer.parameters()]), strict=True
    ):
        torch.testing.assert_close(mine, other, **TIGHT)


@pytest.mark.parametrize("lengths", [None, [5, 2, 0]], ids=["full", "ragged"])
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_agrees_with_the_readable_cell(name, lengths):
    mixer = mixer_spec(name, width=4, width_out=3).build()
    x = torch.randn(3, 5, 4, requires_grad=True)
    state = type(mixer.initial_state(x))(*(torch.randn(3, 3, requires_grad=True) for _ in mixer.initial_state(x)))
    span = Span.whole(x, None if lengths is None else torch.tensor(lengths))
    wanted = [x, *state, *mixer.parameters()]

    fast, fast_state = mixer(x, state, span)
    with recorded(mixer, "gates") as seen:
        slow, slow_state = mixer(x, state, span)
    assert seen["gates"].shape == (3, 5, len(mixer.gate_names), 3)
    torch.testing.assert_close(fast, slow, **TIGHT)
    for one, other in zip(fast_state, slow_state, strict=True):
        torch.testing.assert_close(one, other, **TIGHT)
    total = fast.square().sum() + sum(tensor.sum() for tensor in fast_state)
    slow_total = slow.square().sum() + sum(tensor.sum() for tensor in slow_state)
    for one, other in zip(torch.autograd.grad(total, wanted), torch.autograd.grad(slow_total, wanted), strict=True):
        torch.testing.assert_close(one, other, **TIGHT)


def test_identity_rnn_is_the_unrolled_sum():
    """h_T = Σ W_h^(T-t) (W_x x_t + b), the closed form of a linear recurrence."""
    mixer = mixer_spec("rnn-identity", width=3).build()
    x = torch.randn(1, 6, 3)
    _, state = mixer(x, mixer.initial_state(x), Span.whole(x))
    kernel = mixer.kernel
    drive = x[0] @ kernel.weight_ih_l0.T + kernel.bias_ih_l0 + kernel.bias_hh_l0
    expected = sum(torch.linalg.matrix_power(kernel.weight_hh_l0, 5 - t) @ drive[t] for t in range(6))
    torch.testing.assert_close(state.hidden[0], expected, **TIGHT)


def test_gates_lie_where_their_names_say():
    mixer = mixer_spec("lstm", width=2).build()
    x = torch.randn(1, 4, 2)
    with recorded(mixer, "*") as seen:
        y, state = mixer(x, mixer.initial_state(x), Span.whole(x))
    gates = dict(zip(mixer.gate_names, seen["gates"].unbind(2), strict=True))
    hidden, cell = seen["states"].unbind(2)
    previous = torch.cat((torch.zeros(1, 1, 2), cell[:, :-1]), dim=1)
    torch.testing.assert_close(cell, gates["forget"] * previous + gates["input"] * gates["candidate"], **TIGHT)
    torch.testing.assert_close(hidden, gates["output"] * torch.tanh(cell), **TIGHT)
    torch.testing.assert_close(y, hidden, **TIGHT)
    torch.testing.assert_close(state.cell, cell[:, -1], **TIGHT)


def test_the_plain_stack_against_a_multi_layer_lstm():
    spec = BlockSpec(mixer=LSTMSpec(width=5), norm="none", residual=False)
    stack, peer = Backbone([spec] * 3), nn.LSTM(5, 5, 3, batch_first=True)
    for layer, block in enumerate(stack):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(peer, f"{kind}_l{layer}").data.copy_(getattr(block.mixer.kernel, f"{kind}_l0"))
    x = torch.randn(2, 9, 5, requires_grad=True)
    ours, _ = stack(x, stack.initial_state(x), Span.whole(x))
    theirs, _ = peer(x)
    torch.testing.assert_close(ours, theirs, **TIGHT)
    torch.testing.assert_close(*(gradients(y, [x])[0] for y in (ours, theirs)), **TIGHT)


@pytest.mark.parametrize("name", KERNELS)
def test_walking_through_padding_agrees_with_packing(name, monkeypatch):
    """What a GPU does, where lengths lie on the device, against what a CPU does."""
    mixer = mixer_spec(name, width=4, width_out=3).build()
    x = torch.randn(4, 5, 4)
    x[1, 2:] = torch.nan  # padding may hold anything
    x.requires_grad_()
    state = type(mixer.initial_state(x))(*(torch.randn(4, 3, requires_grad=True) for _ in mixer.initial_state(x)))
    span = Span.whole(x, torch.tensor([5, 2, 0, 1]))
    found = []
    for way in ("_run_packed", "_run_through_padding"):
        monkeypatch.setattr(mixer, "_run_packed", getattr(mixer, way))
        y, after = mixer(x.nan_to_num() if way == "_run_packed" else x, state, span)
        total = y.square().sum() + sum(tensor.square().sum() for tensor in after)
        found.append([y, *after, *torch.autograd.grad(total, [x, *state, *mixer.parameters()])])
    for packed, walked in zip(*found, strict=True):
        torch.testing.assert_close(walked, packed, **TIGHT)
