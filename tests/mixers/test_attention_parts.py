"""Grouped heads, norms of queries and keys, soft caps, sinks and windows: formulas, and transformers with the same
weights, which computes parts of them in single precision; here it is made to use double precision throughout."""

import pytest
import torch
from torch.nn import functional as F

from anaphor.errors import ConfigError
from anaphor.inspect import recorded
from anaphor.mixers import AttentionSpec, CrossAttentionSpec, Span, count_bytes
from anaphor.mixers.attention.score import LEARNED_NORMALIZERS, SinkSoftmax
from anaphor.mixers.spec import Sizes

TIGHT = {"rtol": 1e-8, "atol": 1e-9}
TOKENS, WIDTH = 13, 16


@pytest.fixture
def double(monkeypatch):
    """What asks for single precision gets double."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)


@pytest.fixture
def x():
    return torch.randn(3, TOKENS, WIDTH, requires_grad=True)


def draw(spec):
    mixer = spec.build().eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def run(mixer, x):
    return mixer(x, mixer.initial_state(x), Span.whole(x))[0]


def attention_bias(window):
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    allowed = (distance >= 0) & (distance < (window or TOKENS))
    return torch.zeros(1, 1, TOKENS, TOKENS).masked_fill(~allowed, torch.finfo(torch.float64).min)


def assert_same(ours, peer, x, arguments, more=()):
    """Outputs and gradients of inputs and weights."""
    pairs = [*more, (ours.out.weight, [peer.o_proj.weight])]
    pairs.append((ours.project.weight, [peer.q_proj.weight, peer.k_proj.weight, peer.v_proj.weight]))
    with torch.no_grad():
        for weight, parts in pairs:
            for part, value in zip(parts, weight.split([len(part) for part in parts]), strict=True):
                part.copy_(value)
    y = run(ours, x)
    z = peer(x, **arguments)[0]
    torch.testing.assert_close(y, z, **TIGHT)
    probe = torch.randn_like(y)
    mine = torch.autograd.grad((y * probe).sum(), [x, *(weight for weight, _ in pairs)])
    theirs = torch.autograd.grad((z * probe).sum(), [x, *(part for _, parts in pairs for part in parts)])
    torch.testing.assert_close(mine[0], theirs[0], **TIGHT)
    rest = iter(theirs[1:])
    for gradient, (_, parts) in zip(mine[1:], pairs, strict=True):
        torch.testing.assert_close(gradient, torch.cat([next(rest) for _ in parts]), **TIGHT)


@pytest.mark.parametrize("window", [None, 4])
def test_gemma2_caps_scores_and_attends_to_a_window(double, x, window):
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    config = gemma.Gemma2Config(
        hidden_size=WIDTH, num_attention_heads=4, num_key_value_heads=2, head_dim=6, attn_logit_softcapping=1.5,
        query_pre_attn_scalar=6, sliding_window=window, num_hidden_layers=1,
        layer_types=["sliding_attention" if window else "full_attention"],
        attn_implementation="eager",
    )  # fmt: skip
    spec = AttentionSpec(
        width=WIDTH, heads=4, kv_heads=2, head_width=6, softcap=1.5, window=window, bias=False, position="rotary"
    )
    positions = gemma.Gemma2RotaryEmbedding(config)(x, torch.arange(TOKENS)[None])
    arguments = {"position_embeddings": positions, "attention_mask": attention_bias(window)}
    assert_same(draw(spec), gemma.Gemma2Attention(config, 0).eval(), x, arguments)


@pytest.mark.parametrize("window", [None, 4])
def test_gpt_oss_has_sinks(double, x, window):
    oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    config = oss.GptOssConfig(
        hidden_size=WIDTH, num_attention_heads=4, num_key_value_heads=2, head_dim=6, sliding_window=window or 128,
        layer_types=["sliding_attention" if window else "full_attention"], num_hidden_layers=1,
        attention_bias=False, attn_implementation="eager", num_local_experts=2, num_experts_per_tok=1,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "truncate": False,
                         "beta_fast": 32.0, "beta_slow": 1.0, "rope_theta": 150_000.0},
    )  # fmt: skip
    ours = draw(AttentionSpec(
        width=WIDTH, heads=4, kv_heads=2, head_width=6, normalize="softmax-sink", window=window, bias=False,
        position="rotary", rope_theta=150_000.0, rope_scaling="yarn(4, 8, truncate=False)",
    ))  # fmt: skip
    peer = oss.GptOssAttention(config, 0).eval()
    cos, sin = oss.GptOssRotaryEmbedding(config)(x, torch.arange(TOKENS)[None])
    arguments = {"position_embeddings": (cos, sin), "attention_mask": attention_bias(window)}
    assert_same(ours, peer, x, arguments, [(ours.normalize.sinks, [peer.sinks])])


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_are_repeated_heads(kv_heads):
    """The matrix of a layer with as many heads of keys and values, where those of a group are the same."""
    grouped = draw(AttentionSpec(width=WIDTH, heads=4, kv_heads=kv_heads, position="rotary", bias=False))
    repeated = draw(AttentionSpec(width=WIDTH, heads=4, position="rotary", bias=False))
    q, k, v = grouped.project.weight.detach().split((WIDTH, 4 * kv_heads, 4 * kv_heads))
    k, v = (part.view(kv_heads, 4, WIDTH).repeat_interleave(4 // kv_heads, 0).flatten(0, 1) for part in (k, v))
    repeated.load_state_dict({"project.weight": torch.cat((q, k, v)), "out.weight": grouped.out.weight})
    x = torch.randn(2, 7, WIDTH)
    torch.testing.assert_close(run(grouped, x), run(repeated, x))


FUSED = {
    "grouped": {"kv_heads": 1},
    "qk norm": {"qk_norm": "rmsnorm"},
    "scaled rotary": {"position": "rotary", "rope_scaling": "yarn(4, 8)", "kv_heads": 2},
    "window": {"window": 4, "kv_heads": 2},
}
EXPLICIT = {"soft cap": {"softcap": 3.0}, "sinks": {"normalize": "softmax-sink"}}


@pytest.mark.parametrize("options", FUSED | EXPLICIT)
@pytest.mark.parametrize("lengths", [None, [13, 5, 0]], ids=["full", "padded"])
def test_the_fused_path_runs_where_it_computes_the_same_and_nowhere_else(options, lengths, x, monkeypatch):
    mixer = draw(AttentionSpec(width=WIDTH, heads=4, **(FUSED | EXPLICIT)[options]))
    calls, original = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or original(*a, **k))
    span = Span.whole(x, None if lengths is None else torch.tensor(lengths))
    fused, _ = mixer(x, mixer.initial_state(x), span)
    assert bool(calls) == (options in FUSED)
    del calls[:]
    with recorded(mixer, "weights") as found:
        explicit, _ = mixer(x, mixer.initial_state(x), span)
    assert not calls
    assert found["weights"].shape == (3, 4, TOKENS, TOKENS)
    torch.testing.assert_close(fused, explicit, **TIGHT)
    probe = torch.randn_like(fused)
    for y, z in zip(*(torch.autograd.grad((y * probe).sum(), [x, mixer.project.weight]) for y in (fused, explicit)),
                    strict=True):  # fmt: skip
        torch.testing.assert_close(y, z, **TIGHT)


@pytest.mark.parametrize("options", [
    {"kv_heads": 1, "position": "rotary", "rope_scaling": "llama3(4, 4)"}, {"qk_norm": "rmsnorm"},
    {"qk_norm": "layernorm"}, {"softcap": 2.0}, {"normalize": "softmax-sink"}, {"window": 2},
])  # fmt: skip
def test_gradients_of_gradients(options):
    """Of the explicit path; torch's fused kernel has no derivative of its gradient."""
    mixer = draw(AttentionSpec(width=4, heads=2, **options))
    x = torch.randn(1, 4, 4, requires_grad=True)
    with recorded(mixer, "weights"):
        assert torch.autograd.gradgradcheck(lambda x: run(mixer, x), x)


def test_a_soft_cap_is_its_formula(x):
    mixer = draw(AttentionSpec(width=WIDTH, heads=1, softcap=0.7, bias=False))
    with recorded(mixer, "weights") as found:
        run(mixer, x)
    q, k, _ = (x @ mixer.project.weight.T).chunk(3, -1)
    scores = 0.7 * torch.tanh(q @ k.mT / 4 / 0.7)
    expected = torch.softmax(scores.masked_fill(torch.ones(TOKENS, TOKENS).triu(1) > 0, -torch.inf), -1)
    torch.testing.assert_close(found["weights"][:, 0], expected)


def test_a_sink_is_a_score_of_no_token():
    sink = SinkSoftmax(Sizes(4, 2, 2, 0))
    torch.nn.init.constant_(sink.sinks, -torch.inf)
    scores, allowed = torch.randn(3, 2, 4, 5), torch.rand(3, 1, 4, 5) > 0.4
    weights = sink(scores, allowed)
    expected = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1).nan_to_num()
    torch.testing.assert_close(weights, expected)
    torch.nn.init.zeros_(sink.sinks)
    weights, exponents = sink(scores, allowed), scores.exp() * allowed
    torch.testing.assert_close(weights, exponents / (1 + exponents.sum(-1, keepdim=True)))
    assert {"softmax-sink": SinkSoftmax} == LEARNED_NORMALIZERS


@pytest.mark.parametrize(("options", "kept"), [
    ({}, None), ({"window": 4}, 3), ({"window": 1}, 0), ({"memory": 5}, 5), ({"window": 4, "memory": 9}, 3),
    ({"mask": "causal & window(6)"}, 5), ({"mask": "band(3, 0)", "window": 9}, 3),
    ({"mask": "causal & (window(3) | prefix(2))"}, None),
])  # fmt: skip
def test_a_state_keeps_what_later_tokens_attend_to(options, kept):
    mixer = draw(AttentionSpec(width=WIDTH, heads=4, kv_heads=2, **options))
    x = torch.randn(2, 12, WIDTH)
    _, state = mixer(x, mixer.initial_state(x), Span.whole(x))
    assert len(state.keys_values) == (12 if kept is None else kept)
    assert (mixer.spec.kept_tokens, mixer.spec.grows) == (kept, kept is None)
    assert mixer.spec.carries_by_default == ("memory" in options)
    assert 2 * mixer.state_bytes(12) == count_bytes(state) == 2 * (12 if kept is None else kept) * 2 * 2 * 4 * 8


def test_cross_attention_has_grouped_heads_norms_caps_and_sinks():
    spec = CrossAttentionSpec(
        width=8, heads=4, kv_heads=2, qk_norm="rmsnorm", softcap=2.0, normalize="softmax-sink", source_width=6
    )
    cross = draw(spec)
    x, source, lengths = torch.randn(2, 3, 8), torch.randn(2, 5, 6), torch.tensor([5, 2])
    state = cross.initial_state(source, lengths)
    assert count_bytes(state[:2]) == 2 * cross.state_bytes(5)
    y, _ = cross(x, state, Span.whole(x))
    alone, _ = cross(x[1:], cross.initial_state(source[1:, :2]), Span.whole(x[1:]))
    torch.testing.assert_close(y[1:], alone)
    pieces = [cross(x[:, t : t + 1], state, Span.after(torch.full((2,), t), 1))[0] for t in range(3)]
    torch.testing.assert_close(torch.cat(pieces, 1), y)


@pytest.mark.parametrize(("options", "message"), [
    ({"softcap": 0.0}, "softcap=0: it must be a number above 0"),
    ({"softcap": float("inf")}, "softcap=inf: it must be a number above 0"),
    ({"normalize": "softmax-sinks"}, "unknown normalizer 'softmax-sinks'; did you mean 'softmax-sink'"),
    ({"kv_heads": 0}, "kv_heads=0"),
    ({"kv_heads": 8}, "kv_heads=8 does not divide heads=4; the nearest that does is kv_heads=4"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        AttentionSpec(width=16, heads=4, **options)
    assert "\n" not in str(error.value)
