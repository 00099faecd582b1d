"""Kinds of norms, gated feed-forward networks and parallel residuals: formulas, promises in stacks, and refusals."""

import pytest
import torch
from torch.nn import functional as F

from anaphor.errors import ConfigError
from anaphor.mixers import Span
from anaphor.mixers.base import select_rows
from anaphor.models import BackboneSpec, LanguageModelSpec, preset

BLOCKS = {
    "rmsnorm": {"norm_kind": "rmsnorm"},
    "rmsnorm after": {"norm_kind": "rmsnorm", "norm": "after"},
    "swiglu": {"activation": "swiglu"},
    "geglu": {"activation": "geglu", "feedforward_bias": False},
    "geglu-tanh": {"activation": "geglu-tanh"},
    "silu": {"activation": "silu"},
    "two norms": {"parallel_residual": "two-norms", "norm_kind": "rmsnorm"},
    "one norm": {"parallel_residual": "one-norm", "activation": "swiglu"},
    "no norm": {"parallel_residual": "two-norms", "norm": "none"},
    "all": {
        "parallel_residual": "one-norm", "norm_kind": "rmsnorm", "activation": "swiglu", "feedforward_bias": False,
        "kv_heads": 1, "qk_norm": "rmsnorm", "position": "rotary", "rope_scaling": "llama3(4, 8)", "short_conv": 2,
    },
}  # fmt: skip
STACKS = {"attention": ("attention", "attention"), "hybrid": ("lstm", "gated-delta", "attention")}


def stack(blocks, mixers):
    return BackboneSpec(width=8, heads=2, mixers=STACKS[mixers], **BLOCKS[blocks]).build().eval()


@pytest.mark.parametrize("mixers", STACKS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_the_promises_of_a_stack(blocks, mixers):
    """Cuts, padding, order of rows, gradient through the state, and the old state."""
    backbone = stack(blocks, mixers)
    x, more = torch.randn(3, 7, 8, requires_grad=True), torch.randn(3, 4, 8)
    whole, state = backbone(torch.cat((x, more), 1))
    first, state = backbone(x)
    after = Span.after(torch.full((3,), 7), 4)
    second, _ = backbone(more, state, after)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)
    (crossing,) = torch.autograd.grad(second.square().sum(), x, retain_graph=True)
    (expected,) = torch.autograd.grad(whole[:, 7:].square().sum(), x, retain_graph=True)
    assert expected.any()
    torch.testing.assert_close(crossing, expected)
    order = torch.tensor([2, 0, 0])
    torch.testing.assert_close(backbone(more[order], select_rows(state, order), after)[0], second[order])
    torch.testing.assert_close(backbone(more, state, after)[0], second)
    lengths = torch.tensor([7, 2, 0])
    padded = x.detach().masked_fill(torch.arange(7)[:, None] >= lengths[:, None, None], 1e3)
    _, state = backbone(padded, None, Span.whole(padded, lengths))
    future, _ = backbone(more, state, Span.after(lengths, 4))
    alone, _ = backbone(torch.cat((x[1:2, :2], more[1:2]), 1))
    torch.testing.assert_close(future[1:2], alone[:, 2:])


@pytest.mark.parametrize("blocks", BLOCKS)
def test_gradients_of_gradients(blocks):
    backbone = BackboneSpec(width=4, heads=2, mixers=("gla",), **{
        name: value for name, value in BLOCKS[blocks].items()
        if name not in ("kv_heads", "qk_norm", "position", "rope_scaling")
    }).build().eval()  # fmt: skip
    x = torch.randn(1, 3, 4, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: backbone(x)[0], x)


def test_rmsnorm_is_its_formula():
    block = BackboneSpec(width=8, mixers=("gru",), norm_kind="rmsnorm", norm_eps=1e-3).build()[0]
    norm = block.mixer_sublayer.norm
    torch.nn.init.normal_(norm.weight)
    x, added = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    total = x + added
    expected = total / (total.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    torch.testing.assert_close(norm(x, added), expected)
    assert not any("bias" in name for name, _ in norm.named_parameters())


@pytest.mark.parametrize(("name", "gate"), [
    ("swiglu", F.silu), ("geglu", F.gelu), ("geglu-tanh", lambda x: F.gelu(x, approximate="tanh"))
])  # fmt: skip
def test_a_gated_feed_forward_network_is_its_formula(name, gate):
    network = BackboneSpec(width=8, mixers=("gru",), activation=name, feedforward=5).build()[0].feedforward
    x = torch.randn(2, 5, 8)
    hidden = gate(F.linear(x, network.gate.weight, network.gate.bias)) * F.linear(x, network.up.weight, network.up.bias)
    torch.testing.assert_close(network(x), F.linear(hidden, network.down.weight, network.down.bias))


@pytest.mark.parametrize("parallel", ["two-norms", "one-norm"])
def test_a_parallel_residual_adds_both_to_the_same_input(parallel):
    block = BackboneSpec(width=8, mixers=("gru",), parallel_residual=parallel).build()[0].eval()
    x = torch.randn(2, 5, 8)
    span = Span.whole(x)
    y, _ = block(x, block.initial_state(x), span)
    normed = block.mixer_sublayer.norm(x)
    mixed, _ = block.mixer(normed, block.mixer.initial_state(x), span)
    entering = normed if parallel == "one-norm" else block.feedforward_sublayer.norm(x)
    torch.testing.assert_close(y, x + mixed + block.feedforward(entering))
    assert (block.feedforward_sublayer.norm is None) == (parallel == "one-norm")


@pytest.mark.parametrize("parallel", ["two-norms", "one-norm"])
def test_the_first_tokens_alone_are_those_of_all(parallel):
    backbone = BackboneSpec(
        width=8, heads=2, kv_heads=1, qk_norm="rmsnorm", layers=2, parallel_residual=parallel, mask="everything",
        causal=False,
    ).build().eval()  # fmt: skip
    x = torch.randn(2, 6, 8)
    torch.testing.assert_close(backbone.forward_first(x, 2), backbone(x)[0][:, :2])


def test_a_gate_has_about_as_many_weights():
    plain, gated = (preset("transformer", vocabulary=10, activation=name) for name in ("gelu", "swiglu"))
    counts = [spec.build().count_parameters() for spec in (plain, gated)]
    assert gated.blocks()[0].feedforward == 680
    assert abs(counts[1] / counts[0] - 1) < 0.01


def test_models_without_norms_say_that_the_kind_is_not_used():
    spec = preset("lstm", vocabulary=10)
    assert set(spec.unused_options(["norm_kind", "norm_eps", "feedforward_bias"])) == {
        "norm_kind", "norm_eps", "feedforward_bias",
    }  # fmt: skip
    spec = LanguageModelSpec(vocabulary=9, width=8, heads=2, norm="none", qk_norm="rmsnorm")
    assert set(spec.unused_options(["norm_kind", "norm_eps", "feedforward_bias"])) == {"norm_kind"}


def test_the_model_s_eps_is_that_of_queries_and_keys():
    spec = LanguageModelSpec(vocabulary=9, width=8, heads=2, norm_eps=1e-3, qk_norm="layernorm")
    mixer = spec.build().layers[0].mixer
    assert (mixer.q_norm.eps, mixer.k_norm.eps) == (1e-3, 1e-3)


@pytest.mark.parametrize(("options", "message"), [
    ({"norm_kind": "rms"}, "unknown kind of norm 'rms'; did you mean 'rmsnorm'"),
    ({"activation": "swigglu"}, "unknown activation 'swigglu'; did you mean 'swiglu'"),
    ({"parallel_residual": "both"}, "unknown parallel residual 'both'"),
    ({"parallel_residual": "one-norm", "norm": "after"}, "needs norm='before', not norm='after'"),
    ({"parallel_residual": "two-norms", "norm": "after"}, "needs norm='before' or 'none', not norm='after'"),
    ({"parallel_residual": "two-norms", "feedforward": 0}, "it needs a feed-forward network"),
    ({"parallel_residual": "two-norms", "residual": False}, "it needs residual=True"),
    ({"qk_norm": "l2"}, "unknown norm of queries and keys 'l2'"),
    ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4; the nearest that does is kv_heads=2"),
    ({"mixers": ("gru",), "kv_heads": 1}, "kv_heads=1 is not used by the layers gru"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        BackboneSpec(width=8, **options)
    assert "\n" not in str(error.value)
