"""The table of kernels: each gives what the readable code of its operation gives, forward and back, and without kernels
none of them runs. Without a GPU, Triton's interpreter runs the kernels."""

import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from torch import nn

from anaphor.mixers import InputFeedingSpec, Span
from anaphor.mixers.input_feeding import run_input_feeding
from anaphor.mixers.layers import LayerNorm, layer_norm, linear
from anaphor.mixers.linear import scan_qrnn
from anaphor.mixers.recurrent import run_lstm
from anaphor.models.cross_entropy import cross_entropy, smoothed_cross_entropy
from anaphor.models.head import Head
from anaphor.operations import KERNELS, OFF_VARIABLE, OPERATIONS, find_kernel, register_kernel
from anaphor.taps import Tap
from anaphor.training.optimizers import update
from anaphor.training.run_folder import RunFolder
from anaphor.training.step import tf32_matmul

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def numbers(*shape, device):
    return torch.randn(shape, dtype=torch.float32, device=device).requires_grad_()


def norm_of_a_sum(device):
    norm = LayerNorm(12, 1e-5).to(device, torch.float32).train()
    return numbers(3, 5, 12, device=device), numbers(3, 5, 12, device=device), norm


def linear_map(device):
    return numbers(16, 16, 6, device=device), numbers(8, 6, device=device), numbers(8, device=device), True


def lstm_layer(device):
    layer = nn.LSTM(6, 128).to(device, torch.float32)  # on a GPU its weights lie in one piece
    weights = list(layer.parameters())
    for weight in weights:
        nn.init.normal_(weight, std=0.25)
    x, hidden, cell = (numbers(*shape, device=device) for shape in ((3, 2, 6), (1, 3, 128), (1, 3, 128)))
    return x, hidden, cell, weights, True


def qrnn_scan(device):
    return numbers(2, 4, 24, device=device), numbers(2, 8, device=device), Tap(), Tap()


def input_feeding(device):
    mixer = InputFeedingSpec(width=8, width_out=6, layers=2, source_width=5).build().to(device, torch.float32)
    x = numbers(3, 4, 8, device=device)
    state = mixer.initial_state(numbers(3, 7, 5, device=device), torch.tensor([7, 1, 3], device=device))
    return x, mixer, state, Span.whole(x), 2 * torch.ones(1, 4, 3, 6, device=device, dtype=torch.float32)


def wide_head(device):
    head = Head(8, 20_000, True, None).to(device, torch.float32)
    nn.init.normal_(head.own)
    return numbers(2, 5, 8, device=device), head, torch.randint(0, 20_000, (2, 5), device=device)


def smoothed(device):
    return *wide_head(device), 0.1


def two_passes(device):
    hidden_states, head, targets = wide_head(device)
    return hidden_states, head, targets[:1], 0.1, 3.0


def plain_sgd(device):
    weights = [numbers(7, 5, device=device), numbers(3, device=device)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return weights, torch.optim.SGD(weights, lr=0.5), 0.25, torch.tensor(6.0, device=device)


EXAMPLES = {
    layer_norm: norm_of_a_sum,
    linear: linear_map,
    run_lstm: lstm_layer,
    scan_qrnn: qrnn_scan,
    run_input_feeding: input_feeding,
    cross_entropy: wide_head,
    smoothed_cross_entropy: smoothed,
    update: plain_sgd,
}
"""Arguments of each operation for which its kernels apply; made anew from the same seed they are the same."""
with suppress(ModuleNotFoundError):  # without that extra nobody calls its kernel
    from anaphor.extras.rdrop.loss import rdrop_loss

    EXAMPLES[rdrop_loss] = two_passes


def outcome(function, make, device):
    """What a function returns, what it changes, and the gradients of all that it is given."""
    torch.manual_seed(0)
    arguments = make(device)
    returned = list(leaves(function(*arguments)))
    given = [tensor for tensor in leaves(arguments) if tensor.requires_grad]
    differentiable = [tensor for tensor in returned if tensor.grad_fn is not None]
    # Losses and penalties are added up before they are differentiated.
    probes = [(torch.randn(one.shape) if one.ndim else torch.ones(())).to(one) for one in differentiable]
    gradients = torch.autograd.grad(differentiable, given, probes, allow_unused=True) if differentiable else given
    return [*returned, *(torch.zeros(()) if one is None else one for one in gradients)]


def leaves(value):
    """All tensors in arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, tuple | list):
        for one in value:
            yield from leaves(one)


def test_every_kernel_has_an_example():
    computed = {kernel.operation for kernel in KERNELS.values()}
    assert {operation for name, operation in OPERATIONS.items() if name in computed} == set(EXAMPLES)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_agrees_with_the_readable_code(name, request):
    kernel = KERNELS[name]
    if kernel.operation not in OPERATIONS:
        pytest.skip("this is an operation of an extra that is not there")
    torch.set_num_threads(2 if name == "layer_norm.cpu" else 1)
    device = GPU if kernel.device == "cuda" else torch.device("cpu")
    if kernel.device == "cuda":
        request.getfixturevalue("gpu_kernels")
    operation = OPERATIONS[kernel.operation]
    make = EXAMPLES[operation]
    with tf32_matmul():  # as in a training step
        assert find_kernel(kernel.operation, make(device), {}) is kernel
        functions = (operation.__wrapped__, kernel.loaded_function)
        readable, fast = (outcome(function, make, device) for function in functions)
    assert len(fast) == len(readable) > 0
    tolerance = 2e-2 if device.type == "cuda" else 1e-4
    for found, expected in zip(fast, readable, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


TWICE = """
import sys
from anaphor.cli.main import main
for out, *words in (["off", "--no-kernels"], ["on"]):
    assert main([*sys.argv[1:], "--out", out, *words]) == 0
    print(*[name for name in sys.modules if name.startswith("anaphor.kernels.")])
"""


def test_without_kernels_nothing_of_the_shelf_is_imported(tmp_path):
    """In a process of its own, which trains without kernels first."""
    settings = ["--data", "grammar", "--model", "lstm", "--optimizer", "sgd", "--width", "8", "--steps", "2"]
    command = ["train", "lm", *settings, "--no-test", "--device", "cpu", "--json"]
    done = subprocess.run([sys.executable, "-c", TWICE, *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, off, _, on = done.stdout.splitlines()
    assert off == ""
    assert on != ""
    assert RunFolder(tmp_path / "off").read_environment()["kernels"] is False
    assert "kernels" not in RunFolder(tmp_path / "on").read_environment()


def test_a_kernel_of_a_user_runs_where_it_applies_and_kernels_are_on(monkeypatch):
    register_kernel("linear", "cpu", lambda x, *others: len(x) > 1, lambda x, *others: 2 * x)
    one, two = torch.ones(1, 3), torch.ones(2, 3)
    weight = torch.zeros(3, 3)
    assert linear(one, weight, None, True).tolist() == [[0, 0, 0]]
    assert linear(two, weight, None, True).tolist() == [[2, 2, 2]] * 2
    monkeypatch.setenv(OFF_VARIABLE, "1")
    assert linear(two, weight, None, True).tolist() == [[0, 0, 0]] * 2
