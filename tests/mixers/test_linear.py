"""Linear attention in three forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphor.mixers.linear import FEATURE_MAPS, LinearState, chunkwise, parallel

TIGHT = {"rtol": 1e-9, "atol": 1e-10}


def recurrent(q, k, v, past):
    """Token by token."""
    kv_sum, k_sum = past
    outputs = []
    for query, key, value in zip(q.unbind(-2), k.unbind(-2), v.unbind(-2), strict=True):
        kv_sum = kv_sum + key[..., :, None] * value[..., None, :]
        k_sum = k_sum + key
        normalizer = (query * k_sum).sum(-1, keepdim=True)
        outputs.append((query[..., None, :] @ kv_sum).squeeze(-2) / normalizer)
    return torch.stack(outputs, dim=-2), LinearState(kv_sum, k_sum)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 12),
    size=st.integers(1, 14),
    width=st.integers(1, 4),
    name=st.sampled_from(sorted(FEATURE_MAPS)),
    seed=st.integers(0, 1000),
)
def test_parallel_chunkwise_and_recurrent_agree_with_gradients_of_the_state_too(tokens, size, width, name, seed):
    torch.manual_seed(seed)
    feature_map = FEATURE_MAPS[name]
    inputs = [torch.randn(2, 3, tokens, width, requires_grad=True) for _ in range(3)]
    past = LinearState(torch.randn(2, 3, width, width, requires_grad=True), torch.rand(2, 3, width, requires_grad=True))
    probe = torch.randn(2, 3, tokens, width)
    results = []
    for form in (parallel, recurrent, lambda *args: chunkwise(*args, size)):
        y, state = form(feature_map(inputs[0]), feature_map(inputs[1]), inputs[2], past)
        total = (y * probe).sum() + state.kv_sum.square().sum() + state.k_sum.square().sum()
        results.append([y, *state, *torch.autograd.grad(total, [*inputs, *past])])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, **TIGHT)


def test_weights_are_shares_of_feature_products():
    q, k, v = (torch.rand(1, 1, 4, 3) for _ in range(3))
    y, _ = parallel(q, k, v, LinearState(torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3)))
    for t in range(4):
        shares = torch.stack([q[0, 0, t] @ k[0, 0, j] for j in range(t + 1)])
        expected = (shares / shares.sum()) @ v[0, 0, : t + 1]
        torch.testing.assert_close(y[0, 0, t], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_features_are_positive(name, dtype):
    assert (FEATURE_MAPS[name](torch.linspace(-20, 20, 41, dtype=dtype)[:, None].expand(-1, 3)) > 0).all()


def test_the_gentle_map_is_elu_and_one_with_its_slope():
    x = torch.cat([torch.linspace(-6, 6, 49), torch.tensor([800.0])]).requires_grad_()
    ours, known = FEATURE_MAPS["elu"](x), torch.nn.functional.elu(x) + 1
    torch.testing.assert_close(ours, known)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (ours, known)))
