"""The recurrence of a QRNN by our kernels is its loop. Without a GPU, Triton's interpreter runs the same kernels."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.inspect import recorded
from anaphor.mixers import QRNNSpec, Span, linear, mixer_spec
from anaphor.mixers.linear import QRNNState, scan_qrnn
from anaphor.taps import Tap
from stand_ins import compiled_kernels

pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
from anaphor.kernels import gpu, qrnn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="this is about a device")


def by_loop(gate_inputs, cell):
    """On the host in double precision."""
    return scan_qrnn.__wrapped__(gate_inputs.cpu().double(), cell.cpu().double(), Tap(), Tap())


def recurrence(gate_inputs, cell):
    """By the kernels."""
    return qrnn.scan_qrnn(gate_inputs, cell, Tap(), Tap())


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
def test_outputs_and_gradients_of_the_kernels_are_those_of_the_loop(rows, steps, width):
    tensors = drawn(rows, steps, width)
    ours, theirs = (outputs_and_gradients(function, tensors) for function in (recurrence, by_loop))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_kernels_keep_a_cell_whose_forget_gate_is_infinite():
    gate_inputs, cell = drawn(2, 3, 5)
    with torch.no_grad():
        gate_inputs.unflatten(-1, (3, 5))[1, 1:, 1] = torch.inf
    y, last = recurrence(gate_inputs, cell)
    first, _ = recurrence(gate_inputs[1:, :1], cell[1:])
    (gradient,) = torch.autograd.grad(y.sum() + last.square().sum(), gate_inputs)
    assert gradient.isfinite().all()
    assert not gradient.unflatten(-1, (3, 5))[1, 1:, :2].any()
    output = torch.sigmoid(gate_inputs.unflatten(-1, (3, 5))[1, 0, 2])
    torch.testing.assert_close(last[1] * output, first[0, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_compute_half_precision_in_single(dtype):
    tensors = drawn(3, 4, 24, dtype)
    y, last = recurrence(*tensors)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(last.cpu().double(), by_loop(*tensors)[1], rtol=1e-4, atol=1e-5)
    ours, theirs = (outputs_and_gradients(function, tensors) for function in (recurrence, by_loop))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() < 1e-2 * other.norm()


def test_kernels_without_gradient_give_the_same():
    tensors = drawn(2, 3, 16)
    with torch.no_grad():
        found = recurrence(*tensors)
    assert not any(tensor.requires_grad for tensor in found)
    for one, other in zip(found, recurrence(*tensors), strict=True):
        assert torch.equal(one, other)


def test_a_second_derivative_of_the_kernels_is_refused():
    gate_inputs, cell = drawn(1, 2, 4)
    y, _ = recurrence(gate_inputs, cell)
    (gradient,) = torch.autograd.grad(y.square().sum(), gate_inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("lengths", [None, [5, 2, 0]], ids=["full", "ragged"])
def test_a_layer_by_kernels_is_the_layer_by_its_loop(lengths, monkeypatch):
    mixer = QRNNSpec(width=6, width_out=5).build().to(DEVICE, torch.float32)
    x = torch.randn(3, 5, 6).to(DEVICE, torch.float32).requires_grad_()
    state = QRNNState(*(torch.randn(tensor.shape).to(tensor).requires_grad_() for tensor in mixer.initial_state(x)))
    span = Span.whole(x, None if lengths is None else torch.tensor(lengths, device=DEVICE))
    found = []
    for function in (scan_qrnn.__wrapped__, qrnn.scan_qrnn):
        monkeypatch.setattr(linear, "scan_qrnn", function)
        y, after = mixer(x, state, span)
        total = y.square().sum() + after.cell.square().sum() + after.inputs.sum()
        found.append([y, *after, *torch.autograd.grad(total, [x, *state, *mixer.parameters()])])
    for slow, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)


def test_kernels_leave_double_precision_and_old_devices_alone(monkeypatch):
    def applies(dtype):
        gpu.compute_capability.cache_clear()
        return qrnn.applies(torch.zeros(1, 1, 3, dtype=dtype), torch.zeros(1, 1), Tap(), Tap())

    for major, expected in ((7, False), (8, True), (9, True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, major=major: (major, 0))
        assert applies(torch.bfloat16) == expected
    assert not applies(torch.float64)
    gpu.compute_capability.cache_clear()


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [65, 200, 1536])
def test_kernels_are_near_in_every_type_and_width(dtype, width):
    tensors = drawn(20, 70, width, dtype)
    ours, theirs = (outputs_and_gradients(function, tensors) for function in (recurrence, by_loop))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() < (1e-5 if dtype == torch.float32 else 1e-2) * other.norm()


@on_gpu
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_on_a_gpu_takes_the_kernels_unless_it_is_watched(training):
    mixer = mixer_spec("qrnn", width=160).build().to(DEVICE, torch.float32).train(training)
    x = torch.randn(6, 5, 160, device=DEVICE, dtype=torch.float32)
    fast, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    with recorded(mixer, "states"):
        slow, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    assert type(fast.grad_fn) is not type(slow.grad_fn)


@on_gpu
def test_a_training_step_of_the_kernels_can_be_captured():
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
def test_kernels_compile_for_a_hopper_and_load_later_steps_early(tmp_path):
    found = compiled_kernels(Path(__file__).with_name("compile_qrnn_kernels.py"), tmp_path)
    assert len(found) == 6
    assert all(one["asynchronous"] > 0 for one in found.values())
    assert max(one["shared"] for one in found.values()) <= 8 * 1024  # 28 programs fit into one multiprocessor
