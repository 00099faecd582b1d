"""The recurrence of an LSTM by our kernels is that of torch. Without a GPU, Triton's interpreter runs them."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from anaphor.inspect.record import recorded
from anaphor.mixers import Span, mixer_spec
from anaphor.training.step import tf32_matmul
from stand_ins import compiled_kernels

pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
from anaphor.kernels import lstm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="this is about a device")


def gradients(run, tensors):
    """Outputs of a recurrence, and the gradients of all its inputs."""
    torch.manual_seed(1)
    y, hidden, cell = run(*tensors)
    wanted = [torch.randn(tensor.shape).to(tensor) for tensor in (y, hidden, cell)]
    made = [y, hidden, cell, *torch.autograd.grad([y, hidden, cell], tensors, wanted)]
    return [tensor.detach().cpu().double() for tensor in made]


def run_torch(x, hidden, cell, *weights):
    """On the host in double precision: a GPU's own kernels round, too."""
    x, hidden, cell, *weights = (tensor.cpu().double() for tensor in (x, hidden, cell, *weights))
    y, hidden, cell = torch.lstm(x, (hidden[None], cell[None]), weights, True, 1, 0.0, True, False, True)
    return y, hidden[0], cell[0]


def run_kernels(x, hidden, cell, matrix_in, matrix, constant_in, constant):
    hiddens, last = lstm.recurrence(F.linear(x, matrix_in, constant_in + constant), hidden, cell, matrix)
    return hiddens[:, 1:], hiddens[:, -1], last


def drawn(rows, count, width, dtype=torch.float32):
    """Input of width 8, a state, and weights."""
    gates = 4 * width
    shapes = [(rows, count, 8), (rows, width), (rows, width), (gates, 8), (gates, width), (gates,), (gates,)]
    return [torch.randn(shape).div(shape[-1] ** 0.5).to(DEVICE, dtype).requires_grad_() for shape in shapes]


# A width is compiled for, so there are few of them.
@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 40), count=st.integers(1, 4), width=st.sampled_from([1, 16, 37]))
@example(rows=65, count=2, width=17).via("many rows in large blocks")
@example(rows=3, count=2, width=lstm.WIDE + 10).via("programs of fewer units")
def test_outputs_and_gradients_are_those_of_torch(rows, count, width):
    tensors = drawn(rows, count, width)
    ours, theirs = (gradients(run, tensors) for run in (run_kernels, run_torch))
    is_small = rows <= 40 and width <= lstm.WIDE
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 if is_small else 1e-4)


def test_layers_take_them_for_few_rows_in_the_precisions_of_training():
    def taken(rows, width, dtype):
        return lstm.is_faster(rows, 35, width, dtype)

    assert taken(64, 512, torch.bfloat16)
    assert not taken(65, 512, torch.bfloat16)
    assert not taken(20, 513, torch.bfloat16)
    assert taken(256, 256, torch.bfloat16)
    assert not taken(20, 256, torch.float32)
    with tf32_matmul():
        assert taken(20, 256, torch.float32)
        assert taken(32, 512, torch.float32)
        assert not taken(33, 512, torch.float32)
        assert not taken(20, 512, torch.float64)


def test_all_steps_in_one_kernel_are_those_of_a_kernel_each(monkeypatch):
    # The interpreter's programs cannot wait for each other: there it is one program.
    tensors = drawn(70, 9, 200) if DEVICE.type == "cuda" else drawn(3, 4, 16)
    together = gradients(run_kernels, tensors)
    monkeypatch.setattr(lstm, "_can_run_together", lambda grid, device: False)
    for mine, other in zip(together, gradients(run_kernels, tensors), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_no_program_waits_where_processes_share_a_gpu(monkeypatch):
    device = torch.device("cuda")
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert lstm._can_run_together((13, 2), device)
    assert not lstm._can_run_together((16, 9), device)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "anywhere")
    assert not lstm._can_run_together((13, 2), device)


@on_gpu
def test_a_captured_recurrence_is_the_same_each_time_it_is_replayed():
    """Its programs count their steps, from zero in every replay."""
    tensors = drawn(20, 9, 200)
    wanted, _, _ = run_kernels(*tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y, _, _ = run_kernels(*tensors)
    for _ in range(3):
        y.zero_()
        graph.replay()
        assert torch.equal(y, wanted)


def test_they_run_in_a_training_step():
    """Which allows TF32; torch's older name of that setting must not be read there."""
    tensors = drawn(3, 2, 16)
    with tf32_matmul():
        ours = gradients(run_kernels, tensors)
    for mine, other in zip(ours, gradients(run_torch, tensors), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-2)


def test_an_incoming_gradient_is_left_alone():
    x, hidden, cell, *weights = drawn(2, 2, 16)
    _, _, last = run_kernels(x, hidden, cell, *weights)
    wanted = torch.ones_like(last)
    torch.autograd.grad(last, x, wanted)
    assert torch.equal(wanted, torch.ones_like(last))


@on_gpu
@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 20), (torch.bfloat16, 20), (torch.bfloat16, 64)])
@pytest.mark.parametrize("width", [128, 200, 256, 512])
def test_they_are_near_in_every_type_and_width(dtype, rows, width):
    tensors = drawn(rows, 9, width, dtype)
    with tf32_matmul():
        ours = gradients(run_kernels, tensors)
    for mine, other in zip(ours, gradients(run_torch, tensors), strict=True):
        assert (mine - other).norm() < (2e-3 if dtype == torch.float32 else 2e-2) * other.norm()


@on_gpu
def test_a_layer_in_training_takes_them_and_learns_as_its_cell_does():
    mixer = mixer_spec("lstm", width=160).build().to(DEVICE, torch.float32).train()
    x = torch.randn(6, 5, 160, device=DEVICE, dtype=torch.float32)
    with tf32_matmul():  # as in a training step
        fast, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
        with recorded(mixer, "states"):
            slow, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(fast, slow, rtol=5e-3, atol=5e-3)
    assert type(fast.grad_fn) is not type(slow.grad_fn)


@pytest.mark.parametrize(("capability", "training", "expected"), [(8, True, False), (9, True, True), (9, False, False)])
def test_they_are_for_training_on_devices_that_can_begin_a_kernel_early(capability, training, expected, monkeypatch):
    monkeypatch.setattr(lstm, "compute_capability", lambda device: capability)
    x, hidden = torch.empty(20, 35, 8, dtype=torch.bfloat16), torch.empty(1, 20, 256)
    assert lstm.applies(x, hidden, hidden, [], training) == expected


@pytest.mark.slow
def test_the_widest_layer_compiles_for_a_hopper_and_fits_into_it(tmp_path):
    needed = compiled_kernels(Path(__file__).with_name("compile_lstm_kernels.py"), tmp_path)
    assert len(needed) == 12
    assert max(needed.values()) <= 227 * 1024  # shared memory of one block
