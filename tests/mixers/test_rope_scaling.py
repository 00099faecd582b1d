"""Scaled rotary positions: frequencies of transformers, and what is refused."""

import pytest
import torch

from anaphor.errors import ConfigError
from anaphor.mixers import AttentionSpec
from anaphor.mixers.attention.position import Rotary
from anaphor.mixers.spec import Sizes

HEAD_WIDTH, LENGTH = 16, 512


@pytest.fixture
def double(monkeypatch):
    """What asks for single precision gets double."""
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch, "float32", torch.float64)


def angles_of(scaling, theta, part=1.0):
    """Of the first position, and the factor of queries and keys."""
    rotary = Rotary(Sizes(64, 4, HEAD_WIDTH, 0, None, theta, scaling, part))
    # Of each pair the second dimension; in the first one the sine is negative.
    cos, sin = (part.chunk(2, -1)[1] for part in rotary.rotation(torch.tensor([[1]]), torch.float64))
    return torch.atan2(sin, cos).flatten(), torch.hypot(cos, sin).flatten()


CASES = {
    "linear(4)": {"rope_type": "linear", "factor": 4.0},
    "yarn(4, 512)": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LENGTH},
    "yarn(32, 512, 16, 2, truncate=False)": {
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": LENGTH, "beta_fast": 16.0,
        "beta_slow": 2.0, "truncate": False,
    },
    "yarn(8, 512, attention=1.5)": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": LENGTH, "attention_factor": 1.5,
    },
    "llama3(8, 512)": {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": LENGTH, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "llama3(32, 512, 2, high_freq_factor=5.5)": {
        "rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": LENGTH, "low_freq_factor": 2.0,
        "high_freq_factor": 5.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("scaling", CASES)
def test_frequencies_are_those_of_transformers(double, scaling, theta):
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=HEAD_WIDTH, max_position_embeddings=LENGTH * 8,
        rope_parameters={**CASES[scaling], "rope_theta": theta},
    )  # fmt: skip
    inv_freq, factor = rope.ROPE_INIT_FUNCTIONS[CASES[scaling]["rope_type"]](config, "cpu")
    angles, factors = angles_of(scaling, theta)
    torch.testing.assert_close(angles, inv_freq, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(factors, torch.full_like(factors, factor), rtol=1e-12, atol=0)


@pytest.mark.parametrize("times", [2, 3.5])
def test_ntk_is_the_dynamic_one_of_transformers_at_one_length(double, times):
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=HEAD_WIDTH, max_position_embeddings=LENGTH,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    )  # fmt: skip
    inv_freq, _ = rope.ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=int(times * LENGTH))
    angles, _ = angles_of(f"ntk({4 * times - 3})", 10_000.0)
    torch.testing.assert_close(angles, inv_freq, rtol=1e-12, atol=1e-14)


def test_a_part_of_each_head_is_rotated():
    rotary = Rotary(Sizes(64, 4, HEAD_WIDTH, 0, partial_rotary_factor=0.25))
    whole = Rotary(Sizes(64, 4, HEAD_WIDTH // 4, 0))
    x, at = torch.randn(2, 4, 5, HEAD_WIDTH), torch.arange(5).expand(2, 5)
    turned = rotary.rotate(x, rotary.rotation(at, x.dtype))
    torch.testing.assert_close(turned[..., :4], whole.rotate(x[..., :4], whole.rotation(at, x.dtype)))
    assert torch.equal(turned[..., 4:], x[..., 4:])


@pytest.mark.parametrize(("options", "message"), [
    ({"rope_scaling": "llama(8, 512)"}, "unknown rope scaling 'llama'; did you mean 'llama3'"),
    ({"rope_scaling": "llama3(8)"}, r"write llama3\(factor, original_max_positions\)"),
    ({"rope_scaling": "linear(8, 512)"}, r"write linear\(factor\)"),
    ({"rope_scaling": "yarn(8, factor=512)"}, r"write yarn\(factor, original_max_positions\)"),
    ({"rope_scaling": "yarn(8, 512, beta_fats=3)"}, "unknown number of yarn 'beta_fats'; did you mean 'beta_fast'"),
    ({"rope_scaling": "linear(0.5)"}, "factor=0.5 must be at least 1"),
    ({"rope_scaling": "linear(-2)"}, "'-2' is not a number"),
    ({"rope_scaling": "linear('2')"}, "is not a number"),
    ({"rope_scaling": "linear(1e999)"}, "factor=inf must be a number above 0"),
    ({"rope_scaling": "llama3(8, 512, 4, 4)"}, "high_freq_factor=4 must be above low_freq_factor=4"),
    ({"rope_scaling": "dynamic(4)"}, "outputs would depend on where it is cut"),
    ({"rope_scaling": "linear(4"}, r"cannot be parsed; write it like 'llama3\(32, 8192\)'"),
    ({"rope_scaling": "f.g(4)"}, "cannot be parsed"),
    ({"rope_scaling": "(" * 100_000}, "cannot be parsed"),
    ({"rope_theta": 1.0}, "rope_theta=1: it must be a number above 1"),
    ({"rope_theta": float("nan")}, "rope_theta=nan: it must be a number above 1"),
    ({"partial_rotary_factor": 0.4}, "an even number of dimensions, at least 2 and at most all; 0.25 is the least"),
    ({"partial_rotary_factor": 1.5}, "at most all"),
    ({"position": "alibi", "rope_theta": 500.0}, "rope_theta=500.0 applies to position='rotary' only, not to 'alibi'"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        AttentionSpec(**{"width": 16, "heads": 2, "position": "rotary", **options})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
