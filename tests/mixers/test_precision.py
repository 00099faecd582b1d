"""Reduced precision: what must stay exact enough does."""

import pytest
import torch

from anaphor.mixers import LinearSpec, Span, mixer_spec
from anaphor.mixers.attention.score import sparsemax
from anaphor.models import PRESETS, build

SMALL = [name for name in PRESETS if not name.startswith(("gpt2", "gopher", "openai"))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [1, 100])
def test_sparsemax_sums_to_one_in_every_precision(dtype, scale):
    scores = (30 + scale * torch.randn(8, 64)).to(dtype)
    weights = sparsemax(scores, torch.ones_like(scores, dtype=torch.bool))
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.float().sum(-1), torch.ones(8, dtype=torch.float32), rtol=0, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_over_a_long_text_do_not_saturate(dtype):
    mixer = LinearSpec(width=8, heads=2).build().to(dtype)
    x = torch.randn(1, 500, 8).to(dtype)
    state, past_length = mixer.initial_state(x), 0
    with torch.no_grad():
        for _ in range(200):
            y, state = mixer(x, state, Span.after(torch.tensor([past_length]), 500))
            past_length += 500
        _, once = mixer(x, mixer.initial_state(x), Span.whole(x))
    assert y.dtype == dtype
    torch.testing.assert_close(state.k_sum, 200 * once.k_sum, rtol=1e-3, atol=0)


def test_small_features_survive_half_precision():
    mixer = LinearSpec(width=8, heads=2).build().to(torch.float32)
    with torch.no_grad():
        mixer.project.bias[:16] = -7.0
    x = torch.randn(1, 20, 8, dtype=torch.float32)
    expected, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = mixer(x, mixer.initial_state(x), Span.whole(x))
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.02)


def test_singular_values_of_a_model_in_half_precision():
    mixer = mixer_spec("svd", width=8, heads=2, rank=2).build()
    x = torch.randn(1, 5, 8)
    expected, _ = mixer(x, (), Span.whole(x))
    y, _ = mixer.to(torch.bfloat16)(x.to(torch.bfloat16), (), Span.whole(x))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), expected, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("name", SMALL)
def test_a_carried_state_keeps_its_type_under_autocast(name):
    model = build(name, vocabulary=20, width=24, layers=2).to(torch.float32)
    tokens = torch.randint(0, 20, (2, 4))
    with torch.autocast("cpu", torch.bfloat16):
        _, first = model(tokens)
        _, second = model(tokens, first)
    logits, _ = model(tokens, second)  # and fits a model that runs without
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
