"""The quasi-recurrent network is what its paper defines."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.inspect import recorded, recorded_gradients
from anaphor.mixers import QRNNSpec, Span, contract
from anaphor.models import LanguageModelSpec, build, preset

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize("kernel_size", [1, 2, 3])
def test_outputs_are_those_of_the_definition(kernel_size):
    mixer = QRNNSpec(width=4, width_out=3, kernel_size=kernel_size).build()
    x = torch.randn(2, 6, 4)
    y, state = mixer(x, mixer.initial_state(x), Span.whole(x))
    # One matrix for each of the last tokens, oldest first.
    matrices = mixer.project.weight.unflatten(1, (kernel_size, 4)).unbind(1)
    c = torch.zeros(2, 3)
    for t in range(6):
        total = mixer.project.bias.expand(2, -1)
        for age, matrix in enumerate(reversed(matrices)):
            if t >= age:
                total = total + x[:, t - age] @ matrix.T
        z, f, o = total.chunk(3, dim=-1)
        c = torch.sigmoid(f) * c + (1 - torch.sigmoid(f)) * torch.tanh(z)
        torch.testing.assert_close(y[:, t], torch.sigmoid(o) * c, **TIGHT)
    torch.testing.assert_close(state.cell, c, **TIGHT)
    torch.testing.assert_close(state.inputs, x[:, 7 - kernel_size :], **TIGHT)


@pytest.mark.parametrize("kernel_size", [1, 3, 8])
def test_the_promises_hold_for_every_kernel_size(kernel_size):
    mixer = QRNNSpec(width=4, kernel_size=kernel_size).build().eval()
    x, more = torch.randn(4, 6, 4), torch.randn(4, 5, 4)
    contract.chunks_equal_whole(mixer, x, [1, 2, 5])
    contract.padding_leaves_no_trace(mixer, x, more, torch.tensor([6, 2, 1, 0]))
    contract.rows_can_be_reordered(mixer, x, more, torch.tensor([3, 0, 0, 2]))
    contract.gradient_crosses_the_seam(mixer, x, more)
    contract.old_state_survives(mixer, x, more)


def test_nothing_comes_back_from_padding():
    mixer = QRNNSpec(width=4).build()
    x = torch.randn(3, 5, 4)
    x[1, 2:] = torch.nan
    x.requires_grad_()
    y, state = mixer(x, mixer.initial_state(x), Span.whole(x, torch.tensor([5, 2, 0])))
    total = y.square().sum() + state.cell.square().sum() + state.inputs.square().sum()
    gradients = torch.autograd.grad(total, [x, *mixer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][1, 2:].any()
    assert not gradients[0][2].any()


@pytest.mark.parametrize("kernel_size", [0, 65])
def test_a_kernel_size_out_of_bounds_is_refused(kernel_size):
    with pytest.raises(ConfigError, match=f"kernel_size={kernel_size}: it must be from 1 to 64"):
        QRNNSpec(width=4, kernel_size=kernel_size)


def test_other_layers_have_no_kernel_size():
    with pytest.raises(ConfigError, match=r"kernel_size=3 is not used by the layers lstm, lstm; .* qrnn"):
        build("lstm", vocabulary=5, width=8, kernel_size=3)
    with pytest.raises(ConfigError, match=r"layer_kernel_sizes=\(2, 1\) is not used by the layers lstm, lstm"):
        build("lstm", vocabulary=5, width=8, layer_kernel_sizes=(2, 1))


def test_each_layer_may_have_a_kernel_size_of_its_own():
    spec = preset("qrnn", vocabulary=5, width=8, mixers=("qrnn", "lstm", "qrnn"), layer_kernel_sizes=(3, 1, 1))
    first, other, last = spec.build().layers.mixers
    assert (first.kernel_size, last.kernel_size) == (3, 1)
    assert not hasattr(other, "kernel_size")
    assert spec.used_settings()["layer_kernel_sizes"] == (3, 1, 1)
    assert "kernel_size" not in spec.used_settings()
    assert LanguageModelSpec(**spec.used_settings()).blocks() == spec.blocks()


def test_cells_remember_more_than_half_at_first():
    mixer = build("qrnn", vocabulary=5, width=64, layers=1).layers.mixers[0]
    x = torch.zeros(1, 1, 64)
    with recorded(mixer, "gates") as seen:
        mixer(x, mixer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(seen["gates"][..., 1, :], torch.sigmoid(torch.ones(1, 1, 64)))
    assert seen["gates"][..., 2, :].mean().item() == pytest.approx(0.5, abs=0.02)


def test_weight_drop_zeroes_weights_of_all_gates_in_training_only():
    mixer = QRNNSpec(width=16, weight_drop=0.5).build()
    x = torch.randn(3, 6, 16)
    span, state = Span.whole(x), mixer.initial_state(x)
    mixer(x, state, span)[0].sum().backward()
    for part in mixer.project.weight.grad.chunk(3):
        assert (part == 0).double().mean().item() == pytest.approx(0.5, abs=0.1), "what was dropped learns nothing"
    assert not torch.equal(mixer(x, state, span)[0], mixer(x, state, span)[0])
    plain = QRNNSpec(width=16).build()
    plain.load_state_dict(mixer.state_dict())
    assert torch.equal(mixer.eval()(x, state, span)[0], plain(x, state, span)[0])


def test_gates_and_cells_lie_where_their_names_say_with_their_gradients():
    mixer = QRNNSpec(width=3).build()
    x = torch.randn(2, 5, 3)
    with recorded_gradients(mixer) as seen:
        y, state = mixer(x, mixer.initial_state(x), Span.whole(x))
    y.square().sum().backward()
    values = dict(zip(mixer.gate_names, seen.values["gates"].detach().unbind(2), strict=True))
    found = dict(zip(mixer.gate_names, seen.gradients["gates"].unbind(2), strict=True))
    (cells,), (grad_cells,) = (part.unbind(2) for part in (seen.values["states"].detach(), seen.gradients["states"]))
    before = torch.cat((torch.zeros(2, 1, 3), cells[:, :-1]), dim=1)
    y = y.detach()
    torch.testing.assert_close(cells, values["forget"] * before + (1 - values["forget"]) * values["candidate"], **TIGHT)
    torch.testing.assert_close(y, values["output"] * cells, **TIGHT)
    torch.testing.assert_close(state.cell, cells[:, -1], **TIGHT)
    torch.testing.assert_close(found["output"], 2 * y * cells, **TIGHT)
    torch.testing.assert_close(found["forget"], grad_cells * (before - values["candidate"]), **TIGHT)
    torch.testing.assert_close(found["candidate"], grad_cells * (1 - values["forget"]), **TIGHT)
    later = torch.cat((values["forget"][:, 1:] * grad_cells[:, 1:], torch.zeros(2, 1, 3)), dim=1)
    torch.testing.assert_close(grad_cells, 2 * y * values["output"] + later, **TIGHT)


def test_a_cell_keeps_what_half_precision_would_round_away():
    mixer = QRNNSpec(width=4).build().to(torch.bfloat16)
    with torch.no_grad():
        mixer.project.weight.zero_()
        mixer.project.bias.copy_(torch.tensor([5.0, 8.0, 5.0]).repeat_interleave(4))  # forgets 1/3000 with each token
    x = torch.zeros(1, 3000, 4, dtype=torch.bfloat16)
    y, state = mixer(x, mixer.initial_state(x), Span.whole(x))
    assert (y.dtype, state.cell.dtype, state.inputs.dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)
    expected = 1 - torch.sigmoid(torch.tensor(8.0)) ** 3000
    torch.testing.assert_close(state.cell.double(), expected.expand(1, 4), rtol=1e-3, atol=0)
