"""Layer norm and linear maps by kernels of our own are torch's. Without a GPU, Triton's interpreter runs the same
kernels."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from anaphor.mixers.base import multiply
from anaphor.mixers.layers import LayerNorm, Linear
from anaphor.models.cross_entropy import (
    IGNORE_INDEX,
    cross_entropy,
    full_cross_entropy,
    smoothed_cross_entropy,
    token_losses,
)
from anaphor.models.head import Head
from anaphor.operations import OFF_VARIABLE, find_kernel
from anaphor.tasks.lm import LanguageRunSpec
from anaphor.training.build import build_experiment, build_step
from stand_ins import compiled_kernels

pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
from anaphor.kernels import layer_norm, linear, losses, updates

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="this is about a device")


def drawn(*shapes, dtype=torch.float32):
    return [torch.randn(shape).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def output_and_gradients(function, tensors):
    torch.manual_seed(1)
    y = function(*tensors)
    wanted = torch.randn(y.shape).to(y)
    return [one.detach().cpu().double() for one in (y, *torch.autograd.grad(y, tensors, wanted))]


def in_double(function):
    """On the host: a GPU's own kernels round, too."""
    return lambda *tensors: function(*(tensor.cpu().double() for tensor in tensors))


@settings(max_examples=6, deadline=None)
@given(rows=st.integers(1, 9), width=st.sampled_from([1, 16, 37]))
@example(rows=234, width=24).via("many rows are shared by few programs")
@pytest.mark.parametrize("added", [0, 1])
def test_layer_norm_and_its_gradients_are_those_of_torch(rows, width, added):
    """Also of a sum."""
    tensors = drawn(*[(rows, 3, width)] * (1 + added), (width,), (width,))

    def kernel(x, *others):
        *y, w, b = others
        return layer_norm.normalize(x, y[0] if y else None, w, b, 1e-5, torch.float32)

    ours = output_and_gradients(kernel, tensors)
    theirs = output_and_gradients(in_double(lambda *x: F.layer_norm(sum(x[:-2]), (width,), *x[-2:])), tensors)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_a_sum_of_two_types_is_normed_in_the_wider_and_gradients_have_their_own():
    (x, weight, bias), (added,) = drawn((4, 16), (16,), (16,)), drawn((4, 16), dtype=torch.bfloat16)
    y = layer_norm.normalize(x, added, weight, bias, 1e-5, torch.float32)
    torch.testing.assert_close(y, F.layer_norm(x + added, (16,), weight, bias), rtol=1e-5, atol=1e-5)
    grad_x, grad_added = torch.autograd.grad(y.square().sum(), (x, added))
    assert (grad_x.dtype, grad_added.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(grad_added, grad_x.bfloat16())


def test_the_result_has_the_type_that_is_asked_for_and_gradients_have_their_own():
    x, weight, bias = drawn((4, 16), (16,), (16,))
    y = layer_norm.normalize(x, None, weight, bias, 1e-5, torch.bfloat16)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), F.layer_norm(x, (16,), weight, bias), rtol=1e-2, atol=1e-2)
    assert all(one.dtype == torch.float32 for one in torch.autograd.grad(y.sum(), (x, weight, bias)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_a_product_is_rounded_once(given, dtype):
    a, b = (tensor.detach() for tensor in drawn((5, 300), (300, 7), dtype=given))
    found = multiply(a, b, dtype)
    assert found.dtype == dtype
    wanted = (a.double() @ b.double()).to(dtype)
    torch.testing.assert_close(found, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(0, 2), (1, 1), (700, 5), (130, 200), (2100, 3), (2100, 1030), (3, 8200)])
def test_the_sum_over_rows_is_torchs(rows, width):
    (x,) = drawn((rows, width))
    torch.testing.assert_close(linear.sum_rows(x).double(), x.double().sum(0), rtol=1e-5, atol=1e-4)


def test_an_update_subtracts_the_rate_times_each_gradient(monkeypatch):
    monkeypatch.setattr(updates, "UPDATE_BLOCK", 16)  # several of them
    monkeypatch.setattr(updates, "UPDATE_WEIGHTS", 2)
    large, small, third, strided = weights = drawn((7, 5), (3,), (2, 9), (6, 4))
    large.grad, small.grad, third.grad = (torch.randn_like(weight) for weight in (large, small, third))
    strided.grad = torch.randn_like(strided.t()).t()
    gradients = [weight.grad for weight in weights]
    wanted = [w.detach().double() - 0.25 * g.double() for w, g in zip(weights, gradients, strict=True)]
    updates.subtract(weights, torch.tensor(0.25, device=DEVICE))
    for weight, expected in zip(weights, wanted, strict=True):
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-6, atol=1e-6)


def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch):
    """It need not be the current one, on which Triton launches."""
    devices, launched = [], []

    @contextmanager
    def device_of(tensor):
        devices.append(tensor.device)
        yield
        devices.pop()

    class Launched:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            launched.append(bool(devices))
            return self.kernel[grid]

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for module, names in (
        (layer_norm, ["_forward", "_backward"]),
        (linear, ["_sum_rows"]),
        (updates, ["_subtract"]),
        (losses, ["_losses_and_gradient", "_pair_losses_and_gradient"]),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Launched(getattr(module, name)))
    x, weight, bias = drawn((4, 8), (8,), (8,))
    layer_norm.normalize(x, None, weight, bias, 1e-5, torch.float32).sum().backward()
    targets = torch.tensor([0, 1, 2, 3], device=DEVICE)
    updates.subtract([x, weight], 0.5)
    losses.losses_and_gradient(x.detach().clone(), targets, 8, IGNORE_INDEX)
    losses.pair_losses_and_gradient(x.detach().clone(), targets[:2], 8, IGNORE_INDEX, 0.0, 1.0)
    assert len(launched) == 6
    assert all(launched)


def test_autograd_notices_an_update():
    (weight,) = drawn((100, 100))
    weight.grad = torch.ones_like(weight)
    result = (weight * weight).sum()
    updates.subtract([weight], 0.25)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_update_by_a_rate_on_the_host_does_not_wait():
    weights = drawn((100, 100), (3,))
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    updates.subtract(weights, 0.25)
    torch.cuda.set_sync_debug_mode("error")
    try:
        updates.subtract(weights, 0.25)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("gpu_kernels")
@pytest.mark.parametrize("changes", [{}, {"accumulate": 2}, {"clip": 0.0, "lr": 0.5}, {"layer_lr": (0.5, 0.0)}])
def test_steps_by_the_kernels_learn_what_those_by_torch_do(changes, monkeypatch, single_precision):
    settings = {"model": "transformer", "position": "learned", "carry": False, "tied": False, "layers": 2, "width": 8}
    settings |= {"optimizer": "sgd", "lr": 2.0, "clip": 0.25, "batch_size": 3, "bptt": 5, "dtype": "float32"}
    spec = LanguageRunSpec(data="grammar", device=DEVICE.type, cuda_graph=False, **settings | changes)

    def learned(are_off):
        monkeypatch.setenv(OFF_VARIABLE, are_off)
        torch.manual_seed(0)
        experiment = build_experiment(spec)
        experiment.model.train()
        step, carry, batches = build_step(experiment), experiment.initial_carry(), experiment.batches(0)
        size, reports = spec.accumulate, []
        for number in range(2):
            report, carry = step(batches[size * number : size * (number + 1)], carry)
            reports.append(report.values)
        return torch.stack(reports), nn.utils.parameters_to_vector(experiment.model.parameters())

    rtol, atol = (1e-4, 1e-5) if DEVICE.type == "cpu" else (1e-3, 2e-4)  # there products have the 10 bits of TF32
    for found, expected in zip(learned(""), learned("1"), strict=True):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def test_a_linear_map_and_its_gradients_are_those_of_torch():
    tensors = drawn((5, 7, 12), (9, 12), (9,))
    ours = output_and_gradients(lambda *all_of_it: linear.linear(*all_of_it, True), tensors)
    theirs = output_and_gradients(in_double(F.linear), tensors)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_a_frozen_weight_gets_no_gradient():
    x, weight, bias = drawn((5, 12), (9, 12), (9,))
    weight.requires_grad_(False)
    linear.linear(x, weight, bias, True).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 5.0))


@pytest.mark.usefixtures("gpu_kernels")
@pytest.mark.parametrize(
    ("dtype", "autocast", "expected"),
    [
        (torch.float32, True, True),
        (torch.bfloat16, True, True),
        (torch.float64, True, False),
        (torch.float32, False, True),
        (torch.bfloat16, False, False),
        (torch.float64, False, False),
    ],
)
def test_a_linear_map_is_left_to_torch_in_double_precision_and_where_types_differ(dtype, autocast, expected):
    x = torch.zeros(linear.MIN_ROWS, 1, dtype=dtype, device=DEVICE)
    weight, bias = torch.zeros(1, 1).to(DEVICE, torch.float32), torch.zeros(1).to(DEVICE, torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
        assert linear.applies(x, weight, bias, True) == expected
        assert not linear.applies(x, weight, bias, False), "not in training"


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "vocabulary", "width"), [(5, 3, 8), (3, 5000, 5000), (1, 1, 1)])
def test_losses_and_their_gradient_are_those_of_torch(rows, vocabulary, width, smoothing):
    (logits,) = drawn((rows, width))
    logits = 4 * logits.detach()
    targets = torch.randint(0, vocabulary, (rows,)).to(DEVICE)
    targets[-1] = IGNORE_INDEX if rows > 1 else 0
    real = logits[:, :vocabulary].double().requires_grad_()
    wanted = F.cross_entropy(real, targets, reduction="none", label_smoothing=smoothing)
    found = losses.losses_and_gradient(logits, targets, vocabulary, IGNORE_INDEX, smoothing)
    torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-4, atol=1e-6)
    (gradient,) = torch.autograd.grad(wanted.sum(), real)
    torch.testing.assert_close(logits[:, :vocabulary].double(), gradient, rtol=1e-3, atol=1e-7)
    assert not logits[:, vocabulary:].any()


def head_and_targets(rows, bias=True):
    """A head, features of so many rows, targets of three, and all that has a gradient."""
    head = Head(6, 30, bias, None).to(DEVICE, torch.float32)
    nn.init.normal_(head.own)
    (hidden_states,) = drawn((rows, 4, 6))
    targets = torch.randint(0, 30, (3, 4)).to(DEVICE)
    targets[1, 2:] = IGNORE_INDEX
    return head, hidden_states, targets, [hidden_states, *head.parameters()]


def pair_objective(logits, targets, vocabulary, smoothing, weight):
    """By autograd: the mean loss of each row of both halves, and the weighted divergence of the two."""
    halves = logits[:, :vocabulary].chunk(2)
    each = [F.cross_entropy(half, targets, reduction="none", label_smoothing=smoothing) for half in halves]
    p, q = (half.log_softmax(-1) for half in halves)
    divergence = sum(F.kl_div(*pair, reduction="none", log_target=True).sum(-1) for pair in ((p, q), (q, p)))
    return sum(each) / 2, weight * divergence * (targets != IGNORE_INDEX)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "vocabulary", "width"), [(0, 5, 5), (1, 1, 1), (3, 7, 8), (2, 5000, 5016)])
def test_losses_and_divergences_of_pairs_and_their_gradient_are_those_of_autograd(rows, vocabulary, width, smoothing):
    (logits,) = drawn((2 * rows, width))
    logits = 4 * logits.detach() + 30
    targets = torch.randint(0, vocabulary, (rows,)).to(DEVICE)
    if rows > 1:
        targets[-1] = IGNORE_INDEX
    wanted = logits.double().requires_grad_()
    expected = pair_objective(wanted, targets, vocabulary, smoothing, 0.7)
    found = losses.pair_losses_and_gradient(logits, targets, vocabulary, IGNORE_INDEX, smoothing, 0.7)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.detach(), rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(sum(expected).sum(), wanted)
    torch.testing.assert_close(logits.double(), gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pairs_of_narrow_logits_are_computed_in_single_precision(dtype):
    logits, targets = 4 * torch.randn(6, 40).to(DEVICE, dtype), torch.arange(3, device=DEVICE)
    wanted = logits.double().requires_grad_()
    expected = pair_objective(wanted, targets, 40, 0.1, 0.7)
    (gradient,) = torch.autograd.grad(sum(expected).sum(), wanted)
    found = losses.pair_losses_and_gradient(logits, targets, 40, IGNORE_INDEX, 0.1, 0.7)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.detach(), rtol=1e-4, atol=1e-5)
    assert (logits.double() - gradient).norm() < 0.01 * gradient.norm()


def test_a_target_outside_the_vocabulary_has_no_loss():
    (logits,) = drawn((3, 8))
    found = losses.losses_and_gradient(logits.detach(), torch.tensor([2, 5, 9], device=DEVICE), 5, IGNORE_INDEX)
    assert found.isnan().tolist() == [False, True, True]


@pytest.mark.usefixtures("gpu_kernels")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("logits_per_chunk", [150, 1000])
def test_the_loss_of_a_head_by_kernels_is_the_whole_one(bias, logits_per_chunk):
    """In chunks, and where all tokens are one."""
    head, hidden_states, targets, wanted = head_and_targets(3, bias)
    by_token = torch.empty(targets.numel(), device=DEVICE, dtype=torch.float32)
    fast = cross_entropy(hidden_states, head, targets, logits_per_chunk, by_token)
    slow = full_cross_entropy(hidden_states, head, targets)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(by_token.view(3, 4), token_losses(hidden_states, head, targets), rtol=1e-5, atol=1e-5)
    pairs = zip(torch.autograd.grad(fast / 7, wanted), torch.autograd.grad(slow / 7, wanted), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("gpu_kernels")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # where it comes first in the thread of backward passes
def test_a_smoothed_loss_by_kernels_is_that_of_torch():
    head, hidden_states, targets, wanted = head_and_targets(3)
    fast = smoothed_cross_entropy(hidden_states, head, targets, 0.2)
    logits = head(hidden_states).flatten(0, 1)
    slow = F.cross_entropy(logits, targets.flatten(), reduction="sum", label_smoothing=0.2)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    for one, other in zip(torch.autograd.grad(fast, wanted), torch.autograd.grad(slow, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("gpu_kernels")
def test_no_gradient_of_a_head_that_is_not_trained_is_computed(monkeypatch):
    products = []
    monkeypatch.setattr(losses, "multiply", lambda *inputs: products.append(inputs) or multiply(*inputs))
    monkeypatch.setattr(losses, "sum_rows", None)
    head = Head(6, 30, True, None).to(DEVICE, torch.float32).requires_grad_(False)
    nn.init.normal_(head.own)
    (hidden_states,) = drawn((3, 4, 6))
    targets = torch.randint(0, 30, (3, 4)).to(DEVICE)
    (fast,) = torch.autograd.grad(cross_entropy(hidden_states, head, targets), hidden_states)
    (slow,) = torch.autograd.grad(full_cross_entropy(hidden_states, head, targets), hidden_states)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    assert len(products) == 1


@on_gpu
@pytest.mark.parametrize("bias", [True, False])
def test_the_loss_of_a_head_in_half_precision_is_near_to_the_whole_one(bias):
    head = Head(64, 300, bias, None).to(DEVICE, torch.float32)
    nn.init.normal_(head.own, std=0.1)
    (hidden_states,) = drawn((8, 16, 64))
    targets = torch.randint(0, 300, (8, 16)).to(DEVICE)
    wanted = [hidden_states, *head.parameters()]
    with torch.autocast(DEVICE.type, torch.bfloat16):
        fast = cross_entropy(hidden_states, head, targets) / targets.numel()
    slow = full_cross_entropy(hidden_states, head, targets) / targets.numel()
    torch.testing.assert_close(fast, slow, rtol=1e-2, atol=1e-2)
    for one, other in zip(torch.autograd.grad(fast, wanted), torch.autograd.grad(slow, wanted), strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() < 0.02 * other.norm()


def test_a_target_that_is_nearly_certain_keeps_the_digits_of_its_loss():
    logits = torch.tensor([[0.0, -12.0, -14.0], [-80.0, 80.0, 0.0]], dtype=torch.float32, device=DEVICE)
    wanted = logits.double().requires_grad_()
    expected = F.cross_entropy(wanted, torch.tensor([0, 0], device=DEVICE), reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), wanted)
    mine = losses.losses_and_gradient(logits, torch.tensor([0, 0], device=DEVICE), 3, IGNORE_INDEX)
    torch.testing.assert_close(mine.double(), expected.detach(), rtol=1e-5, atol=0)
    torch.testing.assert_close(logits.double(), gradient, rtol=1e-5, atol=1e-30)


@on_gpu
@pytest.mark.parametrize("for_layer", [True, False])
def test_a_norm_in_training_takes_them_and_is_near_to_torchs(for_layer):
    ours = LayerNorm(384, 1e-6, for_layer=for_layer).to(DEVICE, torch.float32).train()
    assert (
        find_kernel("layer_norm", (torch.zeros(2, 384, dtype=torch.float32, device=DEVICE), None, ours), {}) is not None
    )
    theirs = nn.LayerNorm(384, 1e-6).to(DEVICE, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        x, y = (torch.randn(64, 65, 384, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype) for _ in "xy")
        x.requires_grad_()
        y.requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            mine, other = ours(x), theirs(y)
        assert mine.dtype == (torch.bfloat16 if for_layer else torch.float32)
        torch.testing.assert_close(mine.float(), other, rtol=1e-2, atol=1e-2)
        wanted = torch.randn_like(other).to(torch.bfloat16)
        mine.backward(wanted.to(mine.dtype))
        other.backward(wanted.float())
        for one, two in ((x, y), (ours.weight, theirs.weight), (ours.bias, theirs.bias)):
            assert (one.grad.float() - two.grad.float()).norm() < 1e-2 * two.grad.float().norm()


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_of_a_sum_in_training_is_near_to_torchs(dtype):
    ours = LayerNorm(200, 1e-5).to(DEVICE, torch.float32).train()
    x, y = drawn((20, 35, 200)), drawn((20, 35, 200), dtype=dtype)
    mine, other = ours(*x, *y), F.layer_norm(x[0] + y[0], (200,), ours.weight, ours.bias)
    assert mine.dtype == other.dtype
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    wanted = torch.randn_like(other)
    leaves = (*x, *y, *ours.parameters())
    for one, two in zip(
        torch.autograd.grad(mine, leaves, wanted), torch.autograd.grad(other, leaves, wanted), strict=True
    ):
        assert one.dtype == two.dtype
        assert (one - two).norm() < 1e-2 * two.norm()


@on_gpu
def test_a_linear_map_in_training_takes_them_and_is_near_to_torchs():
    ours, theirs = (part.to(DEVICE, torch.float32).train() for part in (Linear(384, 1152), nn.Linear(384, 1152)))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(64, 65, 384, device=DEVICE, dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        assert linear.applies(x, ours.weight, ours.bias, True)
        mine, other = ours(x), theirs(x)
    assert type(mine.grad_fn) is not type(other.grad_fn)
    torch.testing.assert_close(mine, other)
    wanted = torch.randn_like(other)
    mine.backward(wanted)
    other.backward(wanted)
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (one.grad - two.grad).norm() < 1e-2 * two.grad.norm()


@pytest.mark.slow
def test_kernels_compile_for_a_hopper_and_their_registers_suffice(tmp_path):
    found = compiled_kernels(Path(__file__).with_name("compile_layer_kernels.py"), tmp_path)
    assert len(found) == 14
    assert not any(found.values()), found
