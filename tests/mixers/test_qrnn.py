"""The quasi-recurrent network is what its paper defines, and its kernels do what its loop does. Without a GPU, Triton's
interpreter runs the same kernels."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.errors import ConfigError
from anaphor.inspect import recorded, recorded_gradients
from anaphor.mixers import QRNNSpec, Span, contract, mixer_spec
from anaphor.mixers.kernels import load_kernels
from anaphor.mixers.linear import QRNNState, qrnn_kernels
from anaphor.models import LanguageModelSpec, build, preset
from stand_ins import compiled_kernels

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="this is about a device")


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
    assert spec.resolved()["layer_kernel_sizes"] == (3, 1, 1)
    assert "kernel_size" not in spec.resolved()
    assert LanguageModelSpec(**spec.resolved()).blocks() == spec.blocks()


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


# ---- kernels


@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
    from triton.runtime import interpreter

    from anaphor.mixers.kernels import qrnn

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    with pytest.MonkeyPatch.context() as patch:
        # The interpreter of Triton 3.6 passes the bound of a loop to int() as an array, which NumPy 2.4 refuses.
        patch.setattr(interpreter, "_patch_lang_tensor", patch_tensor_and_index)
        yield qrnn


def by_loop(gate_inputs, cell):
    """On the host in double precision."""
    mixer = QRNNSpec(width=cell.shape[1]).build()
    return mixer._run_explicitly(gate_inputs.cpu().double(), cell.cpu().double())


def drawn(rows, steps, width, dtype=torch.float32):
    gate_inputs = (2 * torch.randn(rows, steps, 3 * width)).to(DEVICE, dtype).requires_grad_()
    return gate_inputs, torch.randn(rows, width).to(DEVICE, torch.float32).requires_grad_()


def outputs_and_gradients(function, tensors):
    outputs = function(*tensors)
    torch.manual_seed(1)
    wanted = [torch.randn(tensor.shape).to(tensor) for tensor in outputs]
    made = [*outputs, *torch.autograd.grad(outputs, tensors, wanted)]
    return [tensor.detach().cpu().double() for tensor in made]


# A width is compiled for, so there are few of them.
@settings(max_examples=6, deadline=None)
@given(rows=st.integers(1, 4), steps=st.integers(1, 6), width=st.sampled_from([1, 16, 37, 130]))
def test_outputs_and_gradients_of_the_kernels_are_those_of_the_loop(kernels, rows, steps, width):
    tensors = drawn(rows, steps, width)
    ours, theirs = (outputs_and_gradients(function, tensors) for function in (kernels.recurrence, by_loop))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_kernels_keep_a_cell_whose_forget_gate_is_infinite(kernels):
    gate_inputs, cell = drawn(2, 3, 5)
    with torch.no_grad():
        gate_inputs.unflatten(-1, (3, 5))[1, 1:, 1] = torch.inf
    y, last = kernels.recurrence(gate_inputs, cell)
    first, _ = kernels.recurrence(gate_inputs[1:, :1], cell[1:])
    (gradient,) = torch.autograd.grad(y.sum() + last.square().sum(), gate_inputs)
    assert gradient.isfinite().all()
    assert not gradient.unflatten(-1, (3, 5))[1, 1:, :2].any()
    output = torch.sigmoid(gate_inputs.unflatten(-1, (3, 5))[1, 0, 2])
    torch.testing.assert_close(last[1] * output, first[0, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_compute_half_precision_in_single(kernels, dtype):
    tensors = drawn(3, 4, 24, dtype)
    y, last = kernels.recurrence(*tensors)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(last.cpu().double(), by_loop(*tensors)[1], rtol=1e-4, atol=1e-5)
    ours, theirs = (outputs_and_gradients(function, tensors) for function in (kernels.recurrence, by_loop))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() < 1e-2 * other.norm()


def test_kernels_without_gradient_give_the_same(kernels):
    tensors = drawn(2, 3, 16)
    with torch.no_grad():
        found = kernels.recurrence(*tensors)
    assert not any(tensor.requires_grad for tensor in found)
    for one, other in zip(found, kernels.recurrence(*tensors), strict=True):
        assert torch.equal(one, other)


def test_a_second_derivative_of_the_kernels_is_refused(kernels):
    gate_inputs, cell = drawn(1, 2, 4)
    y, _ = kernels.recurrence(gate_inputs, cell)
    (gradient,) = torch.autograd.grad(y.square().sum(), gate_inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("lengths", [None, [5, 2, 0]], ids=["full", "ragged"])
def test_a_layer_by_kernels_is_the_layer_by_its_loop(kernels, lengths, monkeypatch):
    mixer = QRNNSpec(width=6, width_out=5).build().to(DEVICE, torch.float32)
    x = torch.randn(3, 5, 6).to(DEVICE, torch.float32).requires_grad_()
    state = QRNNState(*(torch.randn(tensor.shape).to(tensor).requires_grad_() for tensor in mixer.initial_state(x)))
    span = Span.whole(x, None if lengths is None else torch.tensor(lengths, device=DEVICE))
    found = []
    for function in (mixer._run_explicitly, kernels.recurrence):
        monkeypatch.setattr(mixer, "_recur", function)
        y, after = mixer(x, state, span)
        total = y.square().sum() + after.cell.square().sum() + after.inputs.sum()
        found.append([y, *after, *torch.autograd.grad(total, [x, *state, *mixer.parameters()])])
    for slow, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)


def test_kernels_leave_double_precision_and_old_devices_alone(kernels, monkeypatch):
    assert kernels.can_run(torch.zeros(1, 1, 3, dtype=torch.bfloat16))
    assert not kernels.can_run(torch.zeros(1, 1, 3, dtype=torch.float64))
    for major, expected in ((7, False), (8, True), (9, True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, major=major: (major, 0))
        assert kernels.is_supported(DEVICE) == expected


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [65, 200, 1536])
def test_kernels_are_near_in_every_type_and_width(kernels, dtype, width):
    tensors = drawn(20, 70, width, dtype)
    ours, theirs = (outputs_and_gradients(function, tensors) for function in (kernels.recurrence, by_loop))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() < (1e-5 if dtype == torch.float32 else 1e-2) * other.norm()


@on_gpu
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_on_a_gpu_takes_the_kernels_unless_it_is_watched(kernels, training):
    mixer = mixer_spec("qrnn", width=160).build().to(DEVICE, torch.float32).train(training)
    x = torch.randn(6, 5, 160, device=DEVICE, dtype=torch.float32)
    load_kernels.cache_clear()
    assert qrnn_kernels(x.device) is kernels
    fast, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    with recorded(mixer, "states"):
        slow, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    assert type(fast.grad_fn) is not type(slow.grad_fn)


@on_gpu
def test_a_training_step_of_the_kernels_can_be_captured(kernels):
    mixer = mixer_spec("qrnn", width=64).build().to(DEVICE, torch.float32)
    x = torch.randn(4, 9, 64, device=DEVICE, dtype=torch.float32)
    state, span = mixer.initial_state(x), Span.whole(x)

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            y, _ = mixer(x, state, span)
        return torch.autograd.grad(y.float().square().sum(), list(mixer.parameters()))

    expected, stream = [gradient.clone() for gradient in step()], torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = step()
    graph.replay()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_kernels_compile_for_a_hopper_and_load_later_steps_early(kernels, tmp_path):
    found = compiled_kernels(Path(__file__).with_name("compile_qrnn_kernels.py"), tmp_path)
    assert len(found) == 6
    assert all(one["asynchronous"] > 0 for one in found.values())
    assert max(one["shared"] for one in found.values()) <= 8 * 1024  # 28 programs fit into one multiprocessor
